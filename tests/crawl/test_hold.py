"""Workers that process their own start requests before they take shared ones."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from typing import Any

from scrapy.http import Response

from tests.crawl.spiders import FailingStarter, Follower, path_of
from tests.support.crawls import WITHIN_S, Crawls
from tests.support.site import Page, Site, in_turn, leaves, link, moved
from tests.support.waiting import wait_until

HOLD = {"PRIOQUEUE_HOLD_UNTIL_START": True}


def login_site(site: Site, **login: Any) -> None:
    """Let the site have a login in three steps, the last of which leads to two shared pages."""
    site.pages = {
        "/login": [link("/form", method="POST", body="me"), "/early"],
        "/form": moved("/welcome"),
        "/welcome": Page([link("/check", dont_filter=True), link("/profile", meta={"prioqueue_own": True})], **login),
        "/check": ["/a", "/b"],
        "/a": ["/c", link("/posted", method="POST")],
        **leaves("/early", "/profile", "/b", "/c", "/posted"),
    }


OWN = ["/login", "/form", "/welcome", "/check", "/profile"]
SHARED = ["/early", "/a", "/b", "/c", "/posted"]


def test_shared_requests_wait_for_the_login(crawls: Crawls, site: Site) -> None:
    login_site(site)

    result = crawls.run("/login", settings=HOLD)

    assert sorted(result.pages[:5]) == sorted(OWN)
    assert sorted(result.pages[5:]) == sorted(SHARED)
    assert len(result.lines("This worker's own start requests are done")) == 1
    assert result.reason == "finished"


def test_each_worker_does_its_own_login_and_the_rest_is_shared(on_redis: Crawls, site: Site) -> None:
    gate = threading.Event()
    login_site(site, gate=gate)

    crawls = [on_redis.start("/login", settings=HOLD) for _ in range(2)]
    wait_until(lambda: site.count("/welcome") == 2, what="both log in", within=WITHIN_S)
    assert not {visit.path for visit in site.visits} & set(SHARED)
    gate.set()
    results = [crawl.wait() for crawl in crawls]

    assert Counter(visit.path for visit in site.visits) == Counter([*OWN, *OWN, *SHARED])
    for result in results:
        assert set(OWN) <= set(result.pages)
        assert result.reason == "finished"


def test_a_run_that_resumes_logs_in_again(on_redis: Crawls, site: Site) -> None:
    login_site(site)

    first = on_redis.run("/login", settings={**HOLD, "CLOSESPIDER_PAGECOUNT": 6, "CONCURRENT_REQUESTS": 1})
    second = on_redis.run("/login", settings=HOLD)

    assert sorted(second.pages[:5]) == sorted(OWN)
    assert sorted([*first.pages, *second.pages]) == sorted([*OWN, *OWN, *SHARED])
    assert second.reason == "finished"


def test_a_login_is_retried(crawls: Crawls, site: Site) -> None:
    login_site(site)
    site.pages["/form"] = in_turn(Page(status=500), moved("/welcome"))
    settings = {**HOLD, "ADDONS": {"scrapy_prioqueue.Addon": 500}, "PRIOQUEUE_RETRY_BACKOFF": {"base": 0.3}}

    result = crawls.run("/login", settings=settings)

    assert sorted(result.pages[:6]) == sorted([*OWN, "/form"])
    assert result.reason == "finished"


def test_a_worker_whose_start_raises_takes_nothing(on_redis: Crawls, site: Site) -> None:
    login_site(site)
    on_redis.run("/a", settings={"CLOSESPIDER_PAGECOUNT": 1, "CONCURRENT_REQUESTS": 1})

    result = on_redis.run("/login", spider=FailingStarter, settings=HOLD, troubles=True)

    assert sorted(result.pages) == sorted(OWN)
    assert result.reason == "prioqueue_start_failed"


def test_a_worker_without_start_requests_begins_at_once(on_redis: Crawls, site: Site) -> None:
    login_site(site)
    on_redis.run("/a", settings={"CLOSESPIDER_PAGECOUNT": 1, "CONCURRENT_REQUESTS": 1})

    result = on_redis.run(settings=HOLD, spider=Idle)

    assert sorted(result.pages) == ["/c", "/posted"]
    assert result.reason == "finished"


class Idle(Follower):
    """Has nothing to begin with."""

    name = "idle"

    async def start(self) -> AsyncIterator[Any]:
        nothing: list[Any] = []
        for request in nothing:
            yield request

    def parse(self, response: Response) -> Iterator[Any]:
        yield {"page": path_of(response)}
