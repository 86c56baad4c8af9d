"""When a worker has nothing to do though the crawl goes on: `spider_idle` for its spider, and the time it waits."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic

from scrapy import signals
from scrapy.crawler import Crawler
from scrapy.exceptions import CloseSpider, DontCloseSpider
from twisted.python.failure import Failure

from scrapy_prioqueue.engine import Engine

LOOK_S = 1.0
"""Seconds between two looks."""

SIGNAL_S = 5.0
"""Seconds between two signals of a worker that stays idle, as between two heartbeats of Scrapy's engine."""


class Idleness:
    """Looks at the engine once a second, and sends `spider_idle` where the engine doesn't, since others work.

    At the end of the crawl the engine sends the signal itself.

    Args:
        has_requests: tells whether requests wait to be started, here or in the frontier, as far as is known; Scrapy
            sends no signal then.
    """

    def __init__(
        self,
        crawler: Crawler,
        engine: Engine,
        has_requests: Callable[[], bool],
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._crawler = crawler
        self._engine = engine
        self._has_requests = has_requests
        self._clock = clock
        self._looked_at = clock()
        self._signalled_at: float | None = None
        self.has_worked = False
        """A request was handed to the engine since the last look."""
        self.since: float | None = None
        """Since when nothing runs here, None if something does."""
        self.waited_s = 0.0
        """Seconds without anything to do, in all."""

    def look(self) -> None:
        """Take note of what happens; once a second."""
        now, looked_at = self._clock(), self._looked_at
        self._looked_at = now
        has_worked, self.has_worked = self.has_worked, False
        if has_worked or not self._engine.is_at_rest:
            self.since = None
            return
        self.since = looked_at if self.since is None else self.since
        self.waited_s += now - looked_at
        if self._is_due(now, self.since) and self._engine.may_signal_idle and not self._has_requests():
            self._signalled_at = now
            self._signal()

    def _is_due(self, now: float, since: float) -> bool:
        last = self._signalled_at
        return last is None or last < since or now - last >= SIGNAL_S

    def _signal(self) -> None:
        """Let the spider feed the crawl, or close this worker with a reason of its own, as the engine does."""
        expected = (DontCloseSpider, CloseSpider)
        results = self._crawler.signals.send_catch_log(
            signals.spider_idle, spider=self._crawler.spider, dont_log=expected
        )
        raised = [result.value for _, result in results if isinstance(result, Failure)]
        closings = [error for error in raised if isinstance(error, CloseSpider)]
        if closings and not any(isinstance(error, DontCloseSpider) for error in raised):
            self._engine.close_spider(closings[-1].reason)
