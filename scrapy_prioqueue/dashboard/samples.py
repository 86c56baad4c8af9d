"""What the page shows over time: samples of the crawl, and the drawings of them."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from scrapy_prioqueue.frontier.redis.operators.findings import Status
from scrapy_prioqueue.frontier.redis.operators.history import History

MOST_POINTS = 400
"""When there are more, every other one is dropped."""

WIDTH, HEIGHT = 720.0, 180.0
"""Of a drawing; it is stretched to the room there is."""


@dataclass(frozen=True, slots=True)
class Point:
    """A crawl at one moment.

    Args:
        ms: time.
        depths: pending requests by tier, best first.
        delayed: number of delayed requests.
        done: requests done since the beginning, as is the following.
        accepted: requests stored.
    """

    ms: int
    depths: Sequence[int]
    delayed: int
    done: int
    accepted: int


class Seen:
    """What this process has seen of the newest crawl; safe from threads."""

    def __init__(self) -> None:
        self._epoch = ""
        self._step_ms = 0
        self._lock = threading.Lock()
        self.points: list[Point] = []

    def add(self, status: Status) -> None:
        """Add a summary, unless the last one is too near."""
        with self._lock:
            self._add(status)

    def _add(self, status: Status) -> None:
        if status.state.epoch != self._epoch:
            self._epoch, self._step_ms, self.points = status.state.epoch, 0, []
        # Time goes on after the end of a crawl, but nothing changes.
        ms = status.state.ended_ms if status.state.has_ended else status.now_ms
        step_ms = 1 if status.state.has_ended else max(1, self._step_ms)
        if self.points and ms < self.points[-1].ms + step_ms:
            return
        counts = status.counts
        depths = tuple(tier.pending for tier in status.tiers)
        self.points.append(Point(ms, depths, counts["delayed"], counts["done"], counts["accepted"]))
        if len(self.points) > MOST_POINTS:
            self.points = self.points[::2]
            self._step_ms = max(1, (self.points[-1].ms - self.points[0].ms) // (len(self.points) - 1))


def recorded(history: History | None) -> Sequence[Point]:
    """Return what workers have recorded of the newest crawl."""
    samples = history.samples if history is not None else ()
    return [Point(each.ms, each.tiers, each.delayed, each.done, each.accepted) for each in samples]


def joined(earlier: Sequence[Point], later: Sequence[Point]) -> Sequence[Point]:
    """Return points of two sources in order; of the later ones those after the others."""
    last_ms = earlier[-1].ms if earlier else -1
    return [*earlier, *(point for point in later if point.ms > last_ms)]


@dataclass(frozen=True, slots=True)
class Layer:
    """A line, or one of the areas that are stacked on each other.

    Args:
        name: for the legend.
        path: of the SVG.
        latest: the last value.
    """

    name: str
    path: str
    latest: float


@dataclass(frozen=True, slots=True)
class Chart:
    """A drawing over time.

    Args:
        layers: from the bottom.
        top: value at the upper edge.
        begun_ms: time at the left edge.
        ended_ms: time at the right edge.
    """

    layers: Sequence[Layer]
    top: float
    begun_ms: int
    ended_ms: int


def depth_chart(points: Sequence[Point], tiers: Sequence[str]) -> Chart | None:
    """Return the waiting requests by tier, the best one on top, and below them the delayed ones; None if too few."""
    if len(points) < 2:
        return None
    names = [*tiers, "delayed"]
    rows = [[*point.depths, *[0] * (len(tiers) - len(point.depths)), point.delayed] for point in points]
    top = rounded_up(max(1, *(sum(row) for row in rows)))
    bottoms, layers = [0.0] * len(points), list[Layer]()
    for index in reversed(range(len(names))):
        heights = [row[index] for row in rows]
        tops = [bottom + height for bottom, height in zip(bottoms, heights, strict=True)]
        path = _area(points, bottoms, tops, top) if any(heights) else ""
        layers.insert(0, Layer(names[index], path, heights[-1]))
        bottoms = tops
    return Chart(layers, top, points[0].ms, points[-1].ms)


def rate_chart(points: Sequence[Point]) -> Chart | None:
    """Return the rates of requests that were finished and found; None if too few points."""
    if len(points) < 3:
        return None
    names = {"finished": "done", "found": "accepted"}
    rates = {name: [_rate(*pair, what) for pair in pairwise(points)] for name, what in names.items()}
    top = rounded_up(max(1.0, *(max(values) for values in rates.values())))
    layers = [Layer(name, _line(points[1:], values, top), values[-1]) for name, values in rates.items()]
    return Chart(layers, top, points[1].ms, points[-1].ms)


def _rate(before: Point, after: Point, what: str) -> float:
    # A server that has lost its newest writes may count less than before.
    change: int = getattr(after, what) - getattr(before, what)
    return max(0, change) / max(0.001, (after.ms - before.ms) / 1000)


def _area(points: Sequence[Point], bottoms: Sequence[float], tops: Sequence[float], top: float) -> str:
    upper = _places(points, tops, top)
    lower = _places(points, bottoms, top)
    return f"M{' L'.join([*upper, *reversed(lower)])}Z"


def _line(points: Sequence[Point], values: Sequence[float], top: float) -> str:
    return f"M{' L'.join(_places(points, values, top))}"


def _places(points: Sequence[Point], values: Sequence[float], top: float) -> list[str]:
    first, span = points[0].ms, max(1, points[-1].ms - points[0].ms)
    return [
        f"{(point.ms - first) / span * WIDTH:.1f} {HEIGHT - value / top * HEIGHT:.1f}"
        for point, value in zip(points, values, strict=True)
    ]


def rounded_up(value: float) -> float:
    """Return the next of 1, 2, 5, 10, 20 and so on."""
    unit = 1.0
    while True:
        for step in (1, 2, 5):
            if step * unit >= value:
                return step * unit
        unit *= 10
