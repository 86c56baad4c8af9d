"""Crawls that are stopped or killed and started again lose nothing."""

from __future__ import annotations

import threading
from pathlib import Path

from redis import Redis

from tests.crawl.spiders import DEATH, Mannered
from tests.support.crawls import WITHIN_S, Crawls
from tests.support.servers import RedisServer
from tests.support.site import Page, Site, in_turn, leaves, link
from tests.support.waiting import wait_until


def leased(client: Redis, name: str) -> int:
    return int(client.hget(f"{{prioqueue:{name}}}:stats", "leased") or 0)


def pending(client: Redis, name: str) -> int:
    return int(client.hget(f"{{prioqueue:{name}}}:stats", "pending") or 0)


def test_an_interrupted_crawl_releases_what_it_has_not_started_and_is_resumed(
    on_redis: Crawls, site: Site, redis_server: RedisServer, frontier_name: str
) -> None:
    """Reports 91 and 96."""
    gate, client = threading.Event(), redis_server.client()
    numbers = [f"/{number}" for number in range(20)]
    site.pages = {"/": numbers, **dict.fromkeys(numbers, Page(gate=gate))}
    settings = {"CONCURRENT_REQUESTS": 4}

    first = on_redis.start(settings=settings)
    wait_until(lambda: len(first.pages) == 5, what="four pages are held", within=WITHIN_S)
    first.interrupt()
    wait_until(lambda: "Received SIGINT" in first.process.log, what="the signal is noticed", within=WITHIN_S)
    gate.set()
    stopped = first.wait()
    left, held = pending(client, frontier_name), leased(client, frontier_name)
    second = on_redis.run(settings=settings)

    assert stopped.reason == "shutdown"
    assert (len(stopped.pages), left, held) == (5, 16, 0)
    assert sorted([*stopped.pages, *second.pages]) == sorted(["/", *numbers])
    assert second.lines("Resumed crawl in frontier")
    assert second.reason == "finished"


def test_a_crawl_interrupted_twice_is_resumed_with_the_pages_that_were_running(on_redis: Crawls, site: Site) -> None:
    """Report 92."""
    gate = threading.Event()
    numbers = [f"/{number}" for number in range(20)]
    site.pages = {"/": numbers, **dict.fromkeys(numbers, Page(gate=gate))}
    worker = on_redis.having(PRIOQUEUE_WORKER_ID="me")

    first = worker.start(settings={"CONCURRENT_REQUESTS": 4})
    wait_until(lambda: len(first.pages) == 5, what="four pages are held", within=WITHIN_S)
    worker.wait_for_done(1)
    first.interrupt()
    wait_until(lambda: "Received SIGINT" in first.process.log, what="the signal is noticed", within=WITHIN_S)
    first.interrupt()
    first.process.wait(within=WITHIN_S)
    gate.set()
    second = worker.run()

    assert sorted(item["page"] for item in second.items) == sorted(numbers)
    assert second.reason == "finished"


def test_a_killed_worker_gets_its_leases_back_at_once_under_its_id(on_redis: Crawls, site: Site) -> None:
    gate = threading.Event()
    site.pages = {"/": ["/a", "/b"], "/a": Page(gate=gate), "/b": Page(gate=gate)}
    worker = on_redis.having(PRIOQUEUE_WORKER_ID="me", PRIOQUEUE_LEASE_TTL=600)

    first = worker.start()
    first.wait_for("asked", "/a", "/b")
    worker.wait_for_done(1)
    first.kill()
    gate.set()
    second = worker.run()

    assert sorted(second.pages) == ["/a", "/b"]
    assert second.lines("Got back 2 requests of an earlier process")
    assert second.reason == "finished"


def test_leases_of_a_killed_worker_go_to_another_when_they_expire(on_redis: Crawls, site: Site) -> None:
    gate = threading.Event()
    site.pages = {"/": ["/a"], "/a": Page(gate=gate)}
    worker = on_redis.having(PRIOQUEUE_LEASE_TTL=2)

    first = worker.start()
    first.wait_for("asked", "/a")
    worker.wait_for_done(1)
    first.kill()
    gate.set()
    second = worker.run()

    assert second.pages == ["/a"]
    assert second.stats["prioqueue/lease/reaped"] == 1
    assert second.reason == "finished"


def test_a_page_counts_as_done_only_when_its_item_has_passed_the_pipelines(
    on_redis: Crawls, site: Site, tmp_path: Path
) -> None:
    """Report 89."""
    gate = tmp_path / "gate"
    site.pages = {"/": ["/child"], **leaves("/child")}
    piped = on_redis.having(
        PRIOQUEUE_WORKER_ID="me",
        TESTS_GATE=str(gate),
        ITEM_PIPELINES={"tests.crawl.spiders.GatePipeline": 1},
    )

    first = piped.start()
    first.wait_for("asked", "/", "/child")
    first.kill()
    gate.touch()
    second = piped.run()

    assert not first.events("item")
    assert sorted(item["page"] for item in second.items) == ["/", "/child"]
    assert second.reason == "finished"


def test_a_page_that_kills_its_worker_again_and_again_becomes_a_dead_letter(
    on_redis: Crawls, site: Site, redis_server: RedisServer, frontier_name: str
) -> None:
    """Report 119."""
    site.pages = {"/": []}
    start = link("/", callback="parse_and_die")
    worker = on_redis.having(PRIOQUEUE_WORKER_ID="me", PRIOQUEUE_MAX_ATTEMPTS=2)

    codes = [worker.start(start, spider=Mannered).process.wait(within=WITHIN_S) for _ in range(2)]
    last = worker.run(start, spider=Mannered, troubles=True)

    assert codes == [DEATH, DEATH]
    assert last.lines("becomes a dead letter: leased 2 times and never acked")
    assert last.pages == []
    assert last.reason == "finished"
    assert redis_server.client().hlen(f"{{prioqueue:{frontier_name}}}:dead") == 1


def test_a_worker_whose_id_another_process_has_taken_closes(on_redis: Crawls, site: Site) -> None:
    gates = [threading.Event(), threading.Event()]
    site.pages = {"/": ["/a"], "/a": in_turn(*(Page(gate=gate) for gate in gates))}
    worker = on_redis.having(PRIOQUEUE_WORKER_ID="me")

    first = worker.start()
    first.wait_for("asked", "/a")
    second = worker.start()
    second.wait_for("asked", "/a")
    gates[0].set()
    superseded = first.wait(troubles=True)
    gates[1].set()
    successor = second.wait()

    assert superseded.reason == "prioqueue_rejected"
    assert superseded.lines("give each living worker an id of its own")
    assert successor.reason == "finished"
    assert [item["page"] for item in successor.items] == ["/a"]
