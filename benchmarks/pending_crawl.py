"""Fill a Redis with pending requests through a scheduler, as a process; it prints what each takes there as JSON."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import redis
from driven import DrivenCrawler, DrivenSpider, Driver, requests_of, url_of
from scrapy import Request
from scrapy.crawler import CrawlerProcess

PLAIN, MIXED = "plain", "mixed"
"""URL, depth and callback alone; or as crawls have them, see `driven.requests_of`."""


class StoringSpider(DrivenSpider):
    """Stores requests in its `start()`, and measures what they take in Redis."""

    url = ""

    async def _measure(self, driver: Driver) -> None:
        await driver.enqueue(self._requests(-16, 0), [Request(url_of(0, self.hosts))])
        pages = [await driver.take() for _ in range(16)]
        for page in pages:
            driver.downloaded(page)
        # What is made at first use doesn't count.
        await driver.enqueue(self._requests(-1016, -16), pages)
        with redis.Redis.from_url(self.url) as client:
            before_b = used_b(client)
            await driver.enqueue(self._requests(0, self.count), pages)
            self.figures["bytes"] = (used_b(client) - before_b) / self.count
        for page in pages:
            driver.finish(page)

    def _requests(self, first: int, last: int) -> Iterator[Request]:
        numbers = range(first, last)
        if self.part == MIXED:
            return requests_of(self, numbers, self.hosts, dont_filter=True)
        meta = {"depth": 3}
        return (Request(url_of(one, self.hosts), self.parse_item, meta=dict(meta), dont_filter=True) for one in numbers)


def used_b(client: redis.Redis) -> float:
    """Return the memory of the server's data with its keys, without the buffers of connections."""
    info: Mapping[str, float] = client.info("memory")
    return info["used_memory"] - info["mem_clients_normal"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure as the command line says, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=(PLAIN, MIXED), help="of the requests")
    parser.add_argument("url", help="of the Redis server")
    parser.add_argument("--requests", type=int, default=50_000)
    parser.add_argument("--hosts", type=int, default=20)
    parser.add_argument("--settings", type=json.loads, default={}, help="Scrapy settings as JSON")
    options = parser.parse_args(arguments)
    process = CrawlerProcess(options.settings)
    figures: dict[str, float] = {}
    crawler = DrivenCrawler(StoringSpider, process.settings, init_reactor=True)
    words: dict[str, Any] = {"part": options.kind, "count": options.requests, "hosts": options.hosts}
    process.crawl(crawler, url=options.url, figures=figures, **words)
    process.start()
    print(json.dumps(figures))
    return 0 if figures else 1


if __name__ == "__main__":
    sys.exit(main())
