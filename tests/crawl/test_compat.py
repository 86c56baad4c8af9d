"""Projects of scrapy-redis with only `SCHEDULER` changed, with its own spiders and with ours of the same names."""

from __future__ import annotations

import json
from collections.abc import Mapping
from types import ModuleType
from typing import Any

import pytest

from tests.crawl import redis_spiders
from tests.crawl.test_reactors import loops
from tests.support.crawls import WITHIN_S, Crawls
from tests.support.servers import RedisServer, StartServer
from tests.support.site import Page, Site, leaves
from tests.support.waiting import wait_until


@pytest.fixture(params=["redis_spiders", "scrapy_redis_spiders"])
def spiders(request: pytest.FixtureRequest) -> ModuleType:
    """The spiders on classes of `scrapy_prioqueue.compat`, and on those of scrapy-redis."""
    found: ModuleType = pytest.importorskip(f"tests.crawl.{request.param}")
    return found


@pytest.fixture
def key(frontier_name: str) -> str:
    """Key of the start URLs."""
    return f"{frontier_name}:start_urls"


@pytest.fixture
def project(plain_crawls: Crawls, redis_server: RedisServer, key: str) -> Crawls:
    """Crawls of a project with settings of scrapy-redis."""
    return plain_crawls.having(
        DUPEFILTER_CLASS="scrapy_redis.dupefilter.RFPDupeFilter",
        SCHEDULER_PERSIST=True,
        SCHEDULER_QUEUE_CLASS="scrapy_redis.queue.PriorityQueue",
        REDIS_HOST="127.0.0.1",
        REDIS_PORT=redis_server.port,
        REDIS_START_URLS_KEY=key,
        REDIS_ITEMS_KEY=f"{key}:items",
        MAX_IDLE_TIME_BEFORE_CLOSE=1,
    )


def linking(*paths: str) -> Page:
    """Return a page with links that a `LinkExtractor` finds."""
    body = "".join(f'<a href="{path}">{path}</a>' for path in paths)
    return Page(body=body.encode(), headers={"Content-Type": "text/html"})


def leases_of(project: Crawls) -> str:
    """Return the key of the leases."""
    return f"{{prioqueue:{project.settings['PRIOQUEUE_NAME']}}}:leases"


def are_deprecated(spiders: ModuleType) -> bool:
    """Return whether Scrapy warns of methods of these spiders or their pipeline, as it does of scrapy-redis's."""
    return spiders is not redis_spiders


def test_two_workers_crawl_what_start_urls_lead_to_once_each(
    spiders: ModuleType, project: Crawls, site: Site, client: Any, key: str
) -> None:
    listings, details = [f"/{number}" for number in range(8)], [f"/detail/{number}" for number in range(45)]
    site.pages = {path: linking(*details[number * 5 : number * 5 + 10]) for number, path in enumerate(listings)}
    site.pages.update(leaves(*details))
    client.rpush(key, *(json.dumps({"url": site.url(path)}) for path in listings))

    pipelines = {"ITEM_PIPELINES": {spiders.PIPELINE: 300}}
    workers = [project.start(spider=spiders.MyCrawler, settings=pipelines, domain="127.0.0.1") for _ in range(2)]
    results = [worker.wait(troubles=are_deprecated(spiders)) for worker in workers]

    assert sorted(page for result in results for page in result.pages) == sorted([*listings, *details])
    assert [result.reason for result in results] == ["finished", "finished"]
    assert sorted(json.loads(item)["page"] for item in client.lrange(f"{key}:items", 0, -1)) == sorted(details)
    assert client.keys(f"*{key}*") == [f"{key}:items".encode()] and not client.keys("dupefilter:*")


def test_an_entry_says_what_is_requested(
    spiders: ModuleType, project: Crawls, site: Site, client: Any, key: str
) -> None:
    site.pages = leaves("/search", "/get?q=2")
    client.sadd(
        key,
        json.dumps({"url": site.url("/search"), "method": "post", "meta": {"told": {"job": 7}}, "q": "1"}),
        json.dumps({"url": site.url("/get"), "meta": {"told": {}}, "q": "2"}),
    )

    settings = {"REDIS_START_URLS_AS_SET": True}
    result = project.run(spider=spiders.MySpider, settings=settings, troubles=are_deprecated(spiders))

    assert sorted(result.items, key=lambda item: str(item["page"])) == [
        {"page": "/get?q=2", "method": "GET", "body": ""},
        {"page": "/search", "method": "POST", "body": "q=1", "job": 7},
    ]


def test_a_spider_that_waits_still_stores_requests_and_knows_what_it_has_seen(
    spiders: ModuleType, project: Crawls, site: Site, client: Any, key: str
) -> None:
    site.pages = {"/first": linking("/both"), "/second": linking("/both", "/new"), **leaves("/both", "/new")}
    crawl = project.start(spider=spiders.MyCrawler, settings={"MAX_IDLE_TIME_BEFORE_CLOSE": 0}, domain="127.0.0.1")
    client.rpush(key, json.dumps({"url": site.url("/first")}))
    crawl.wait_for("item", "/both")
    wait_until(lambda: not client.zcard(leases_of(project)), what="all is done", within=WITHIN_S)
    other = project.start(spider=spiders.MyCrawler)
    wait_until(lambda: "workers alive: 2" in other.process.log, what="another joins", within=WITHIN_S)
    other.kill()

    client.rpush(key, json.dumps({"url": site.url("/second")}))
    crawl.wait_for("item", "/new")
    crawl.interrupt()

    assert sorted(crawl.wait(troubles=are_deprecated(spiders)).pages) == ["/both", "/first", "/new", "/second"]


@loops
def test_items_are_written_on_every_loop(
    project: Crawls, site: Site, client: Any, key: str, process: str, settings: Mapping[str, Any], said: str
) -> None:
    paths = [f"/{number}" for number in range(30)]
    site.pages = leaves(*paths)
    client.rpush(key, *map(site.url, paths))

    pipelines = {"ITEM_PIPELINES": {"scrapy_prioqueue.compat.RedisStreamPipeline": 300}}
    result = project.start(spider=redis_spiders.Page, settings={**settings, **pipelines}, process=process).wait()

    items = [json.loads(fields[b"item"])["page"] for _, fields in client.xrange(f"{key}:items")]
    assert said in result.log
    assert sorted(items) == sorted(paths)


@pytest.mark.server_faults
def test_no_item_is_lost_with_a_worker_or_in_an_outage(
    project: Crawls, site: Site, redis_server_factory: StartServer, key: str
) -> None:
    server = redis_server_factory()
    client: Any = server.client()
    paths = [f"/{number}" for number in range(300)]
    site.pages = leaves(*paths)
    client.rpush(key, *map(site.url, paths))
    crawls = project.having(
        REDIS_PORT=server.port,
        ITEM_PIPELINES={redis_spiders.PIPELINE: 300},
        PRIOQUEUE_REDIS_TIMEOUT=0.5,
        PRIOQUEUE_LEASE_TTL=3,
    )

    killed, other = crawls.start(spider=redis_spiders.Page), crawls.start(spider=redis_spiders.Page)
    wait_until(lambda: len(site.visits) > 50, what="both work", within=WITHIN_S)
    server.freeze()
    wait_until(lambda: "Items are not written" in other.process.log, what="items wait", within=WITHIN_S)
    server.thaw()
    wait_until(lambda: len(site.visits) > 150, what="work goes on", within=WITHIN_S)
    killed.kill()
    result = other.wait(troubles=True)

    assert result.reason == "finished"
    assert {json.loads(item)["page"] for item in client.lrange(f"{key}:items", 0, -1)} == set(paths)


@pytest.mark.server_faults
def test_items_of_a_worker_that_closes_in_an_outage_come_from_the_next(
    project: Crawls, site: Site, redis_server_factory: StartServer, key: str
) -> None:
    server = redis_server_factory(appendonly=True, appendfsync="always")
    client: Any = server.client()
    paths = [f"/{number}" for number in range(60)]
    site.pages = {path: Page(delay_s=0.2) for path in paths}
    client.rpush(key, *map(site.url, paths))
    crawls = project.having(
        REDIS_PORT=server.port, ITEM_PIPELINES={redis_spiders.PIPELINE: 300}, PRIOQUEUE_CLOSE_TIMEOUT=1
    )

    closing = crawls.start(spider=redis_spiders.Page)
    wait_until(lambda: client.llen(f"{key}:items"), what="it works", within=WITHIN_S)
    server.kill()
    wait_until(lambda: "Items are not written" in closing.process.log, what="items wait", within=WITHIN_S)
    closing.interrupt()
    closing.wait(troubles=True)
    server.start()
    crawls.run(spider=redis_spiders.Page)

    assert {json.loads(item)["page"] for item in client.lrange(f"{key}:items", 0, -1)} == set(paths)


@pytest.mark.parametrize("left", ["both", "fingerprints"])
def test_a_new_crawl_warns_of_what_scrapy_redis_has_left(project: Crawls, site: Site, client: Any, left: str) -> None:
    site.pages = leaves("/")
    queue, seen = (f"{project.settings['PRIOQUEUE_NAME']}:{kind}" for kind in ("requests", "dupefilter"))
    begun = project.having(SCHEDULER_QUEUE_KEY=queue, SCHEDULER_DUPEFILTER_KEY=f"{seen}:%(spider)s")
    if left == "both":
        client.zadd(queue, {"a": 0, "b": 0})
    client.sadd(f"{seen}:follower", "00", "01", "02")

    results = [begun.run(troubles=True), begun.run(troubles=True)]

    client.delete(queue, f"{seen}:follower")
    requests, times = (2, 2) if left == "both" else (0, 1)
    lines = [line for result in results for line in result.lines("scrapy-redis has left")]
    assert len(lines) == times
    assert f"has left {requests} requests ({queue}) and 3 fingerprints ({seen}:follower)" in lines[0]
    assert "migrate-from-scrapy-redis --spider follower --name" in lines[0]
