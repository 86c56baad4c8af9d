"""Charts of a crawl over time, as paths of SVG, for the report and the dashboard; nothing is read here."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, floor, log10

from scrapy_prioqueue.commands.output import duration, number, size
from scrapy_prioqueue.frontier.base import DEAD_REASONS
from scrapy_prioqueue.frontier.redis.operators.history import History, Sample, with_rates

WIDTH, HEIGHT = 720.0, 200.0
"""Width and height of a chart in its own units; the style sheet scales it."""

FEWEST = 2
"""Minimum number of samples of a chart."""

MOST_IN_SMALL = 120
"""Maximum number of samples in a small chart, in which more would only be noise."""

Text = Callable[[float], str]
Values = Sequence[float | None]


@dataclass(frozen=True, slots=True)
class Series:
    """A line or an area.

    Args:
        path: for SVG; empty if there is nothing to draw.
        most: its largest value, as text.
        latest: its last value, as text.
    """

    name: str
    path: str
    most: str
    latest: str
    color: int


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart.

    Args:
        about: description with the largest values, for screen readers.
        is_stacked: the series are areas, each above the one before it.
        top: text at the upper edge.
        middle: text at half the height.
    """

    title: str
    about: str
    series: Sequence[Series]
    is_stacked: bool
    top: str
    middle: str
    begun_ms: int
    ended_ms: int


def charts_of(history: History) -> Iterator[Chart]:
    """Yield the charts for which there are values; the first two are large."""
    samples = history.samples
    if len(samples) < FEWEST:
        return
    names = history.tiers or [f"tier {index}" for index in range(max(len(sample.tiers) for sample in samples))]
    yield depth_chart(samples, names)
    yield rate_chart(samples)
    samples = thinned_out(samples, MOST_IN_SMALL)
    yield _lines("Requests in progress", samples, {"leased": _of(samples, "leased")}, brief)
    yield _lines("Workers", samples, {"alive": _of(samples, "workers")}, brief)
    ready = [max(0, sample.slots - sample.waiting) for sample in samples]
    yield _areas("Slots with requests", samples, {"may be served": ready, "wait": _of(samples, "waiting")}, brief)
    if any(sample.latency for sample in samples):
        latency = {"median": _of(samples, "latency_p50_s"), "95th percentile": _of(samples, "latency_p95_s")}
        yield _lines("Latency of exchanges", samples, latency, seconds)
    if samples[-1].retries:
        yield _lines("Retries per second", samples, {"retries": _of(samples, "retries_per_s")}, per_second)
    letters = {reason: [sample.letters.get(reason, 0) for sample in samples] for reason in DEAD_REASONS}
    if reasons := {reason: counts for reason, counts in letters.items() if any(counts)}:
        yield _areas("Dead letters by reason", samples, reasons, brief)
    if any(sample.memory for sample in samples):
        memory = {"used": _of(samples, "memory")}
        limit = {"maxmemory": _of(samples, "memory_limit")} if samples[-1].memory_limit else {}
        yield _lines("Memory of Redis", samples, memory | limit, size)


def depth_chart(samples: Sequence[Sample], names: Sequence[str]) -> Chart:
    """Return the chart of waiting requests: pending ones by tier, the best tier on top, and delayed ones below."""
    waiting: dict[str, Values] = {"delayed": _of(samples, "delayed")}
    for tier, name in reversed(list(enumerate(names))):
        waiting[name] = [_at(sample.tiers, tier) for sample in samples]
    return _areas("Waiting requests by tier", samples, waiting, brief)


def rate_chart(samples: Sequence[Sample]) -> Chart:
    """Return the chart of the rates at which requests were done, and accepted."""
    rates = {"done": _of(samples, "done_per_s"), "found": _of(samples, "accepted_per_s")}
    return _lines("Requests per second", samples, rates, per_second)


def thinned_out(samples: Sequence[Sample], most: int) -> Sequence[Sample]:
    """Return some of the samples, including the first and the last one, with rates over the time between them."""
    step = ceil(len(samples) / most)
    if step == 1:
        return samples
    return with_rates([samples[0], *samples[:0:-step][::-1]])


def _of(samples: Sequence[Sample], name: str) -> Values:
    return [getattr(sample, name) for sample in samples]


def _at(counts: Sequence[int], index: int) -> int:
    return counts[index] if index < len(counts) else 0


def _lines(title: str, samples: Sequence[Sample], series: Mapping[str, Values], text: Text) -> Chart:
    top = rounded_up(max((value for values in series.values() for value in values if value is not None), default=0))
    drawn = [
        Series(name, _line(samples, values, top), _most(values, text), text(values[-1] or 0), color)
        for color, (name, values) in enumerate(series.items())
    ]
    return _chart(title, samples, drawn, top, text, is_stacked=False)


def _areas(title: str, samples: Sequence[Sample], series: Mapping[str, Values], text: Text) -> Chart:
    heights = [[value or 0 for value in values] for values in series.values()]
    top = rounded_up(max(map(sum, zip(*heights, strict=True)), default=0))
    lower, drawn = [0.0] * len(samples), list[Series]()
    for index, (name, values) in enumerate(zip(series, heights, strict=True)):
        upper = [below + value for below, value in zip(lower, values, strict=True)]
        path = _area(samples, lower, upper, top) if any(values) else ""
        drawn.append(Series(name, path, _most(values, text), text(values[-1]), len(series) - 1 - index))
        lower = upper
    return _chart(title, samples, drawn[::-1], top, text, is_stacked=True)


def _chart(
    title: str, samples: Sequence[Sample], series: Sequence[Series], top: float, text: Text, *, is_stacked: bool
) -> Chart:
    about = f"{title} over time: {', '.join(f'{each.name} up to {each.most}' for each in series)}"
    begun_ms, ended_ms = samples[0].ms, samples[-1].ms
    return Chart(title, about, series, is_stacked, text(top), text(top / 2), begun_ms, ended_ms)


def _most(values: Values, text: Text) -> str:
    return text(max((value for value in values if value is not None), default=0))


def _line(samples: Sequence[Sample], values: Values, top: float) -> str:
    """Return a path with gaps where the value is unknown; a value between two gaps is a dot."""
    parts, run = list[str](), list[str]()
    for place, value in zip(_places(samples, [value or 0 for value in values], top), values, strict=True):
        if value is not None:
            run.append(place)
        elif run:
            parts.append(_joined(run))
            run = []
    return " ".join([*parts, *([_joined(run)] if run else [])])


def _joined(run: Sequence[str]) -> str:
    return f"M{'L'.join(run)}" if len(run) > 1 else f"M{run[0]}h.1"


def _area(samples: Sequence[Sample], lower: Sequence[float], upper: Sequence[float], top: float) -> str:
    return f"M{'L'.join([*_places(samples, upper, top), *reversed(_places(samples, lower, top))])}Z"


def _places(samples: Sequence[Sample], values: Sequence[float], top: float) -> list[str]:
    first, span = samples[0].ms, max(1, samples[-1].ms - samples[0].ms)
    return [
        f"{(sample.ms - first) / span * WIDTH:.4g} {HEIGHT - value / top * HEIGHT:.4g}"
        for sample, value in zip(samples, values, strict=True)
    ]


def rounded_up(value: float) -> float:
    """Return the next larger of 1, 2, 4, 6, 8, 10, 20 and so on, also below 1; 1 for 0."""
    if value <= 0:
        return 1.0
    unit = 10.0 ** floor(log10(value))
    return next(step * unit for step in (1, 2, 4, 6, 8, 10) if step * unit >= value * (1 - 1e-9))


# Values as text


def brief(value: float) -> str:
    """Return 1234567 as 1.23 M, and numbers below ten thousand exactly."""
    if value < 10_000:
        return number(value) if value >= 10 or value == ceil(value) else f"{value:.2g}"
    # 999,500 is rounded to 1 M.
    factor, unit = next((each for each in ((1e9, "G"), (1e6, "M")) if value >= 0.9995 * each[0]), (1e3, "k"))
    return f"{value / factor:.3g} {unit}"


def per_second(value: float) -> str:
    """Return a rate."""
    return f"{brief(value)}/s" if value >= 10 or value == 0 else f"{value:.2g}/s"


def seconds(value: float) -> str:
    """Return a short time in milliseconds."""
    return f"{value * 1000:.3g} ms" if value < 1 else duration(value)
