"""Programs for the engine's tests: crawls by Scrapy's own scheduler in which `Engine` records what it observes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

from scrapy import Request, Spider, signals
from scrapy.core.scheduler import Scheduler
from scrapy.crawler import CrawlerProcess
from scrapy.http import Response
from twisted.internet.defer import Deferred

from scrapy_prioqueue.engine import Engine
from scrapy_prioqueue.runtime import call_later
from tests.crawl.spiders import download

PAGES = ["data:,page-1", "data:,page-2", "data:,raises", "data:,page-3"]
ITEM_S = 0.05
HEARTBEAT_S = 5.0


def tell(*facts: object) -> None:
    """Write a line for the test."""
    print(*facts, flush=True)


class Shop(Spider):
    """Makes two items of each page, and a child of the first."""

    name = "shop"

    async def start(self) -> AsyncIterator[Any]:
        for url in PAGES:
            yield Request(url, dont_filter=True)
        yield {"item": "from start"}

    def parse(self, response: Response) -> Iterator[Any]:
        name = response.url.partition(",")[2]
        yield {"item": f"{name}/a"}
        if name == "page-1":
            yield Request("data:,child", dont_filter=True)
        if name == "raises":
            raise RuntimeError("a callback that fails")
        yield {"item": f"{name}/b"}


class Finder(Spider):
    """Finds a request on each page, in every way that Scrapy knows."""

    name = "finder"

    async def start(self) -> AsyncIterator[Any]:
        for name in ("sync", "async", "list", "coroutine"):
            yield Request(f"data:,{name}", getattr(self, f"parse_{name}"), dont_filter=True)
        yield Request("data:broken", self.parse, errback=self.parse_failure, dont_filter=True)

    def parse_sync(self, response: Response) -> Iterator[Any]:
        yield {"item": "sync"}
        yield child_of(response)
        yield child_of(response)

    async def parse_async(self, response: Response) -> AsyncIterator[Any]:
        yield {"item": "async"}
        yield child_of(response)

    def parse_list(self, response: Response) -> list[Any]:
        return [{"item": "list"}, child_of(response)]

    async def parse_coroutine(self, response: Response) -> list[Any]:
        return [{"item": "coroutine"}, child_of(response)]

    def parse_failure(self, failure: Any) -> Iterator[Any]:
        yield Request("data:,of-failure", self.parse, dont_filter=True)

    def parse(self, response: Response) -> Iterator[Any]:
        yield {"item": name_of(response.url)}


class Repeater(Spider):
    """Fetches the request of a page once more, in its callback."""

    name = "repeater"
    start_urls = ["data:,page"]

    async def parse(self, response: Response) -> AsyncIterator[Any]:
        assert response.request is not None
        again = await download(self, response.request)
        yield {"item": f"{name_of(again.url)}/a"}


def name_of(url: str) -> str:
    """Return what a data URL holds."""
    return url.partition(",")[2]


def child_of(response: Response) -> Request:
    """Return a request to be found on a page, whose callback is `parse`."""
    return Request(f"data:,of-{name_of(response.url)}", dont_filter=True)


class SlowPipeline:
    """Takes its time for each item."""

    async def process_item(self, item: Any, *_: object) -> Any:
        await asyncio.sleep(ITEM_S)
        tell("stored", item["item"])
        return item


class Watching(Scheduler):
    """Scrapy's scheduler, with an engine of ours beside it."""

    engine: Engine
    spider_class: type[Spider] = Shop

    def open(self, spider: Spider) -> Any:
        assert self.crawler is not None
        self.engine = Engine(self.crawler)
        self.watch()
        return super().open(spider)

    def watch(self) -> None:
        """Begin to watch."""


class WatchingDone(Watching):
    """Says when requests are done."""

    def watch(self) -> None:
        self.engine.watch_done(lambda request: tell("done", request.url.partition(",")[2]))


class WatchingRepeated(WatchingDone):
    """Says it where a page fetches its own request again."""

    spider_class = Repeater


class WatchingStart(Watching):
    """Says what comes from `start()`, and holds it back once."""

    def watch(self) -> None:
        self.is_held = False
        self.engine.watch_start(self.on_request, self.may_go_on, lambda is_used_up: tell("end of start", is_used_up))

    def on_request(self, yielded: Any) -> None:
        tell("yielded", getattr(yielded, "url", yielded))

    def may_go_on(self) -> Deferred[None] | None:
        if self.is_held:
            return None
        self.is_held = True
        gate: Deferred[None] = Deferred()

        def open_gate() -> None:
            tell("gate opens")
            gate.callback(None)

        call_later(0.1, open_gate)
        return gate

    def enqueue_request(self, request: Request) -> bool:
        tell("enqueued", request.url)
        return super().enqueue_request(request)


class WatchingFound(Watching):
    """Says what was found on which page, and what is enqueued."""

    spider_class = Finder

    def watch(self) -> None:
        self.found: dict[Request, Request] = {}
        self.taken: list[Request] = []
        self.engine.watch_found(self.found.__setitem__)

    def enqueue_request(self, request: Request) -> bool:
        page = self.found.get(request)
        # The page is known by the very request that was handed out.
        number = next((at for at, taken in enumerate(self.taken) if taken is page), None)
        tell("enqueued", name_of(request.url), "found on", None if number is None else name_of(self.taken[number].url))
        return super().enqueue_request(request)

    def next_request(self) -> Request | None:
        request = super().next_request()
        if request is not None:
            self.taken.append(request)
        return request


class HidingOnce(Watching):
    """Has nothing for a moment, though something is pending; then says that there is."""

    def watch(self) -> None:
        self.is_hiding = True
        call_later(0.2, self.show)

    def show(self) -> None:
        """Have something again, and say so."""
        self.is_hiding = False
        self.shown_at = time.monotonic()
        self.engine.wake()

    def next_request(self) -> Request | None:
        if self.is_hiding:
            return None
        request = super().next_request()
        if request is not None and hasattr(self, "shown_at"):
            tell("asked before the heartbeat", time.monotonic() - self.shown_at < HEARTBEAT_S / 2)
            del self.shown_at
        return request

    def has_pending_requests(self) -> bool:
        return self.is_hiding or super().has_pending_requests()


class ClosingEarly(Watching):
    """Refuses to crawl, before the engine runs, twice over."""

    def watch(self) -> None:
        tell("running at open", self.engine.free_places() > 0)
        self.engine.close_spider("refused")
        self.engine.close_spider("refused again")

    def has_pending_requests(self) -> bool:
        return True

    def next_request(self) -> Request | None:
        return None


class ClosingLate(Watching):
    """Closes the spider while it crawls."""

    def next_request(self) -> Request | None:
        request = super().next_request()
        if request is not None and request.url == PAGES[-1]:
            call_later(0, lambda: self.engine.close_spider("enough"))
        return request

    def has_pending_requests(self) -> bool:
        return True


class Looking(Watching):
    """Looks at slots and places while a page is fetched."""

    def next_request(self) -> Request | None:
        request = super().next_request()
        if request is not None and request.url == PAGES[0]:
            self.look(request)
        return request

    def look(self, request: Request) -> None:
        """Print what was observed."""
        engine = self.engine
        tell("concurrency", engine.concurrency, engine.slots.default_concurrency, engine.free_places())
        tell("slots", engine.slots.concurrency("own"), engine.slots.concurrency("other"))
        tell(
            "slot of",
            engine.slots.slot_of(request),
            engine.slots.slot_of(request.replace(meta={"download_slot": "own"})),
        )
        tell("closing", engine.is_closing, "paused", engine.is_paused)


def main(order: Path) -> None:
    """Crawl with the scheduler and the reactor that a file names."""
    kind, reactor = order.read_text().split()
    settings = {
        "SCHEDULER": f"{__name__}.{kind}",
        "TWISTED_REACTOR": reactor,
        "ITEM_PIPELINES": {f"{__name__}.SlowPipeline": 1} if "asyncio" in reactor else {},
        "TELNETCONSOLE_ENABLED": False,
        "LOG_LEVEL": "CRITICAL",
        "CONCURRENT_REQUESTS": 4,
        "CONCURRENT_REQUESTS_PER_DOMAIN": 3,
        "DOWNLOAD_DELAY": 0,
        "DOWNLOAD_SLOTS": {"own": {"concurrency": 2, "delay": 0}, "slow": {"delay": 1}},
    }
    process = CrawlerProcess(settings)
    crawler = process.create_crawler(globals()[kind].spider_class)
    crawler.signals.connect(closed, signals.spider_closed)
    process.crawl(crawler)
    process.start()


def closed(reason: str) -> None:
    """Print why the spider was closed."""
    tell("closed", reason)
