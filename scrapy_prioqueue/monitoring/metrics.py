"""Tables of metrics, and the conversion of what they read to Prometheus's format.

The library prometheus-client is optional, so it is imported when it is needed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

from scrapy_prioqueue.frontier.runs import number_of
from scrapy_prioqueue.printable import in_a_line

if TYPE_CHECKING:
    from prometheus_client.core import Metric as Family

logger = logging.getLogger(__name__)

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
        subjects: the objects that are read, each with the values of these labels.
    """
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

    kinds = {"counter": CounterMetricFamily, "gauge": GaugeMetricFamily, "histogram": HistogramMetricFamily}
    for metric in table:
        family: Any = kinds[metric.kind](metric.name, metric.doc, labels=[*labels, *metric.labels])
        for common, subject in subjects:
            for own, value in _found(metric, subject):
                family.add_metric([in_a_line(label) for label in (*common, *own)], *value)
        yield family


_Sample = tuple[tuple[object, ...], tuple[Any, ...]]

_failed: set[str] = set()
"""Metrics whose errors have been logged."""


def _found(metric: Metric[T], subject: T) -> Sequence[_Sample]:
    """Return the values of a metric; none if it can't be read, so that it doesn't hide the other metrics."""
    try:
        return [*_samples(metric.read(subject), is_counter=metric.kind == "counter")]
    except Exception:
        if metric.name not in _failed:
            _failed.add(metric.name)
            logger.exception("Unexpected error, so the metric %s is missing", metric.name)
        return ()


def _samples(found: Values | Buckets, *, is_counter: bool) -> Iterator[_Sample]:
    if isinstance(found, Buckets):
        below, bounds = 0, list[tuple[str, float]]()
        for bound, count in zip([*map(str, found.bounds), "+Inf"], found.counts, strict=True):
            below += count
            bounds.append((bound, below))
        yield (), (bounds, found.total)
        return
    for own, value in found.items() if isinstance(found, Mapping) else [((), found)]:
        number = int(value) if isinstance(value, bool) else number_of(value)
        # Code of a spider can set a stat to anything.
        if number is not None and (number >= 0 or not is_counter):
            yield own if isinstance(own, tuple) else (own,), (number,)
