"""Retries that wait in the frontier."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from scrapy import Request
from scrapy.http import Response

from scrapy_prioqueue import get_retry_request
from tests.crawl.spiders import Follower, path_of
from tests.crawl.test_dead_letters import balanced, letters
from tests.support.crawls import WITHIN_S, Crawls
from tests.support.servers import RedisServer
from tests.support.site import Page, Site, in_turn, leaves, link
from tests.support.waiting import wait_until

ADDON = {"ADDONS": {"scrapy_prioqueue.Addon": 500}}
QUICK = {**ADDON, "PRIOQUEUE_RETRY_BACKOFF": {"base": 0.3, "factor": 2, "jitter": 0}}


class Retrying(Follower):
    """Retries from a callback."""

    name = "retrying"

    def parse_and_retry(self, response: Response) -> Iterator[Any]:
        """Retry until the page has text, or no retries are left."""
        assert response.request is not None
        if response.body == b"empty":
            yield get_retry_request(response.request, spider=self, reason="empty")
        else:
            yield {"page": path_of(response), "retry_times": response.meta.get("retry_times")}


def waits(site: Site, path: str) -> list[float]:
    times = [visit.time_s for visit in site.visits if visit.path == path]
    return [later - earlier for earlier, later in zip(times, times[1:], strict=False)]


def test_a_retry_waits_longer_each_time(crawls: Crawls, site: Site) -> None:
    site.pages = {
        "/": ["/bad", "/good"],
        "/bad": in_turn(Page(status=500), Page(status=500), Page()),
        **leaves("/good"),
    }

    result = crawls.run(settings=QUICK)

    assert Counter(result.pages) == {"/": 1, "/bad": 3, "/good": 1}
    assert waits(site, "/bad")[0] >= 0.3
    assert waits(site, "/bad")[1] >= 0.6
    assert result.stats["retry/count"] == 2
    assert result.stats["retry/reason_count/500 Internal Server Error"] == 2
    assert len(result.items) == 3


def test_a_server_that_wants_to_be_left_alone_is(crawls: Crawls, site: Site) -> None:
    site.pages = {"/": ["/busy"], "/busy": in_turn(Page(status=429, headers={"Retry-After": "2"}), Page())}

    result = crawls.run(settings={**ADDON, "PRIOQUEUE_RETRY_BACKOFF": None})

    assert 2 <= waits(site, "/busy")[0] < 10
    assert result.reason == "finished"


def test_a_request_whose_retries_are_used_up_is_a_dead_letter(
    on_redis: Crawls, site: Site, redis_server: RedisServer, frontier_name: str, closed_port: int
) -> None:
    refused = f"http://127.0.0.1:{closed_port}/"
    bad = Page(status=503)
    site.pages = {
        "/": [
            "/bad",
            refused,
            link("/given-up", meta={"dont_retry": True}),
            link("/once", meta={"max_retry_times": 0}),
        ],
        **dict.fromkeys(("/bad", "/given-up", "/once"), bad),
    }

    settings = {**ADDON, "PRIOQUEUE_RETRY_BACKOFF": None, "RETRY_TIMES": 1}
    result = on_redis.run(settings=settings, troubles=True)

    found = letters(redis_server, frontier_name)
    unavailable, refused_detail, once = sorted(letter.detail for letter in found)
    assert unavailable == "failed 2 times: 503 Service Unavailable"
    assert re.fullmatch(r"failed 2 times: .*ConnectionRefusedError: Connection was refused.*", refused_detail)
    assert once == "failed once: 503 Service Unavailable"
    assert {letter.reason for letter in found} == {"download"}
    assert result.stats["prioqueue/dead/download"] == 3
    assert len(result.lines("Gave up retrying")) == 3
    assert balanced(result, redis_server, frontier_name)


def test_a_callback_may_retry(on_redis: Crawls, site: Site, redis_server: RedisServer, frontier_name: str) -> None:
    empty = Page(body=b"empty")
    site.pages = {
        "/": [link("/late", callback="parse_and_retry"), link("/never", callback="parse_and_retry")],
        "/late": in_turn(empty, Page(body=b"text")),
        "/never": empty,
    }

    result = on_redis.run(spider=Retrying, settings=QUICK, troubles=True)

    assert Counter(result.pages) == {"/": 1, "/late": 2, "/never": 3}
    assert waits(site, "/never")[0] >= 0.3
    assert {"page": "/late", "retry_times": 1} in result.items
    assert [letter.detail for letter in letters(redis_server, frontier_name)] == ["failed 3 times: empty"]


def test_retries_are_counted_across_kills(
    on_redis: Crawls, site: Site, redis_server: RedisServer, frontier_name: str
) -> None:
    bad, held = Page(status=500), Page(delay_s=100)
    site.pages = {"/": ["/bad"], "/bad": in_turn(bad, held, bad, held, bad)}
    named = on_redis.having(PRIOQUEUE_WORKER_ID="me", **QUICK)

    for visits in (2, 4):
        crawl = named.start()
        wait_until(lambda: site.count("/bad") == visits, what="it is retried", within=WITHIN_S)  # noqa: B023
        crawl.kill()
        crawl.process.wait(within=WITHIN_S)
    result = named.run(troubles=True)

    assert result.reason == "finished"
    assert site.count("/bad") == 5
    assert [letter.detail[:15] for letter in letters(redis_server, frontier_name)] == ["failed 3 times:"]


class SecondSource:
    """A downloader middleware that asks somebody else where retries are of no use."""

    def process_response(self, request: Request, response: Response, spider: Any = None) -> Request | Response:
        if response.status == 500 and request.url.endswith("/bad"):
            return request.replace(url=response.urljoin("/instead"))
        return response


def test_a_request_that_a_middleware_continues_with_is_not_given_up(
    on_redis: Crawls, site: Site, redis_server: RedisServer, frontier_name: str
) -> None:
    site.pages = {"/": ["/bad"], "/bad": Page(status=500), **leaves("/instead")}
    middlewares = {"tests.crawl.test_retries.SecondSource": 100}
    settings = {**ADDON, "RETRY_TIMES": 0, "DOWNLOADER_MIDDLEWARES": middlewares}

    result = on_redis.run(settings=settings, troubles=True)

    assert result.pages == ["/", "/bad", "/instead"]
    assert letters(redis_server, frontier_name) == []
    assert result.stats_under("prioqueue/dead/") == {}


@pytest.mark.parametrize("settings", [{}, {"RETRY_ENABLED": False, **ADDON}])
def test_scrapys_own_retries_and_disabled_ones_work_as_in_scrapy(
    crawls: Crawls, site: Site, settings: dict[str, Any]
) -> None:
    site.pages = {"/": ["/bad"], "/bad": Page(status=500)}

    result = crawls.run(settings=settings, troubles=True)

    assert result.pages.count("/bad") == (1 if settings else 3)
    assert result.stats_under("prioqueue/dead/") == {}
