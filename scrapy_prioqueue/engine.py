"""The only use of Scrapy's private engine state, and flags for differences between Scrapy's versions."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from functools import cached_property
from inspect import isawaitable, iscoroutinefunction
from pathlib import Path
from time import time
from types import CodeType
from typing import TYPE_CHECKING, Any

from pydispatch import dispatcher
from scrapy import Request, Spider, signals
from scrapy.core.engine import ExecutionEngine
from scrapy.core.scraper import Scraper
from scrapy.extensions.closespider import CloseSpider
from scrapy.extensions.feedexport import FeedExporter, FileFeedStorage
from scrapy.statscollectors import StatsCollector
from scrapy.utils.asyncgen import as_async_generator
from scrapy.utils.defer import deferred_from_coro, maybe_deferred_to_future
from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from scrapy_prioqueue.download_slots import DownloadSlots
from scrapy_prioqueue.printable import in_a_line
from scrapy_prioqueue.runtime import call_later

if TYPE_CHECKING:
    from scrapy.crawler import Crawler
    from scrapy.http import Response

logger = logging.getLogger(__name__)

HAS_ASYNC_CLOSE_SPIDER = iscoroutinefunction(getattr(ExecutionEngine, "close_spider_async", None))
"""Whether `close_spider_async()` has replaced `close_spider()` (2.14)."""

HAS_ASYNC_ITEM_PROCESSING = hasattr(Scraper, "start_itemproc_async")
"""Whether `start_itemproc_async()` has replaced `start_itemproc()`, and pipelines may close in coroutines (2.14)."""

STATS_ATTRIBUTE = "_stats"
"""Attribute of Scrapy's stats collectors with their dictionary."""

UNLIMITED_CONCURRENCY = 256
"""Stands for `CONCURRENT_REQUESTS = 0`, no limit, where the number of requests to hold is computed."""


class _InProgress(set[Request]):
    """The engine's set of requests in progress, which reports removals.

    Args:
        is_scraped: whether the response of a request is in a callback or pipeline.
    """

    def __init__(
        self, requests: set[Request], on_done: Callable[[Request], None], is_scraped: Callable[[Request], bool]
    ) -> None:
        super().__init__(requests)
        self._on_done = on_done
        self._is_scraped = is_scraped

    def remove(self, request: Request) -> None:
        # An abandoned request has been removed already and may still end. One that is being scraped isn't done: its
        # callback has fetched it again by `engine.download()`.
        if request in self and not self._is_scraped(request):
            set.remove(self, request)
            self._on_done(request)


class _Finds:
    """A spider middleware, next to the spider, that reports on which page each request was found.

    Scrapy 2.13 passes the spider to its methods, later versions only if they require it.
    """

    def __init__(self, on_found: Callable[[Request, Request], None]) -> None:
        self._on_found = on_found

    def process_spider_output(
        self, response: Response, result: Iterable[Any], spider: Spider | None = None
    ) -> Iterator[Any]:
        for found in result:
            self._note(found, response)
            yield found

    async def process_spider_output_async(
        self, response: Response, result: AsyncIterator[Any], spider: Spider | None = None
    ) -> AsyncIterator[Any]:
        async for found in result:
            self._note(found, response)
            yield found

    def _note(self, found: object, response: Response) -> None:
        if isinstance(found, Request) and response.request is not None:
            self._on_found(found, response.request)


def watch_items(crawler: Crawler, during: Callable[[Any, object], AbstractContextManager[None]]) -> None:
    """Enter `during` while an item is in the pipelines, with the item and the response or failure it comes from.

    The latter is None for items of `start()`.
    """
    assert crawler.engine is not None
    scraper: Any = crawler.engine.scraper
    if HAS_ASYNC_ITEM_PROCESSING:
        process_async = scraper.start_itemproc_async

        async def followed_async(item: Any, *, response: object) -> None:
            with during(item, response):
                await process_async(item, response=response)

        scraper.start_itemproc_async = followed_async
    else:
        process = scraper.start_itemproc

        def followed(item: Any, *, response: object) -> Deferred[None]:
            return deferred_from_coro(_process(item, response))

        async def _process(item: Any, response: object) -> None:
            with during(item, response):
                await maybe_deferred_to_future(process(item, response=response))

        scraper.start_itemproc = followed


def _spare_waiting(extension: Any, waited_s: Callable[[], float]) -> None:
    """Wrap the method that Scrapy's extension calls every `CLOSESPIDER_TIMEOUT_NO_ITEM` seconds."""
    look, busy_s, waited_before_s = extension._count_items_produced, 0.0, waited_s()

    def followed(*arguments: Any) -> None:
        nonlocal busy_s, waited_before_s
        waited_now_s = waited_s()
        busy_s += extension.timeout_no_item - (waited_now_s - waited_before_s)
        waited_before_s = waited_now_s
        if extension.items_in_period or busy_s >= extension.timeout_no_item:
            busy_s = 0.0
            look(*arguments)

    extension._count_items_produced = followed


class Engine:
    """The scheduler's access to Scrapy's engine and downloader.

    It is created when the scheduler opens: by then the engine has its slot and its `start()` iterator.
    """

    def __init__(self, crawler: Crawler) -> None:
        engine = crawler.engine
        assert engine is not None
        self._crawler = crawler
        self._engine: Any = engine
        self._downloader: Any = engine.downloader
        self.slots = DownloadSlots(crawler)
        self._abandoned: set[Request] = set()

    @property
    def concurrency(self) -> int:
        """Number of requests that run at a time; components may change it at any time."""
        return int(self._downloader.total_concurrency or UNLIMITED_CONCURRENCY)

    def watch_done(self, on_done: Callable[[Request], None]) -> None:
        """Call `on_done` when a request is done: callback exhausted, items through the pipelines."""
        slot, scraper = self._engine._slot, self._engine.scraper
        slot.inprogress = _InProgress(
            slot.inprogress, on_done, lambda request: scraper.slot is not None and request in scraper.slot.active
        )

    def watch_found(self, on_found: Callable[[Request, Request], None]) -> None:
        """Call `on_found` with each request that a callback yields and the page's request, before it is scheduled.

        It isn't called for requests of errbacks and middlewares.
        """
        self._engine.scraper.spidermw._add_middleware(_Finds(on_found))

    def watch_results(self, on_result: Callable[[object, Request, float], None]) -> None:
        """Call `on_result` with a response or failure before the spider sees it, its request, and the Unix time.

        The request is the one in progress, which may differ from the response's own.
        """
        scraper = self._engine.scraper
        enqueue = scraper.enqueue_scrape

        def followed(result: object, request: Request, *others: Any) -> Any:
            on_result(result, request, time())
            return enqueue(result, request, *others)

        scraper.enqueue_scrape = followed

    def watch_replaced(self, on_replaced: Callable[[Request], None]) -> None:
        """Call `on_replaced` with a request in progress for which a downloader middleware has returned another one."""
        handle = self._engine._handle_downloader_output

        def followed(result: object, request: Request) -> Any:
            if isinstance(result, Request):
                on_replaced(request)
            return handle(result, request)

        self._engine._handle_downloader_output = followed

    def watch_errors(self, on_error: Callable[[Request, Failure], None]) -> None:
        """Call `on_error` with the request in progress and the error of its callback, errback or spider middleware."""
        scraper = self._engine.scraper
        handle = scraper.handle_spider_error

        def followed(failure: Failure, request: Request, *others: Any) -> Any:
            on_error(request, failure)
            return handle(failure, request, *others)

        scraper.handle_spider_error = followed

    def watch_start(
        self,
        on_request: Callable[[Any], None],
        may_go_on: Callable[[], Deferred[None] | None],
        on_end: Callable[[bool], None],
    ) -> None:
        """Follow `start()`.

        Args:
            on_request: called with each result of `start()`, right before it is scheduled.
            may_go_on: called before `start()` is read further, which waits for the Deferred that it may return.
            on_end: called when `start()` has ended, with whether it was exhausted; if not, it may have raised.
        """
        source = self._engine._start
        if source is None:
            on_end(True)
        else:
            self._engine._start = self._followed(source, on_request, may_go_on, on_end)

    async def _followed(
        self,
        source: AsyncIterator[Any],
        on_request: Callable[[Any], None],
        may_go_on: Callable[[], Deferred[None] | None],
        on_end: Callable[[bool], None],
    ) -> AsyncIterator[Any]:
        is_used_up = False
        try:
            while True:
                waiting = may_go_on()
                if waiting is not None:
                    await maybe_deferred_to_future(waiting)
                if self.is_closing:
                    # The run that resumes the crawl reads the rest.
                    return
                try:
                    yielded = await source.__anext__()
                except StopAsyncIteration:
                    is_used_up = True
                    return
                on_request(yielded)
                yield yielded
        finally:
            on_end(is_used_up)

    async def as_start(self, requests: Iterable[Request]) -> AsyncIterator[Any]:
        """Return the results of the spider middlewares for requests, as if `start()` had yielded these."""
        methods = self._engine.scraper.spidermw.methods
        deprecated = methods.get("process_start_requests")
        if deprecated:
            # Older versions of Scrapy call these instead of `process_start` if a middleware has only the old method.
            found = iter(requests)
            for process in deprecated:
                found = process(found, self._crawler.spider)
            for each in found:
                yield each
            return
        start: Any = as_async_generator(requests)
        for process in methods["process_start"]:
            start = process(start)
            if isawaitable(start):
                start = await start
        async for each in start:
            yield each

    def wake(self) -> None:
        """Make the engine ask for requests at its next turn, or notice that there are none."""
        slot = self._engine._slot
        if slot is not None and slot.closing is None:
            slot.nextcall.schedule()

    @property
    def is_closing(self) -> bool:
        """Whether the spider is being closed, so that nothing new is started."""
        slot = self._engine._slot
        return slot is None or slot.closing is not None

    @property
    def is_at_rest(self) -> bool:
        """Whether nothing is being downloaded or processed here."""
        slot = self._engine.scraper.slot
        return slot is not None and slot.is_idle() and not self._downloader.active

    @property
    def may_signal_idle(self) -> bool:
        """Whether the engine would send `spider_idle` if its scheduler had nothing more."""
        engine = self._engine
        slot = engine._slot
        is_open = slot is not None and slot.closing is None and engine.running and not engine.paused
        return is_open and slot.close_if_idle and engine._start is None and self.is_at_rest

    @property
    def reads_start(self) -> bool:
        """Whether `start()` may yield more."""
        return self._engine._start is not None

    @property
    def in_progress(self) -> Collection[Request]:
        """Requests between the downloader and the end of the item pipelines."""
        slot = self._engine._slot
        return () if slot is None else tuple(slot.inprogress)

    @property
    def being_scraped(self) -> Sequence[Request]:
        """Requests whose responses are in spider middlewares, callbacks or item pipelines; safe in any thread."""
        slot = self._engine.scraper.slot
        return () if slot is None else tuple(slot.active)

    def code_of(self, request: Request) -> CodeType | None:
        """Return the code of a request's callback, None if that isn't a function."""
        callback = request.callback or getattr(self._crawler.spider, "parse", None)
        return getattr(callback, "__code__", None)

    def stage_of(self, request: Request) -> str:
        """Return the stage of a request in progress, for messages."""
        stage = self.slots.stage_of(request)
        if stage is not None:
            return stage
        scraper_slot = self._engine.scraper.slot
        if scraper_slot is not None and scraper_slot.itemproc_size:
            return "its callback, or an item pipeline"
        return "its callback"

    def abandon(self, request: Request) -> None:
        """Count a request in progress as done, since it may never end."""
        slot, scraper_slot = self._engine._slot, self._engine.scraper.slot
        if slot is None or request not in slot.inprogress:
            return
        set.discard(slot.inprogress, request)
        self._downloader.active.discard(request)
        if not self._abandoned:
            scraper_slot.is_idle = lambda: self._scrapes_nothing(scraper_slot)
        self._abandoned.add(request)
        if slot.closing is None:
            slot.nextcall.schedule()
        elif not slot.closing.called:
            slot._maybe_fire_closing()

    def _scrapes_nothing(self, slot: Any) -> bool:
        """Return what the scraper's own method would, without the requests that were abandoned."""
        has_closed = slot.closing is not None and slot.closing.called
        return not (has_closed or slot.queue or slot.active - self._abandoned)

    def hold_back_empty(self, is_awaited: Callable[[], bool]) -> None:
        """Keep the engine from asking for a request, and so from sending `scheduler_empty`, while one may arrive soon.

        Args:
            is_awaited: called right before the engine asks; returns whether one may arrive.
        """
        start = self._engine._start_scheduled_request

        def followed() -> bool:
            return False if is_awaited() else bool(start())

        self._engine._start_scheduled_request = followed

    @property
    def reports_empty(self) -> bool:
        """Whether `scheduler_empty` has receivers; looked up in pydispatch's table, since its functions are slower."""
        senders = (id(self._crawler), id(dispatcher.Any))
        return any(dispatcher.connections.get(sender, {}).get(signals.scheduler_empty) for sender in senders)

    def spare_waiting(self, waited_s: Callable[[], float]) -> None:
        """Let `CLOSESPIDER_TIMEOUT_NO_ITEM` count only the time in which this worker had work.

        Args:
            waited_s: returns the total seconds without work.
        """
        for extension in self._extensions:
            if isinstance(extension, CloseSpider) and hasattr(extension, "timeout_no_item"):
                _spare_waiting(extension, waited_s)

    def feed_files(self) -> Iterator[Any]:
        """Yield the open file objects of the feeds (`FEEDS`, `-o`), as storages or post-processing created them."""
        for feed in self.feeds:
            yield from (slot.file for slot in feed.slots if slot.file is not None)

    def overwritten_feeds(self) -> Iterator[Path]:
        """Yield the files that Scrapy empties at the first item (`-O`)."""
        for feed in self.feeds:
            for slot in feed.slots:
                if isinstance(slot.storage, FileFeedStorage) and slot.storage.write_mode == "wb":
                    yield Path(slot.storage.path)

    @cached_property
    def feeds(self) -> Sequence[FeedExporter]:
        """The extensions that write feeds, none if nothing is to be written."""
        return [extension for extension in self._extensions if isinstance(extension, FeedExporter)]

    @property
    def _extensions(self) -> Sequence[Any]:
        extensions: Any = self._crawler.extensions
        return extensions.middlewares if extensions is not None else ()

    @property
    def is_paused(self) -> bool:
        """Whether `engine.pause()` was called: nothing new is started until `unpause()`."""
        return bool(self._engine.paused)

    def free_places(self) -> int:
        """Return how many requests could start now, regardless of their slots."""
        # `scrapy shell` runs the engine before it opens a spider.
        is_open = self._engine.running and self._engine.scraper.slot is not None
        if not is_open or self._engine.needs_backout():
            return 0
        return int(self.concurrency - len(self._downloader.active))

    @property
    def active(self) -> Collection[Request]:
        """Requests that the downloader has accepted and not finished."""
        active: Collection[Request] = self._downloader.active
        return active

    def close_spider(self, reason: str) -> None:
        """Close the spider, now or as soon as the engine runs."""

        def close_soon() -> None:
            # Later, since the engine may be in the middle of a call to the scheduler, or of its start.
            call_later(0, lambda: self._close_spider(reason))

        if self._engine.running:
            close_soon()
        else:
            self._crawler.signals.connect(close_soon, signals.engine_started, weak=False)

    def _close_spider(self, reason: str) -> None:
        if self.is_closing:
            return
        if HAS_ASYNC_CLOSE_SPIDER:
            deferred_from_coro(self._engine.close_spider_async(reason=reason))
        else:
            self._engine.close_spider(self._engine.spider, reason)


class StatCounter:
    """Counts in Scrapy's stats; the only use of them that changes anything.

    It never raises: code of the spider may set any stat to anything, and a collector may be the project's own. A page
    must still end, and a worker must still leave. What can't be counted is logged once for each stat.

    Since Scrapy 2.14 the default collector checks for a deprecated argument first, which takes longer than the rest of
    the scheduler's work. So its dictionary is changed directly; for any other collector its methods are called.
    """

    def __init__(self, stats: StatsCollector) -> None:
        self._collector = stats
        self._failed: set[str] = set()
        kind = type(stats)
        is_scrapys = kind.inc_value is StatsCollector.inc_value and kind.get_stats is StatsCollector.get_stats
        self._attributes: dict[str, Any] = (
            vars(stats) if is_scrapys and STATS_ATTRIBUTE in vars(stats) else {"inc_value": None}
        )

    def add(self, one: str, other: str) -> None:
        """Add 1 to two stats."""
        try:
            if "inc_value" not in self._attributes:
                # Looked up each time, since other code may replace the dictionary, or `inc_value()` of this collector.
                stats: dict[str, Any] = self._attributes[STATS_ATTRIBUTE]
                stats[one], stats[other] = stats.get(one, 0) + 1, stats.get(other, 0) + 1
                return
        except Exception:
            pass  # From one of the additions, before anything was stored.
        self.count(one)
        self.count(other)

    def count(self, name: str, change: int = 1) -> None:
        """Add to a stat."""
        try:
            self._collector.inc_value(name, change)
        except Exception as error:
            self._note_failed(name, error)

    def set(self, name: str, value: float) -> None:
        """Set a stat."""
        try:
            self._collector.set_value(name, value)
        except Exception as error:
            self._note_failed(name, error)

    def read(self) -> dict[str, Any]:
        """Return a copy of the stats whose names are strings; empty if they can't be read."""
        try:
            # A copy is made in one step, since another thread may read while the crawl changes the stats.
            found = dict(self._collector.get_stats())
        except Exception as error:
            self._note_failed("", error)
            return {}
        return {name: value for name, value in found.items() if isinstance(name, str)}

    def _note_failed(self, name: str, error: Exception) -> None:
        if name in self._failed:
            return
        self._failed.add(name)
        logger.warning(
            "%s: %s. Code of the project has probably set that stat, or its collector has a bug",
            f"Stat {name} can't be counted" if name else "The stats can't be read",
            in_a_line(repr(error)),
        )
