"""When a crawl ends, what the next crawl finds, and which workers may join."""

from __future__ import annotations

import threading
from typing import Any

from scrapy import Request

from scrapy_prioqueue.codec import RequestCodec
from scrapy_prioqueue.frontier import open_frontier
from scrapy_prioqueue.frontier.base import Batch, FrontierConfig, Push
from tests.crawl.spiders import Follower
from tests.support.coroutines import run
from tests.support.crawls import Crawls
from tests.support.servers import RedisServer
from tests.support.site import Page, Site, leaves, link


def nouns(server: RedisServer, name: str) -> set[str]:
    keys: Any = server.client().keys(f"{{prioqueue:{name}}}:*")
    return {key.decode().split("}:")[1].partition(":")[0] for key in keys}


def counts(server: RedisServer, name: str) -> dict[str, int]:
    found: Any = server.client().hgetall(f"{{prioqueue:{name}}}:stats")
    return {key.decode(): int(value) for key, value in found.items()}


def test_two_workers_share_the_pages_and_end_together(on_redis: Crawls, site: Site) -> None:
    """Report 69."""
    gate = threading.Event()
    numbers = [f"/{number}" for number in range(60)]
    site.pages = {"/": [*numbers, "/held"], "/held": Page(gate=gate), **dict.fromkeys(numbers, Page(delay_s=0.05))}

    workers = [on_redis.start(settings={"CONCURRENT_REQUESTS": 4}) for _ in range(2)]
    for worker in workers:
        worker.wait_for("scheduled", "/")
    site_is_done = {"/", "/held", *numbers}
    workers[0].wait_for_site(site_is_done)
    assert all(worker.process.is_running for worker in workers)
    gate.set()
    results = [worker.wait() for worker in workers]

    pages = [page for result in results for page in result.pages]
    assert sorted(pages) == sorted(site_is_done)
    assert [result.reason for result in results] == ["finished", "finished"]
    assert all(result.pages for result in results)


def test_the_crawl_after_a_finished_one_begins_with_nothing_seen(on_redis: Crawls, site: Site) -> None:
    """Report 14."""
    site.pages = {"/": ["/a"], **leaves("/a")}

    results = [on_redis.run(), on_redis.run()]

    assert [result.pages for result in results] == [["/", "/a"], ["/", "/a"]]
    assert all(result.lines("New crawl in frontier") for result in results)
    assert [len(result.lines("The last crawl in frontier")) for result in results] == [0, 1]


def test_kept_fingerprints_leave_only_start_requests_to_the_next_crawl(on_redis: Crawls, site: Site) -> None:
    """Report 20."""
    site.pages = {"/": ["/a", "/b"], **leaves("/a", "/b")}
    keeping = on_redis.having(PRIOQUEUE_ON_FINISH="keep")

    keeping.run(link("/", dont_filter=True))
    second = keeping.run(link("/", dont_filter=True))

    assert second.pages == ["/"]
    assert second.lines("The queue is empty, with 2 fingerprints kept from earlier crawls (PRIOQUEUE_ON_FINISH)")
    assert second.reason == "finished"


def test_a_finished_crawl_leaves_no_requests_and_nothing_seen_in_redis(
    on_redis: Crawls, site: Site, redis_server: RedisServer, frontier_name: str
) -> None:
    site.pages = {"/": ["/a"], **leaves("/a")}

    on_redis.run()

    assert not nouns(redis_server, frontier_name) & {"queue", "ready", "leases", "leased", "seen", "marks"}


def test_a_worker_that_comes_after_the_end_of_its_crawl_id_fetches_nothing(on_redis: Crawls, site: Site) -> None:
    site.pages = {"/": ["/a"], **leaves("/a")}
    named = on_redis.having(PRIOQUEUE_CRAWL_ID="monday")

    first, late, next_one = named.run(), named.run(), named.having(PRIOQUEUE_CRAWL_ID="tuesday").run()

    assert first.pages == next_one.pages == ["/", "/a"]
    assert late.pages == []
    assert late.reason == "finished"
    assert late.lines("crawl 'monday'")


def test_another_crawl_id_is_refused_while_a_crawl_is_unfinished(on_redis: Crawls, site: Site) -> None:
    site.pages = {"/": ["/a", "/b"], **leaves("/a", "/b")}
    one_page = {"CLOSESPIDER_PAGECOUNT": 1, "CONCURRENT_REQUESTS": 1}

    on_redis.run(settings={"PRIOQUEUE_CRAWL_ID": "monday", **one_page})
    other = on_redis.run(settings={"PRIOQUEUE_CRAWL_ID": "tuesday"}, troubles=True)

    assert other.pages == []
    assert other.reason == "prioqueue_rejected"
    assert other.lines("holds the unfinished crawl 'monday'")


def test_a_flush_begins_a_new_crawl(on_redis: Crawls, site: Site) -> None:
    site.pages = {"/": ["/a", "/b"], **leaves("/a", "/b")}

    on_redis.run(settings={"CLOSESPIDER_PAGECOUNT": 1, "CONCURRENT_REQUESTS": 1})
    second = on_redis.run(settings={"PRIOQUEUE_FLUSH_ON_START": True})

    assert sorted(second.pages) == ["/", "/a", "/b"]


def test_a_flush_is_refused_while_another_worker_lives(on_redis: Crawls, site: Site) -> None:
    gate = threading.Event()
    site.pages = {"/": ["/a"], "/a": Page(gate=gate)}

    working = on_redis.start(settings={"PRIOQUEUE_WORKER_ID": "the-first"})
    working.wait_for("asked", "/a")
    refused = on_redis.run(settings={"PRIOQUEUE_FLUSH_ON_START": True}, troubles=True)
    gate.set()

    assert refused.reason == "prioqueue_rejected"
    assert refused.pages == []
    assert refused.lines("has other living workers (the-first)")
    assert working.wait().reason == "finished"
    assert site.count("/a") == 1


def test_an_idle_worker_gets_what_another_program_pushes(
    on_redis: Crawls, site: Site, redis_server: RedisServer, frontier_name: str
) -> None:
    """Reports 25, 54, 72 and 74."""
    site.pages = {"/": [], "/pushed": ["/child"], **leaves("/child")}
    payload = RequestCodec(Follower(site=site.url(), starts=[])).encode(Request(site.url("/pushed")))

    async def push() -> None:
        config = FrontierConfig(frontier_name, ("urgent", "high", "normal", "low"), "program")
        frontier = open_frontier(config, redis_server.url)
        await frontier.join()
        await frontier.exchange([Batch(1, [Push(2 * 2**45, "127.0.0.1", payload)])], None)
        await frontier.leave()
        await frontier.close()

    worker = on_redis.start(settings={"PRIOQUEUE_MAX_IDLE": 60})
    worker.wait_for("item", "/")
    run(push())
    worker.wait_for("item", "/pushed", "/child")
    worker.interrupt()

    assert worker.wait().reason == "shutdown"


def test_a_worker_waits_for_its_idle_time_and_then_ends(on_redis: Crawls, site: Site) -> None:
    """Report 73."""
    site.pages = {"/": Page(delay_s=1.5)}

    result = on_redis.run(settings={"PRIOQUEUE_MAX_IDLE": 1})

    assert result.reason == "finished"
    assert result.stats["elapsed_time_seconds"] > 2.5


def test_the_books_balance_while_a_page_is_held(
    on_redis: Crawls, site: Site, redis_server: RedisServer, frontier_name: str
) -> None:
    gate = threading.Event()
    site.pages = {"/": ["/held", "/b", "/c"], "/held": Page(gate=gate), **leaves("/b", "/c")}

    crawl = on_redis.start()
    crawl.wait_for("item", "/b", "/c")
    crawl.wait_for("asked", "/held")
    found = counts(redis_server, frontier_name)
    gate.set()
    crawl.wait()

    assert found["accepted"] == 4
    assert sum(found.get(state, 0) for state in ("pending", "leased", "dead", "done")) == 4
