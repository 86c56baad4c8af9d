"""A log line about the whole crawl at an interval, beside that of Scrapy's LogStats about this worker."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from time import monotonic

from scrapy import Request, Spider

from scrapy_prioqueue.frontier.base import Depth
from scrapy_prioqueue.logs import CrawlLog, event
from scrapy_prioqueue.printable import duration, in_a_line
from scrapy_prioqueue.pump.pump import Pump

logger = logging.getLogger(__name__)

COUNTS_AGE_S = 5.0
"""Maximum age of the counts that are logged, in seconds; a worker asks for newer ones only if they are older."""

COUNTS = ("pending", "delayed", "leased", "done", "dead", "accepted", "workers")


class FleetLog:
    """Logs the counts of the crawl, its rates since the last line, and the time left.

    Args:
        interval_s: seconds between two lines, 0 for none.
        clock: monotonic, in seconds.
    """

    def __init__(
        self, spider: Spider, pump: Pump[Request], interval_s: float, clock: Callable[[], float] = monotonic
    ) -> None:
        self._log = CrawlLog(logger, spider)
        self._pump = pump
        self._interval_s = interval_s
        self._clock = clock
        self.begin(Depth())

    def begin(self, depth: Depth) -> None:
        """Begin with these counts."""
        self._last, self._last_at = depth, self._clock()
        self._due_at = self._last_at + self._interval_s

    def look(self) -> None:
        """Log a line if it is due; to be called once a second."""
        now = self._clock()
        if not self._interval_s or now < self._due_at or not self._pump.refresh(COUNTS_AGE_S):
            return
        self._due_at = max(self._due_at + self._interval_s, now)
        depth, rates = self._pump.depth, {}
        if not self._pump.is_away:
            rates = _rates(self._last, depth, now - self._last_at)
            self._last, self._last_at = depth, now
        self._report(depth, rates)

    def _report(self, depth: Depth, rates: Mapping[str, float]) -> None:
        counts = {name: getattr(depth, name) for name in COUNTS}
        drained = rates.get("drained_per_s", 0.0)
        left_s = depth.unfinished / drained if drained > 0 else None
        self._log.info(
            "Crawl in frontier %(name)s: %(pending)d pending, %(delayed)d delayed, %(leased)d leased,"
            " %(done)d done%(done_rate)s, %(dead)d dead, %(accepted)d accepted%(accepted_rate)s,"
            " workers alive: %(workers)d; %(outlook)s",
            {
                **counts,
                "name": in_a_line(self._pump.frontier.config.name),
                "done_rate": _per_minute(rates.get("done_per_s")),
                "accepted_rate": _per_minute(rates.get("accepted_per_s")),
                "outlook": self._outlook(depth, drained, left_s),
            },
            extra=event("fleet", **counts, **rates, left_s=left_s, is_current=not self._pump.is_away),
        )

    def _outlook(self, depth: Depth, drained: float, left_s: float | None) -> str:
        if self._pump.is_away:
            return "as last known, since the server doesn't answer"
        if not depth.unfinished:
            return "nothing left"
        if self._pump.is_paused:
            return "paused by an operator"
        if left_s is not None:
            return f"about {duration(left_s)} left at this rate"
        return "growing" if drained < 0 else "time left unknown"


def _rates(last: Depth, depth: Depth, seconds: float) -> dict[str, float]:
    """Return the changes per second; none if the counters have begun at 0 again, as after the server has lost them."""
    if depth.accepted < last.accepted or depth.done < last.done or seconds <= 0:
        return {}
    return {
        "done_per_s": (depth.done - last.done) / seconds,
        "accepted_per_s": (depth.accepted - last.accepted) / seconds,
        "drained_per_s": (last.unfinished - depth.unfinished) / seconds,
    }


def _per_minute(per_s: float | None) -> str:
    return "" if per_s is None else f" (at {60 * per_s:.0f}/min)"
