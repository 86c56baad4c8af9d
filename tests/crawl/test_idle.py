"""Signals of an idle worker, and what handlers may do, while others work and at the end."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator
from typing import Any

from scrapy import signals
from scrapy.crawler import Crawler
from scrapy.exceptions import CloseSpider, DontCloseSpider
from scrapy.http import Response

from tests.crawl.spiders import Follower
from tests.support.crawls import WITHIN_S, Crawls
from tests.support.site import Page, Site, leaves
from tests.support.waiting import wait_until


class Feeder(Follower):
    """Feeds the crawl when it is idle, `more` pages in all, and then closes its worker, if it is to, or waits."""

    name = "feeder"
    more: list[str]
    closes = False

    @classmethod
    def from_crawler(cls, crawler: Crawler, *arguments: Any, **named: Any) -> Feeder:
        spider = super().from_crawler(crawler, *arguments, **named)
        crawler.signals.connect(spider.feed, signals.spider_idle)
        return spider

    def feed(self) -> None:
        """Ask for one more page and stay, or close."""
        if self.more:
            assert self.crawler.engine is not None
            self.crawler.engine.crawl(self.request(self.more.pop(), Response(self.site)))
            raise DontCloseSpider
        if self.closes:
            raise CloseSpider("fed")
        self.logger.info("Idle, with nothing to feed")


class Patient(Follower):
    """Yields a start request, with an item before, only when the scheduler has become empty."""

    name = "patient"

    async def start(self) -> AsyncIterator[Any]:
        async for request in super().start():
            yield {"page": f"read {request.url.rpartition('/')[2]}"}
            yield request
            await self.crawler.signals.wait_for(signals.scheduler_empty)


def test_a_worker_without_work_feeds_the_crawl_or_closes_while_others_work(on_redis: Crawls, site: Site) -> None:
    gate = threading.Event()
    site.pages = {"/slow": Page(["/last"], gate=gate), **leaves("/last", "/more-1", "/more-2", "/more-3")}

    busy = on_redis.start("/slow")
    busy.wait_for("asked", "/slow")
    no_items = {"CLOSESPIDER_TIMEOUT_NO_ITEM": 2}
    feeder = on_redis.start("/slow", spider=Feeder, more=["/more-2", "/more-1"], settings=no_items)
    closer = on_redis.start("/slow", spider=Feeder, more=["/more-3"], closes=True)
    closed = closer.wait()
    wait_until(lambda: "nothing to feed" in feeder.process.log, what="an idle worker that waits", within=WITHIN_S)
    fed = {visit.path for visit in site.visits}
    gate.set()
    results = [busy.wait(), feeder.wait()]

    assert fed == {"/slow", "/more-1", "/more-2", "/more-3"}
    assert closed.reason == "fed"
    assert [result.reason for result in results] == ["finished", "finished"]
    assert site.count("/last") == 1
    # The last one comes from the engine, at the end.
    assert len(results[1].lines("nothing to feed")) >= 2


def test_the_scheduler_is_not_empty_while_requests_are_under_way(crawls: Crawls, site: Site) -> None:
    families = {f"/{seed}": [f"/{seed}/{child}" for child in range(3)] for seed in range(4)}
    site.pages = {**families, **leaves(*(child for children in families.values() for child in children))}

    settings = {"CONCURRENT_REQUESTS": 1}
    result = crawls.run(*families, spider=Patient, settings=settings)
    scrapys = crawls.by_scrapy.run(*families, spider=Patient, settings=settings)

    # Under Scrapy, too, it is empty now and then while a page that was fetched waits for its callback.
    at, scrapys_at = ({item["page"]: place for place, item in enumerate(found.items)} for found in (result, scrapys))
    assert len(at) == 20
    assert all(at[f"read {seed}"] >= scrapys_at[f"read {seed}"] for seed in range(4))
    assert result.reason == "finished"
