"""One crawl of the benchmarks' site, in a process of its own; it writes what it measured as JSON.

The spider follows all links and does nothing else: the less a spider does, the more its scheduler weighs.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import json
import sys
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import asdict
from pathlib import Path

import scrapy
from crawled import CrawlResult
from scrapy import signals
from scrapy.crawler import Crawler, CrawlerProcess
from scrapy.http import Response, TextResponse

TIMER_INTERVAL_S = 0.01


class LinkSpider(scrapy.Spider):
    """Follows every link."""

    name = "links"
    pages = 0
    starts = 0
    held = 0

    async def start(self) -> AsyncIterator[scrapy.Request]:
        """Yield the front page, filtered: Scrapy's own `start()` would have it fetched a second time.

        Or that many pages, whose numbers come after the URL; the first ones of a slot of their own, `held`.
        """
        for url in self.start_urls:
            if not self.starts:
                yield scrapy.Request(url)
            for number in range(self.starts):
                meta = {"download_slot": "held"} if number < self.held else {}
                yield scrapy.Request(f"{url}{number}", meta=meta)

    def parse(self, response: Response) -> Iterator[scrapy.Request]:
        """Yield a request per link."""
        assert isinstance(response, TextResponse)
        self.pages += 1
        for href in response.css("a::attr(href)").getall():
            yield response.follow(href)


class TimerWatch:
    """Fires every 10 ms and notes when, and how much later than it should have."""

    def __init__(self) -> None:
        self._samples: list[tuple[float, float]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._due_s = 0.0

    def start(self) -> None:
        """Begin, on the running loop."""
        self._due_s = time.monotonic() + TIMER_INTERVAL_S
        self._timer = asyncio.get_running_loop().call_later(TIMER_INTERVAL_S, self._fire)

    def stop(self) -> list[tuple[float, float]]:
        """End and return (seconds on the machine's monotonic clock, seconds late) of each firing."""
        if self._timer is not None:
            self._timer.cancel()
        return self._samples

    def _fire(self) -> None:
        now = time.monotonic()
        self._samples.append((now, now - self._due_s))
        self.start()


class Meter:
    """Measures a crawl from the signal `spider_opened` to `spider_closed`.

    Args:
        crawler: the one that is measured.
        watches_timer: whether a timer on the loop is measured as well.
    """

    def __init__(self, crawler: Crawler, *, watches_timer: bool) -> None:
        self._crawler = crawler
        self._watch = TimerWatch() if watches_timer else None
        self._opened_s = self._opened_cpu_s = 0.0
        self.result: CrawlResult | None = None
        crawler.signals.connect(self._on_opened, signals.spider_opened)
        crawler.signals.connect(self._on_closed, signals.spider_closed)

    def _on_opened(self) -> None:
        self._opened_s, self._opened_cpu_s = time.monotonic(), time.process_time()
        if self._watch is not None:
            self._watch.start()

    def _on_closed(self, spider: LinkSpider, reason: str) -> None:
        assert self._crawler.stats is not None
        numbers = {name: value for name, value in self._crawler.stats.get_stats().items() if isinstance(value, int)}
        self.result = CrawlResult(
            reason=reason,
            pages=spider.pages,
            wall_s=time.monotonic() - self._opened_s,
            cpu_s=time.process_time() - self._opened_cpu_s,
            stats=numbers,
            timer=self._watch.stop() if self._watch is not None else [],
        )


def crawl(options: argparse.Namespace) -> CrawlResult | None:
    """Crawl a site in this process and return what was measured, None if the spider wasn't closed."""
    process = CrawlerProcess(options.settings)
    crawler = process.create_crawler(LinkSpider)
    meter = Meter(crawler, watches_timer=options.watch_timer)
    process.crawl(crawler, start_urls=[options.url], starts=options.starts, held=options.held)
    process.start()
    return meter.result


def main() -> int:
    """Crawl as the command line says and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url", help="the front page")
    parser.add_argument("result", type=Path, help="file for what is measured")
    parser.add_argument("--settings", type=json.loads, default={}, help="Scrapy settings as JSON")
    parser.add_argument("--watch-timer", action="store_true", help="measure how late a timer on the loop is")
    parser.add_argument("--starts", type=int, default=0, help="pages that start() yields, instead of the front page")
    parser.add_argument("--held", type=int, default=0, help="how many of these, the first ones, are of slot `held`")
    parser.add_argument("--profile", type=Path, help="file for a profile, for python -m pstats")
    options = parser.parse_args()
    profiler = cProfile.Profile() if options.profile else None
    if profiler is not None:
        profiler.enable()
    result = crawl(options)
    if profiler is not None:
        profiler.disable()
        profiler.dump_stats(options.profile)
    if result is None:
        return 1
    options.result.write_text(json.dumps(asdict(result)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
