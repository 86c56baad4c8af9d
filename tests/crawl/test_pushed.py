"""Requests pushed by other programs are crawled: before, during and after a crawl."""

from __future__ import annotations

import threading

import pytest

from scrapy_prioqueue import FrontierClient
from tests.contract.backends import is_balanced
from tests.support.crawls import WITHIN_S, Crawls
from tests.support.servers import RedisServer
from tests.support.site import Page, Site, leaves
from tests.support.waiting import wait_until


@pytest.fixture
def client(redis_server: RedisServer, frontier_name: str) -> FrontierClient:
    """A client of the crawls' frontier."""
    return FrontierClient(redis_server.url, frontier_name)


def test_requests_pushed_before_the_crawl_are_crawled_with_it(
    on_redis: Crawls, site: Site, client: FrontierClient
) -> None:
    site.pages = {"/": ["/pushed", "/a"], "/pushed": ["/child"], **leaves("/a", "/child")}
    client.push(site.url("/pushed"), tier="urgent", callback="parse_listing")

    result = on_redis.run(settings={"CONCURRENT_REQUESTS": 1})

    assert result.pages[:1] == ["/pushed"] or result.pages[:2] == ["/", "/pushed"]
    assert sorted(result.pages) == ["/", "/a", "/child", "/pushed"]
    assert result.reason == "finished"
    assert client.depth().done == 4
    client.close()


def test_the_first_worker_says_which_crawl_it_is_that_something_was_pushed_to(
    on_redis: Crawls, site: Site, client: FrontierClient
) -> None:
    site.pages = {"/": [], **leaves("/pushed")}
    client.push(site.url("/pushed"))

    first = on_redis.run(settings={"PRIOQUEUE_CRAWL_ID": "monday"})
    again = on_redis.run(settings={"PRIOQUEUE_CRAWL_ID": "monday"})

    assert sorted(first.pages) == ["/", "/pushed"]
    assert (again.pages, again.reason) == ([], "finished")
    client.close()


def test_two_workers_crawl_what_is_pushed_while_they_run(on_redis: Crawls, site: Site, client: FrontierClient) -> None:
    gate = threading.Event()
    paths = [f"/pushed/{number}" for number in range(200)]
    site.pages = {"/": [], **dict.fromkeys(paths, Page(gate=gate))}
    workers = [on_redis.start(settings={"PRIOQUEUE_MAX_IDLE": 3}) for _ in range(2)]
    for worker in workers:
        worker.wait_for("scheduled", "/")

    client.push_many([site.url(path) for path in paths])
    wait_until(lambda: all("/pushed" in str(worker.pages) for worker in workers), what="both crawl", within=WITHIN_S)
    gate.set()
    workers[0].wait_for_site(paths)
    results = [worker.wait() for worker in workers]

    assert sorted(page for result in results for page in result.pages) == sorted(["/", *paths])
    depth = client.depth()
    assert is_balanced(depth) and depth.done == 201
    client.close()
