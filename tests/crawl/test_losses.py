"""A crawl that has lost a part of `start()` or the server's data: its messages, its end, and who may join."""

from __future__ import annotations

import threading

from tests.crawl.spiders import FailingStarter, Follower
from tests.support.crawls import WITHIN_S, Crawls
from tests.support.servers import StartServer
from tests.support.site import Page, Site, leaves
from tests.support.waiting import wait_until


def test_a_crawl_whose_start_raised_is_resumed_and_its_missing_start_requests_come(
    on_redis: Crawls, site: Site, frontier_name: str
) -> None:
    site.pages = leaves("/1", "/2")
    named = on_redis.having(PRIOQUEUE_NAME=frontier_name, PRIOQUEUE_CRAWL_ID="run")

    broken = named.run("/1", spider=FailingStarter, troubles=True)
    mended = named.run("/1", "/2", spider=Follower)

    assert broken.pages == ["/1"]
    assert mended.lines("Resumed crawl in frontier")
    assert mended.pages == ["/2"]
    assert mended.reason == "finished"


def test_a_server_that_is_emptied_is_an_error_with_a_reason_of_its_own(
    on_redis: Crawls, site: Site, redis_server_factory: StartServer
) -> None:
    server = redis_server_factory()
    gate = threading.Event()
    site.pages = {"/": ["/held", "/waiting"], "/held": Page(gate=gate), **leaves("/waiting")}

    crawl = on_redis.start(settings={"PRIOQUEUE_REDIS_URL": server.url, "CONCURRENT_REQUESTS": 1})
    crawl.wait_for("asked", "/")
    wait_until(lambda: crawl.pages[1:], what="the crawl goes on", within=WITHIN_S)
    server.client().flushall()
    gate.set()
    result = crawl.wait(troubles=True)

    assert result.reason == "prioqueue_frontier_lost"
    assert len([line for line in result.log.splitlines() if "has lost the frontier" in line]) == 1
