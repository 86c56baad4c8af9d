"""Tables of metrics, and the conversion of what they read to Prometheus's format.

The library prometheus-client is optional, so it is imported when it is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

from scrapy_prioqueue.printable import in_a_line

if TYPE_CHECKING:
    from prometheus_client.core import Metric as Family

T = TypeVar("T")

Values = float | Mapping[Any, float] | None
"""One value, values by label (a tuple for several labels), or None if the metric doesn't apply now."""


@dataclass(frozen=True, slots=True)
class Buckets:
    """The state of a histogram.

    Args:
        bounds: upper bounds, ascending.
        counts: number of observations of each bucket, and of those above the last bound.
        total: sum of all observations.
    """

    bounds: Sequence[float]
    counts: Sequence[int]
    total: float


@dataclass(frozen=True, slots=True)
class Metric(Generic[T]):
    """A metric of something, such as a worker.

    Args:
        name: in full, with its unit, and `_total` if it is a counter.
        doc: its meaning, as in the reference.
        read: returns its values; called in any thread.
        labels: besides those that all metrics of the table have.
    """

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    doc: str
    read: Callable[[T], Values | Buckets]
    labels: Sequence[str] = ()


def families(
    table: Iterable[Metric[T]], labels: Sequence[str], subjects: Sequence[tuple[Sequence[str], T]]
) -> Iterator[Family]:
    """Yield the metrics of a table in the library's format.

    Args:
        labels: names of the labels that all of these metrics have.
        subjects: what is read, with the values of these labels.
    """
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

    kinds = {"counter": CounterMetricFamily, "gauge": GaugeMetricFamily, "histogram": HistogramMetricFamily}
    for metric in table:
        family: Any = kinds[metric.kind](metric.name, metric.doc, labels=[*labels, *metric.labels])
        for common, subject in subjects:
            found = metric.read(subject)
            for own, value in _samples(found):
                family.add_metric([in_a_line(label) for label in (*common, *own)], *value)
        yield family


def _samples(found: Values | Buckets) -> Iterator[tuple[tuple[object, ...], tuple[Any, ...]]]:
    if isinstance(found, Buckets):
        below, bounds = 0, list[tuple[str, float]]()
        for bound, count in zip([*map(str, found.bounds), "+Inf"], found.counts, strict=True):
            below += count
            bounds.append((bound, below))
        yield (), (bounds, found.total)
    elif isinstance(found, Mapping):
        for own, value in found.items():
            yield own if isinstance(own, tuple) else (own,), (value,)
    elif found is not None:
        yield (), (found,)
