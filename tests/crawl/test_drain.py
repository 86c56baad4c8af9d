"""A drained crawl: new requests are dropped, and pending ones are fetched."""

from __future__ import annotations

import threading

from scrapy_prioqueue.frontier.redis.keys import Keys
from tests.support.crawls import WITHIN_S, Crawls
from tests.support.servers import RedisServer
from tests.support.site import Page, Site, Visit, leaves, link
from tests.support.waiting import wait_until


def test_new_links_are_dropped_and_the_page_itself_may_be_retried(
    on_redis: Crawls, site: Site, redis_server: RedisServer, frontier_name: str
) -> None:
    gate = threading.Event()
    visits: list[Visit] = []

    def page(visit: Visit) -> Page:
        visits.append(visit)
        if len(visits) > 1:
            return Page()
        return Page(["/found", link("/slow", dont_filter=True)], gate=gate)

    site.pages = {"/": ["/slow"], "/slow": page, **leaves("/found")}
    crawl = on_redis.start()
    crawl.wait_for("asked", "/slow")
    redis_server.client().hset(Keys(frontier_name).state, "drained", "1")
    wait_until(lambda: "is draining the crawl" in crawl.process.log, what="the order is known", within=WITHIN_S)
    gate.set()
    result = crawl.wait()

    assert result.pages == ["/", "/slow", "/slow"]
    assert result.stats["prioqueue/drained"] == 1
    assert result.reason == "finished"
