"""Records of runs, each from a worker's join to its close, and the totals of all runs of a crawl; plain data."""

from __future__ import annotations

import json
from bisect import bisect_left
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from math import inf
from typing import Any, Literal

from scrapy_prioqueue.domains import by_domain

LATENCY_BOUNDS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
"""Upper bounds of the classes in which exchanges are counted by their latency; one more class has no bound."""

CONFIDENCE_CLASSES = 10
"""Number of classes in which items are counted by their confidence: below 10, below 20, and so on; the last has 100."""

RunState = Literal["running", "closed", "lost"]


@dataclass(frozen=True, slots=True)
class Figures:
    """What a worker reports about its run.

    Args:
        spider: name of the spider.
        version: of this package.
        pages: requests done here, with their callbacks and items.
        items: items scraped.
        errors: log lines at level ERROR or above.
        retries: by Scrapy's retry middleware, or by callbacks.
        escalations: requests sent to another extraction layer.
        dead: requests given up here.
        latency: exchanges by latency, see `LATENCY_BOUNDS_S`.
        confidence: items by confidence, see `CONFIDENCE_CLASSES`; empty if no item has one.
        tiers: pages by tier.
        slots: pages by slot, those with the most pages.
        settings: settings that explain the figures, by name.
        reason: why the spider was closed; empty until then.
    """

    spider: str = ""
    version: str = ""
    pages: int = 0
    items: int = 0
    errors: int = 0
    retries: int = 0
    escalations: int = 0
    dead: int = 0
    latency: Sequence[int] = ()
    confidence: Sequence[int] = ()
    tiers: Mapping[str, int] = field(default_factory=dict)
    slots: Mapping[str, int] = field(default_factory=dict)
    settings: Mapping[str, str] = field(default_factory=dict)
    reason: str = ""

    @property
    def domains(self) -> Mapping[str, int]:
        """Pages by registered domain, as far as they are in `slots`; the largest first."""
        return by_domain(self.slots)


Stats = Mapping[str, float]
"""The numbers in Scrapy's stats, by name."""


@dataclass(frozen=True, slots=True)
class Report:
    """A run's figures, and Scrapy's stats, which are kept only for the newest crawl."""

    figures: Figures
    stats: Stats = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Run:
    """A run as the frontier has it.

    Args:
        run_id: its id.
        state: a run is lost if its worker was not heard of for the time to live of a lease, and has not closed.
        epoch: number of its crawl in the frontier.
        crawl_id: `PRIOQUEUE_CRAWL_ID`, empty for none.
        joined_ms: when the worker joined.
        heard_ms: when it has written this record last: for a run that has closed, when it did.
    """

    run_id: str
    worker: str
    state: RunState
    epoch: str
    joined_ms: int
    heard_ms: int
    crawl_id: str = ""
    host: str = ""
    pid: str = ""
    figures: Figures = Figures()

    @property
    def seconds(self) -> float:
        """Length of the run, as far as is known."""
        return max(0, self.heard_ms - self.joined_ms) / 1000

    @property
    def pages_per_s(self) -> float:
        """Average rate."""
        return self.figures.pages / self.seconds if self.seconds else 0.0


@dataclass(frozen=True, slots=True)
class FleetTotals:
    """The runs of one crawl together.

    Args:
        runs: their number.
        lost: runs that ended without a report, whose last figures are included.
        running: runs that have not ended.
        hosts: number of machines of the newest 1,000 runs.
        began_ms: when the first of them joined.
        ended_ms: when the last of them was heard of.
        stats: sums of the numbers in Scrapy's stats; of those that can't be summed, the maximum or minimum.
    """

    runs: int
    lost: int
    running: int
    hosts: int
    began_ms: int
    ended_ms: int
    stats: Stats

    @property
    def seconds(self) -> float:
        """Time from the first join to the last report."""
        return max(0, self.ended_ms - self.began_ms) / 1000


MOST_NUMBER = 2.0**63
"""Largest size of a number in stats that is stored, so that sums of such numbers can always be computed and shown."""


def number_of(value: object) -> float | None:
    """Return a value from stats if it is a number that can be stored, else None; stats may have any values."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    # False for NaN, too. Subclasses may be printed in their own way, so they aren't passed on.
    is_fine = -MOST_NUMBER <= value <= MOST_NUMBER
    return (int(value) if isinstance(value, int) else float(value)) if is_fine else None


def latency_class(seconds: float) -> int:
    """Return the index of the class in which an exchange is counted."""
    return bisect_left(LATENCY_BOUNDS_S, seconds)


def latency_s(counts: Sequence[int], part: float) -> float | None:
    """Return the latency below which this part of the exchanges was, interpolated; None if there were none."""
    total = sum(counts)
    left = part * total
    for count, low, high in zip(counts, (0.0, *LATENCY_BOUNDS_S), (*LATENCY_BOUNDS_S, inf), strict=False):
        if count and left <= count:
            return low if high == inf else low + (high - low) * left / count
        left -= count
    return None


# Stored form

_IDENTITY = ("worker", "epoch", "joined_ms", "crawl_id", "host", "pid")


def record_json(figures: Figures, **identity: str | int) -> str:
    """Return the stored form of a run; empty fields are left out.

    Args:
        identity: the fields of `Run` from `worker` to `pid` that the frontier sets.
    """
    found = {**identity, **asdict(figures)}
    return _json({name: value for name, value in found.items() if value or name == "latency"})


def stats_json(stats: Stats) -> str:
    """Return the stored form of stats."""
    return _json(dict(stats))


def _json(document: Mapping[str, Any]) -> str:
    # Redis can't decode half of a surrogate pair, which a text of a spider may have.
    return json.dumps(document, ensure_ascii=False).encode(errors="replace").decode()


def read_run(run_id: str, stored: bytes, heard_ms: int, alive: Collection[str]) -> Run | None:
    """Return a stored run, None if it can't be read.

    Args:
        alive: workers that are alive in a run that began with its join, as `<joined_ms> <worker>`.
    """
    try:
        found = json.loads(stored)
        names = {each.name for each in fields(Figures)}
        figures = Figures(**{name: value for name, value in found.items() if name in names})
        identity: dict[str, Any] = {name: found[name] for name in _IDENTITY if name in found}
        is_alive = f"{identity['joined_ms']} {identity['worker']}" in alive
        state: RunState = "closed" if figures.reason else "running" if is_alive else "lost"
        return Run(run_id, state=state, heard_ms=heard_ms, figures=figures, **identity)
    except (AttributeError, KeyError, TypeError, ValueError):
        return None


def read_stats(stored: bytes | None) -> Stats:
    """Return stored stats, none if they can't be read."""
    try:
        return _numbers(json.loads(stored or b"{}"))
    except (AttributeError, ValueError):
        return {}


def _numbers(found: Mapping[str, Any]) -> Stats:
    return {name: number for name, value in found.items() if (number := number_of(value)) is not None}


# Totals


@dataclass(frozen=True, slots=True)
class Dropped:
    """Runs of a crawl whose records aren't kept any more, together; see `FleetTotals`."""

    runs: int = 0
    lost: int = 0
    began_ms: int = 0
    stats: Stats = field(default_factory=dict)


def read_dropped(stored: bytes | None) -> Dropped:
    """Return the stored sums of dropped runs, none if they can't be read."""
    try:
        found = json.loads(stored or b"{}")
        numbers = {name: int(found.get(name, 0)) for name in ("runs", "lost", "began_ms")}
        return Dropped(**numbers, stats=_numbers(found.get("stats", {})))
    except (AttributeError, TypeError, ValueError):
        return Dropped()


def totals_of(runs: Sequence[Run], stats: Iterable[Stats], dropped: Dropped) -> FleetTotals:
    """Return the totals of some runs with their stats, and of those that were dropped."""
    counted: dict[str, float] = {}
    for each in (dropped.stats, *stats):
        for name, value in each.items():
            counted[name] = value if name not in counted else _joined(name, counted[name], value)
    states = Counter(run.state for run in runs)
    return FleetTotals(
        runs=dropped.runs + len(runs),
        lost=dropped.lost + states["lost"],
        running=states["running"],
        hosts=len({run.host for run in runs}),
        began_ms=min(filter(None, (dropped.began_ms, *(run.joined_ms for run in runs))), default=0),
        ended_ms=max((run.heard_ms for run in runs), default=0),
        stats=dict(sorted(counted.items())),
    )


def _joined(name: str, one: float, other: float) -> float:
    if _is_of(name, "min"):
        return min(one, other)
    is_peak = _is_of(name, "max") or name == "memusage/startup"
    return max(one, other) if is_peak else one + other


def _is_of(name: str, word: str) -> bool:
    """Return whether a stat is a maximum or minimum, as `request_depth_max` and `memusage/max` are."""
    return word in name.replace("/", "_").split("_")
