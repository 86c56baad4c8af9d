"""Pages that may never end: warns of them, reports them to the frontier, and doesn't wait for them when closing."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Sequence
from time import monotonic
from types import CodeType

from scrapy import Request
from scrapy.crawler import Crawler

from scrapy_prioqueue.download_slots import DOWNLOADING, WAITING_FOR_SLOT
from scrapy_prioqueue.engine import Engine, StatCounter
from scrapy_prioqueue.frontier.base import Lease
from scrapy_prioqueue.frontier.runs import number_of
from scrapy_prioqueue.frontier.waits import SlowPage
from scrapy_prioqueue.hints import frontier_command
from scrapy_prioqueue.logs import CrawlLog
from scrapy_prioqueue.printable import in_a_line
from scrapy_prioqueue.pump.pump import Pump
from scrapy_prioqueue.queues.verdicts import was_handed_out
from scrapy_prioqueue.settings import Config
from scrapy_prioqueue.stats import ABANDONED_STAT, ENQUEUED_STAT, SLOW_STAT

logger = logging.getLogger(__name__)

PROGRESS_STATS = ("item_scraped_count", "response_received_count", ENQUEUED_STAT)
"""Stats that show progress of a page that takes long."""

_IN_SLOT = (DOWNLOADING, WAITING_FOR_SLOT)
"""Stages that end by themselves, since downloads have a time-out."""


class SlowPages:
    """Checks the requests in progress once a second.

    Args:
        lease_of: returns the lease of a request in progress, None if it has none.
        give_up: called to abandon a request of a spider that closes; returns whether it will be fetched again.
    """

    def __init__(
        self,
        crawler: Crawler,
        config: Config,
        engine: Engine,
        pump: Pump[Request],
        lease_of: Callable[[Request], Lease | None],
        give_up: Callable[[Request], bool],
        clock: Callable[[], float] = monotonic,
    ) -> None:
        assert crawler.stats is not None
        self._stats = StatCounter(crawler.stats)
        self._log = CrawlLog(logger, crawler.spider)
        self._slow_s = config.slow_page_s
        self._patience_s = config.close_timeout_s
        self._engine = engine
        self._pump = pump
        self._lease_of = lease_of
        self._give_up = give_up
        self._clock = clock
        self._since: dict[Request, float] = {}
        self._warn_at: dict[Request, float] = {}
        self._reported: set[int] | None = set()
        self._progress: object = None
        self._stuck_since = self._looked_at = clock()

    def look(self) -> None:
        """Run the check; call it once a second."""
        now = self._looked_at = self._clock()
        self._since = {request: self._since.get(request, now) for request in self._engine.in_progress}
        self._warn_at = {request: at for request, at in self._warn_at.items() if request in self._since}
        if self._slow_s:
            self._look_for_slow(now)
        if self._engine.is_closing:
            self._look_for_stuck(now)

    def _look_for_slow(self, now: float) -> None:
        slow = [request for request, since in self._since.items() if now - since >= self._slow_s]
        for request in slow:
            if now < self._warn_at.get(request, now):
                continue
            stage = self._engine.stage_of(request)
            if stage == WAITING_FOR_SLOT:
                # It waits for its turn, which will come.
                self._since[request] = now
            else:
                self._warn(request, now - self._since[request], stage)
                self._warn_at[request] = now + (now - self._since[request])
        if self._pump.take_blocked():
            # The heartbeat's thread has replaced our report.
            self._reported = None
        if slow or self._reported != set():
            self._report(now)

    def _warn(self, request: Request, age_s: float, stage: str) -> None:
        lease = self._lease_of(request)
        self._stats.count(SLOW_STAT)
        if lease is None or self._pump.frontier.is_local:
            remedy = "It keeps the crawl from ending"
        else:
            release = frontier_command(f"release {lease.lease_id}", self._pump.frontier.config.name)
            remedy = f"The crawl can't end before it; '{release}' gives it to other workers"
        self._log.warning(
            "%s (callback %s) has been in progress for %d s and is in %s: it may never end (PRIOQUEUE_SLOW_PAGE). %s",
            in_a_line(request),
            callback_of(request),
            age_s,
            stage,
            remedy,
        )

    def _report(self, now: float) -> None:
        """Report the slow pages to the frontier if they have changed."""
        known = self._pages(((request, self._engine.stage_of(request)) for request in self._warn_at), now)
        ids = {page.lease_id for page in known}
        self._pump.note_slow(ids)
        if ids != self._reported:
            self._pump.ask(lambda: self._pump.frontier.report_slow(known), lambda _: self._note_reported(ids))

    def _note_reported(self, ids: set[int]) -> None:
        self._reported = ids

    def _pages(self, requests: Iterable[tuple[Request, str]], now: float) -> Sequence[SlowPage]:
        """Return the pages of requests and their stages, as far as the frontier has leases of them."""
        leased = [(request, stage, self._lease_of(request)) for request, stage in requests]
        return [
            SlowPage(
                *(lease.lease_id, request.url, callback_of(request), stage),
                age_s=now - self._since.get(request, self._looked_at),
            )
            for request, stage, lease in leased
            if lease is not None and lease.lease_id >= 0
        ]

    def at_work(self, running: Collection[CodeType]) -> Sequence[SlowPage]:
        """Return the pages whose code may be running; called by the thread that finds the loop blocked.

        Args:
            running: the code on the loop's stack; if it contains callbacks of pages, only these pages are returned.
        """
        requests = self._engine.being_scraped
        certain = [request for request in requests if self._engine.code_of(request) in running]
        stage = "its callback or an item pipeline, which blocks the event loop"
        return self._pages(((request, stage) for request in certain or requests), self._clock())

    # While the spider is closing

    def _look_for_stuck(self, now: float) -> None:
        """Abandon pages if there has been no progress for `PRIOQUEUE_CLOSE_TIMEOUT` seconds."""
        stats = self._stats.read()
        progress = (frozenset(map(id, self._since)), *(number_of(stats.get(name)) for name in PROGRESS_STATS))
        if progress != self._progress or self._awaits_download(now):
            self._progress, self._stuck_since = progress, now
        if now - self._stuck_since < self._patience_s:
            return
        for request, since in list(self._since.items()):
            stage = self._engine.stage_of(request)
            if stage not in _IN_SLOT or self._is_slow(since, now):
                self._leave(request, now - since, stage)

    def _awaits_download(self, now: float) -> bool:
        """Return whether a callback or pipeline is downloading something, such as an image."""
        return any(
            not (was_handed_out(request) or self._is_slow(since, now)) and self._engine.stage_of(request) in _IN_SLOT
            for request, since in self._since.items()
        )

    def _is_slow(self, since: float, now: float) -> bool:
        return 0 < self._slow_s <= now - since

    def _leave(self, request: Request, age_s: float, stage: str) -> None:
        del self._since[request]
        is_stored = self._give_up(request)
        fate = "it is released and will be fetched again" if is_stored else "it is lost with this process"
        self._log.warning(
            "Closing without %s (callback %s), which has been in progress for %d s and is in %s. There has been no"
            " progress for %g s (PRIOQUEUE_CLOSE_TIMEOUT), so %s",
            in_a_line(request),
            callback_of(request),
            age_s,
            stage,
            self._patience_s,
            fate,
        )
        self._stats.count(ABANDONED_STAT)


def callback_of(request: Request) -> str:
    """Return the name of a request's callback."""
    return "parse" if request.callback is None else str(getattr(request.callback, "__name__", request.callback))
