"""Drive one scheduler without downloading: a process that measures itself, and requests as crawls have them.

The crawler, its engine, dupefilter and settings are Scrapy's own; only the engine's calls of the scheduler are made
here, from within the spider's `start()`, so that the loop runs and nothing else does.
"""

from __future__ import annotations

import argparse
import asyncio
import ctypes
import gc
import json
import sys
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from scrapy import Request, Spider
from scrapy.core.engine import ExecutionEngine
from scrapy.crawler import Crawler, CrawlerProcess
from scrapy.http import HtmlResponse

LINKS = 20
"""Links of a page."""

PAGES = 16
"""Pages that are being worked on at a time."""

URL_LENGTH = 80


def url_of(number: int, hosts: int) -> str:
    """Return the URL of a page, `URL_LENGTH` characters long."""
    start = f"https://www.shop{number % hosts}.example/catalogue/"
    rest = f"{number * 2654435761 % 2**32:08x}/item-{number}"
    return start + "c" * (URL_LENGTH - len(start) - len(rest)) + rest


def requests_of(spider: Spider, numbers: Iterable[int], hosts: int, **others: Any) -> Iterator[Request]:
    """Yield requests as they come to a scheduler: with depth, half of them with a referer, some with arguments."""
    for number in numbers:
        meta = {"depth": 2 + number % 3}
        headers = {"Referer": url_of(number // LINKS * LINKS, hosts)} if number % 2 else None
        arguments = {"category": "shoes", "page": number % 50} if number % 5 == 0 else None
        callback = spider.parse if number % 3 else spider.parse_item  # type: ignore[attr-defined]
        yield Request(url_of(number, hosts), callback, meta=meta, headers=headers, cb_kwargs=arguments, **others)


def resident_bytes() -> int:
    """Return how much memory this process occupies, with nothing in it that could be given back."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096


class DrivenEngine(ExecutionEngine):
    """An engine that never asks its scheduler for anything."""

    def _start_scheduled_requests(self) -> None:
        pass


class DrivenCrawler(Crawler):
    """A crawler with that engine."""

    def _create_engine(self) -> ExecutionEngine:
        engine = DrivenEngine(self, lambda _: self.stop_async())
        # What a scheduler puts around it is part of what it costs.
        engine.scraper.enqueue_scrape = lambda *_: None  # type: ignore[method-assign,assignment]
        return engine


class Driver:
    """Does what the engine and the scraper do with a scheduler.

    Args:
        spider: whose engine has started.
    """

    def __init__(self, spider: Spider) -> None:
        engine: Any = spider.crawler.engine
        assert engine is not None and engine.scheduler is not None
        self._scheduler: Any = engine.scheduler
        self._in_progress: set[Request] = engine._slot.inprogress  # noqa: SLF001
        self._active: set[Request] = engine.downloader.active
        self._scrape: Callable[[object, Request], object] = engine.scraper.enqueue_scrape
        self._response = HtmlResponse("https://shop.example/")
        self._woken = asyncio.Event()
        engine._slot.nextcall.schedule = lambda *_: self._woken.set()  # noqa: SLF001
        # Spider middlewares that a scheduler has put in are part of what it costs.
        known = [one for one in engine.scraper.spidermw.middlewares if type(one).__module__.startswith("scrapy_prio")]
        self._followers = known

    async def take(self) -> Request:
        """Return the request that is started next."""
        while (request := self._scheduler.next_request()) is None:
            self._woken.clear()
            await asyncio.wait_for(self._woken.wait(), 5)
        self._in_progress.add(request)
        self._active.add(request)
        return request  # type: ignore[no-any-return]

    def downloaded(self, request: Request) -> None:
        """Hand the page to the spider."""
        self._active.discard(request)
        self._scrape(self._response, request)

    def finish(self, request: Request) -> None:
        """Remove a request that the spider is done with."""
        self._in_progress.remove(request)

    async def enqueue(self, requests: Iterable[Request], pages: Sequence[Request]) -> int:
        """Enqueue requests, a page's links at a time; return how many were taken."""
        taken, requests, turn = 0, iter(requests), 0
        enqueue = self._scheduler.enqueue_request
        while links := list(islice(requests, LINKS)):
            found: Iterable[Any] = links
            response = HtmlResponse(pages[turn].url, request=pages[turn])
            turn = (turn + 1) % len(pages)
            for follower in self._followers:
                found = follower.process_spider_output(response, found)
            for request in found:
                taken += enqueue(request)
            del links, request, found
            await asyncio.sleep(0)
        await self._settled()
        return taken

    async def dequeue(self, count: int) -> None:
        """Start and finish requests, `PAGES` of them at a time."""
        running: deque[Request] = deque()
        for _ in range(count):
            running.append(await self.take())
            if len(running) == PAGES:
                self._end(running.popleft())
                await asyncio.sleep(0)
        while running:
            self._end(running.popleft())
        await self._settled()

    def _end(self, request: Request) -> None:
        self.downloaded(request)
        self.finish(request)

    async def _settled(self) -> None:
        """Wait until a scheduler that talks to a server has told it everything."""
        outbox = getattr(getattr(getattr(self._scheduler, "_queue", None), "_pump", None), "outbox", ())
        while len(outbox):
            await asyncio.sleep(0.01)


class Clock:
    """Measures processor time of this process, all its threads."""

    def __init__(self) -> None:
        gc.collect()
        # Not what was prepared for the measurement, or looking for garbage would depend on how much that is.
        gc.freeze()
        self._started_s = time.process_time()

    def us_per(self, count: int) -> float:
        """Return microseconds since the start for one of so many requests."""
        return (time.process_time() - self._started_s) / count * 1e6


class DrivenSpider(Spider):
    """Measures in its `start()`, and crawls nothing."""

    name = "driven"
    part = ""
    count = hosts = 0
    figures: dict[str, float]

    async def start(self) -> AsyncIterator[Any]:
        """Measure, and yield nothing."""
        try:
            await self._measure(Driver(self))
        finally:
            self.crawler.stop()
        for _ in ():
            yield

    async def _measure(self, driver: Driver) -> None:
        first = self._made(range(-2000, -2000 + PAGES), priority=9)
        await driver.enqueue(first, [Request("https://www.shop0.example/")])
        pages = [await driver.take() for _ in range(PAGES)]
        for page in pages:
            driver.downloaded(page)
        measure = self._measure_time if self.part == "time" else self._measure_memory
        await measure(driver, pages)
        for page in pages:
            driver.finish(page)

    def parse_item(self, response: Any, category: str = "", page: int = 0) -> None:
        """A callback."""

    def _made(self, numbers: Iterable[int], **others: Any) -> Iterator[Request]:
        return requests_of(self, numbers, self.hosts, **others)

    async def _measure_time(self, driver: Driver, pages: Sequence[Request]) -> None:
        numbers = range(self.count)
        requests = deque(self._made(numbers))
        clock = Clock()
        taken = await driver.enqueue(_used_up(requests), pages)
        self.figures["new"] = clock.us_per(self.count)
        requests = deque(self._made(numbers))
        clock = Clock()
        taken += await driver.enqueue(_used_up(requests), pages)
        self.figures["known"] = clock.us_per(self.count)
        # What a worker has forgotten of its newest is filtered by the server later.
        assert taken >= self.count, "every request is new once"
        clock = Clock()
        await driver.dequeue(self.count)
        self.figures["dequeue"] = clock.us_per(self.count)

    async def _measure_memory(self, driver: Driver, pages: Sequence[Request]) -> None:
        # What is made at first use doesn't count.
        await driver.enqueue(self._made(range(-1000, 0)), pages)
        await driver.dequeue(1000)
        start = resident_bytes()
        # Few at a time, or memory would be measured that requests leave between fingerprints and can't be given back.
        for first in range(0, self.count, PAGES):
            await driver.enqueue(self._made(range(first, min(first + PAGES, self.count))), pages)
            await driver.dequeue(min(PAGES, self.count - first))
        self.figures["fingerprint"] = (resident_bytes() - start) / self.count
        start = resident_bytes()
        await driver.enqueue(self._made(range(self.count), dont_filter=True), pages)
        self.figures["pending"] = (resident_bytes() - start) / self.count


def _used_up(requests: deque[Request]) -> Iterator[Request]:
    while requests:
        yield requests.popleft()


def main() -> int:
    """Measure as the command line says, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", choices=("time", "memory"))
    parser.add_argument("result", type=Path, help="file for what is measured")
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--hosts", type=int, default=1)
    parser.add_argument("--settings", type=json.loads, default={}, help="Scrapy settings as JSON")
    options = parser.parse_args()
    process = CrawlerProcess(options.settings)
    figures: dict[str, float] = {}
    crawler = DrivenCrawler(DrivenSpider, process.settings, init_reactor=True)
    process.crawl(crawler, part=options.part, count=options.requests, hosts=options.hosts, figures=figures)
    process.start()
    if not figures:
        return 1
    options.result.write_text(json.dumps(figures))
    return 0


if __name__ == "__main__":
    sys.exit(main())
