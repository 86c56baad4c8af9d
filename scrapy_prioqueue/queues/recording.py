"""Reports on this worker's run: its figures for the history, and Scrapy's stats for the sums of all workers."""

from __future__ import annotations

import logging
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from heapq import nlargest
from itertools import islice
from pprint import pformat
from time import monotonic
from typing import Any

from scrapy import Request
from scrapy.crawler import Crawler
from scrapy.utils.log import failure_to_exc_info
from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from scrapy_prioqueue import __version__
from scrapy_prioqueue.engine import StatCounter
from scrapy_prioqueue.errors import FrontierRefused, FrontierUnavailable, PrioQueueError
from scrapy_prioqueue.frontier.base import Report
from scrapy_prioqueue.frontier.runs import CONFIDENCE_CLASSES, Figures, FleetTotals, number_of
from scrapy_prioqueue.logs import CrawlLog
from scrapy_prioqueue.printable import in_a_line
from scrapy_prioqueue.pump.pump import Pump
from scrapy_prioqueue.rank import PRIORITY_LIMIT, TIER_WIDTH
from scrapy_prioqueue.settings import Config
from scrapy_prioqueue.stats import CONFIDENCE_STAT, DEAD_STATS, DONE_SLOT_STAT, DONE_TIER_STAT, ESCALATED_STAT

logger = logging.getLogger(__name__)

FIRST_S, LAST_S = 1.0, 10.0
"""Bounds of the seconds between two reports; within them it is a tenth of the age of the run, give or take `JITTER`."""

LATEST_S = 300.0
"""Seconds after which a worker reports even if nothing has changed, so that its run isn't taken for an old one."""

JITTER = 0.2

MOST_STATS, LONGEST_NAME, LONGEST_REASON = 200, 100, 500
"""Maximum number of stats in a report, length of their names, and length of the reason for which the spider closed."""

_HISTORY = "the record of this run in the run history"

MOST_COUNTED, MOST_SHOWN = 1000, 20
"""Maximum number of slots whose pages are counted, and of slots in a report; all others count as `OTHERS`."""

OTHERS = "(others)"

_CLASSES = [f"{low}-{low + 9 + (low == 90)}" for low in range(0, 100, 100 // CONFIDENCE_CLASSES)]
CONFIDENCE_STATS = [CONFIDENCE_STAT.replace("<class>", name) for name in _CLASSES]


_ITEMS, _RETRIES, _ERRORS = ("item_scraped_count",), ("retry/count",), ("log_count/ERROR", "log_count/CRITICAL")

COUNTS = frozenset(
    ("response_received_count", "downloader/response_bytes", ESCALATED_STAT, *DEAD_STATS.values(), *CONFIDENCE_STATS)
    + (*_ITEMS, *_RETRIES, *_ERRORS)
)
"""Stats that only count, and are shown as figures. Code of the spider can set them to less than 0."""


def confidence_stat(value: float) -> str:
    """Return the stat that counts an item with this confidence, from 0 to 100."""
    return CONFIDENCE_STATS[min(CONFIDENCE_CLASSES - 1, int(value * CONFIDENCE_CLASSES / 100))]


class Coverage:
    """Counts pages by tier and by slot.

    Args:
        tiers: names of the tiers, best first.
    """

    def __init__(self, tiers: Sequence[str]) -> None:
        self._tiers = tiers
        self._by_tier: dict[int, int] = {}
        self._by_slot: dict[str, int] = {}

    def note(self, slot: str, rank: int) -> None:
        """Count a page; called for each one, so it does as little as possible."""
        tier, by_tier = (rank + PRIORITY_LIMIT) // TIER_WIDTH, self._by_tier
        by_tier[tier] = by_tier.get(tier, 0) + 1
        try:
            self._by_slot[slot] += 1
        except KeyError:
            if len(self._by_slot) < MOST_COUNTED:
                self._by_slot[slot] = 1

    @property
    def pages(self) -> int:
        """Number of all pages."""
        return sum(self._by_tier.values())

    def tiers(self) -> Mapping[str, int]:
        """Return the number of pages by tier."""
        found = Counter[str]()
        for tier, count in sorted(self._by_tier.items()):
            found[self._tiers[max(0, min(tier, len(self._tiers) - 1))]] += count
        return dict(found)

    def slots(self) -> Mapping[str, int]:
        """Return the number of pages of the slots with the most pages, and of all others together."""
        named = ((count, slot) for slot, count in self._by_slot.items() if len(slot) <= LONGEST_NAME)
        first = {slot: count for count, slot in nlargest(MOST_SHOWN, named)}
        rest = self.pages - sum(first.values())
        return {**first, OTHERS: rest} if rest else first

    def stats(self) -> Mapping[str, int]:
        """Return the numbers of pages by tier and by slot, as stats."""
        return {
            stat.replace(part, name): count
            for stat, part, counts in (
                (DONE_TIER_STAT, "<tier>", self.tiers()),
                (DONE_SLOT_STAT, "<slot>", self.slots()),
            )
            for name, count in counts.items()
        }


class RunReports:
    """Reports to the frontier when this worker has joined, about every ten seconds, and when it closes.

    A report is stored beside the exchanges, which don't wait for it. A report that fails isn't repeated, since the
    next one has the same figures and more.
    """

    def __init__(
        self, crawler: Crawler, config: Config, pump: Pump[Request], clock: Callable[[], float] = monotonic
    ) -> None:
        assert crawler.stats is not None and crawler.spider is not None
        self._stats = StatCounter(crawler.stats)
        self._log = CrawlLog(logger, crawler.spider)
        self._spider = crawler.spider.name
        self._config = config
        self._pump = pump
        self._clock = clock
        self._began_at = self._due_at = self._sample_at = clock()
        self._running: Deferred[Any] | None = None
        self._stored = Figures()
        self._is_refused = self._has_failed = False
        self.coverage = Coverage(config.tiers)

    def look(self) -> None:
        """Send a report if one is due; call it once a second."""
        now = self._clock()
        if self._pump.frontier.is_local or self._running is not None or self._pump.is_away or now < self._due_at:
            return
        with self._log.guard(_HISTORY):
            self._send(self._report(), now)

    def _send(self, report: Report, now: float) -> None:
        figures = replace(report.figures, latency=())
        if figures == self._stored and now < self._sample_at:
            return
        self._due_at = now + _pause_s(now - self._began_at)
        running = self._running = self._pump.runner.start(self._pump.frontier.record(report))
        running.addCallback(self._note_stored, figures)
        running.addErrback(self._note_failed)

    def _note_stored(self, sample_in_s: float, figures: Figures) -> None:
        self._running, self._is_refused = None, False
        self._stored, self._sample_at = figures, self._clock() + min(sample_in_s, LATEST_S)

    def _note_failed(self, failure: Failure) -> None:
        self._running, error = None, failure.value
        was_refused, self._is_refused = self._is_refused, isinstance(error, FrontierRefused)
        # Exchanges log errors that concern all calls. Reports wait during an outage; if the next one is refused, too,
        # only reports are.
        is_outage = isinstance(error, FrontierUnavailable) and not (was_refused and self._is_refused)
        if is_outage or self._has_failed:
            return
        self._has_failed = True
        if isinstance(error, PrioQueueError):
            self._log.warning("This run is missing in the run history: %s", error)
        else:
            self._log.error("Unexpected error in a report on this run", exc_info=failure_to_exc_info(failure))

    def last(self, reason: str) -> Report | None:
        """Return the last report, None in process.

        Args:
            reason: why the spider is closed.
        """
        if not self._pump.frontier.is_local:
            with self._log.guard(_HISTORY):
                # Without a reason the run would not count as closed.
                return self._report(reason[:LONGEST_REASON] or "no reason")
        return None

    def close(self) -> None:
        """Stop, and add the coverage to the stats."""
        if self._running is not None:
            self._has_failed = True
            self._running.cancel()
        for name, count in self.coverage.stats().items():
            self._stats.set(name, count)

    def _report(self, reason: str = "") -> Report:
        found = {
            name: number
            for name, value in self._stats.read().items()
            if len(name) <= LONGEST_NAME
            and (number := number_of(value)) is not None
            and (number >= 0 or name not in COUNTS)
        }
        numbers = {**dict(islice(found.items(), MOST_STATS)), **self.coverage.stats()}

        def total(*names: str) -> int:
            return sum(int(found.get(name, 0)) for name in names)

        confidence = [total(name) for name in CONFIDENCE_STATS]
        figures = Figures(
            spider=self._spider,
            version=__version__,
            pages=self.coverage.pages,
            items=total(*_ITEMS),
            errors=total(*_ERRORS),
            retries=total(*_RETRIES),
            escalations=total(ESCALATED_STAT),
            dead=total(*DEAD_STATS.values()),
            latency=tuple(self._pump.round_trips.counts),
            confidence=confidence if any(confidence) else (),
            tiers=self.coverage.tiers(),
            slots=self.coverage.slots(),
            settings=self._config.shown,
            reason=reason,
        )
        return Report(figures, numbers)

    def log_totals(self, totals: FleetTotals) -> None:
        """Log the totals of all runs, in the form of Scrapy's own stats, unless Scrapy's are all there is."""
        if totals.runs < 2 or not self._config.dumps_stats:
            return
        lost = f", lost, and counted up to their last report: {totals.lost}" if totals.lost else ""
        times = {"elapsed_time_seconds": totals.seconds, "start_time": _time(totals.began_ms)}
        self._log.info(
            "Dumping the stats of all workers of frontier %(name)s (runs: %(runs)d, machines: %(hosts)d%(lost)s):\n"
            "%(stats)s",
            {
                "name": in_a_line(self._config.name),
                "runs": totals.runs,
                "hosts": totals.hosts,
                "lost": lost,
                "stats": pformat({**totals.stats, **times, "finish_time": _time(totals.ended_ms)}),
            },
        )


def _pause_s(age_s: float) -> float:
    return max(FIRST_S, min(LAST_S, age_s / 10)) * random.uniform(1 - JITTER, 1 + JITTER)


def _time(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1000, timezone.utc)
