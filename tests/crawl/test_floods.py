"""A flooded frontier: nothing new is read or discovered until fewer requests are pending."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator
from contextlib import closing
from typing import Any

import pytest
from scrapy import Request, signals
from scrapy.crawler import Crawler

from scrapy_prioqueue.frontier.redis.link import Link
from scrapy_prioqueue.frontier.redis.operators.checkup import frontier_findings
from scrapy_prioqueue.frontier.redis.operators.inspector import Inspector
from tests.crawl.spiders import Follower
from tests.support.crawls import WITHIN_S, Crawls
from tests.support.servers import RedisServer
from tests.support.site import Page, Site, link
from tests.support.waiting import wait_until

MARKS = {"PRIOQUEUE_HIGH_WATER": 40, "PRIOQUEUE_LOW_WATER": 20}


class Generator(Follower):
    """Yields many start requests, and counts how many are ahead of the responses.

    These are counted as they are downloaded: Scrapy 2.13 hands them to callbacks a tenth of a second later, and so
    many more may be between the downloader and the callbacks.
    """

    name = "generator"
    yielded = downloaded = most_ahead = 0

    @classmethod
    def from_crawler(cls, crawler: Crawler, *arguments: Any, **named: Any) -> Generator:
        spider = super().from_crawler(crawler, *arguments, **named)
        crawler.signals.connect(spider.count_downloaded, signals.response_downloaded)
        return spider

    def count_downloaded(self) -> None:
        self.downloaded += 1

    async def start(self) -> AsyncIterator[Any]:
        for number in range(400):
            self.yielded += 1
            self.most_ahead = max(self.most_ahead, self.yielded - self.downloaded)
            yield Request(f"{self.site.rstrip('/')}/page?{number}", dont_filter=True)

    def parse(self, response: Any) -> Any:
        return None

    def closed(self, reason: str) -> None:
        stats = self.crawler.stats
        assert stats is not None
        stats.set_value("most_ahead", self.most_ahead)


class OneSiteFirst(Follower):
    """Yields many start requests of one site, then those of others."""

    name = "one-site-first"

    async def start(self) -> AsyncIterator[Any]:
        for number in range(60):
            slot = {"download_slot": "held"}
            yield Request(f"{self.site.rstrip('/')}/held?{number}", dont_filter=True, meta=slot)
        for number in range(100):
            slot = {"download_slot": f"other{number % 3}"}
            yield Request(f"{self.site.rstrip('/')}/page?{number}", dont_filter=True, meta=slot)

    def parse(self, response: Any) -> Any:
        return None


@pytest.mark.parametrize("is_closed", [True, False])
def test_a_closed_or_slow_site_does_not_stop_others_from_being_read(
    crawls: Crawls, site: Site, is_closed: bool
) -> None:
    gate = threading.Event()
    held = Page(status=429, headers={"Retry-After": "3600"}) if is_closed else Page(gate=gate)
    others = {f"/page?{number}": Page() for number in range(100)}
    site.pages = {**{f"/held?{number}": held for number in range(60)}, **others}

    crawl = crawls.start(
        spider=OneSiteFirst, settings={"PRIOQUEUE_HIGH_WATER": 20, "CONCURRENT_REQUESTS_PER_DOMAIN": 8}
    )
    crawl.wait_for_site(others.keys())

    gate.set()
    crawl.interrupt()
    crawl.wait(troubles=True)


def test_a_fleet_that_idles_at_the_limit_of_pending_requests_is_reported(
    on_redis: Crawls, site: Site, redis_server: RedisServer, frontier_name: str
) -> None:
    site.pages = {f"/held?{number}": Page(status=429, headers={"Retry-After": "3600"}) for number in range(60)}
    crawl = on_redis.start(
        spider=OneSiteFirst,
        settings={"PRIOQUEUE_HIGH_WATER": 20, "PRIOQUEUE_PENDING_LIMIT": 30},
    )
    with closing(Link(redis_server.url)) as link:
        inspector = Inspector(link, frontier_name)

        def topics() -> set[str]:
            return {finding.topic for finding in frontier_findings(inspector, ("urgent", "high", "normal", "low"))}

        wait_until(lambda: "idle fleet" in topics(), what="the doctor has found it", within=WITHIN_S)
        status = inspector.status()

    # Each worker adds what it has places for, and what came back to be retried.
    assert status is not None and status.counts["pending"] + status.counts["delayed"] < 30 + 2 * 16
    crawl.interrupt()
    crawl.wait(troubles=True)


def test_start_is_read_as_the_frontier_empties(crawls: Crawls, site: Site) -> None:
    site.pages = {f"/page?{number}": Page() for number in range(400)}

    result = crawls.run(spider=Generator, settings=MARKS)

    assert len(set(result.pages)) == 400
    assert result.stats["most_ahead"] <= 40 + 16 + 25
    assert result.reason == "finished"


def test_a_flood_is_logged_and_found_requests_are_fetched_before_more_is_discovered(crawls: Crawls, site: Site) -> None:
    low = {"prioqueue_tier": "low"}
    listings = [link(f"/list/{number}", meta=low, priority=-number) for number in range(8)]
    site.pages = {"/": listings}
    for number in range(8):
        items = [f"/item/{number}/{item}" for item in range(30)]
        site.pages[f"/list/{number}"] = items
        site.pages.update({path: Page(delay_s=0.01) for path in items})

    result = crawls.run(settings={**MARKS, "CONCURRENT_REQUESTS": 4})

    assert len(set(result.pages)) == 1 + 8 + 8 * 30
    assert result.lines("The frontier is flooded")
    assert result.lines("PRIOQUEUE_HIGH_WATER = 40")
    assert result.lines("The frontier is no longer flooded")
    assert result.reason == "finished"


class Careful(Follower):
    """Begins with pages of its own, one after the other."""

    name = "careful"

    async def start(self) -> AsyncIterator[Any]:
        for number in range(4):
            yield Request(f"{self.site.rstrip('/')}/own/{number}")


def test_own_start_requests_are_done_in_a_flood_too(crawls: Crawls, site: Site) -> None:
    for number in range(4):
        items = [f"/item/{number}/{item}" for item in range(25)]
        site.pages.update({f"/own/{number}": items, **{path: Page() for path in items}})

    result = crawls.run(
        spider=Careful, settings={**MARKS, "PRIOQUEUE_HOLD_UNTIL_START": True, "CONCURRENT_REQUESTS": 1}
    )

    assert len(set(result.pages)) == 4 + 4 * 25
    assert result.reason == "finished"
