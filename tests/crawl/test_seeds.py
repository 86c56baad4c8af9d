"""Seeds are crawled although workers are killed; those that can't be read become dead letters."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Mapping
from typing import Any

import pytest
from scrapy import Spider

from tests.crawl.seeded import Dying, Fenced, Own, Plain, Seeded, Stamped, StampedPlain
from tests.crawl.test_reactors import loops
from tests.support.crawls import WITHIN_S, Crawls
from tests.support.servers import StartServer
from tests.support.shop import let_pass
from tests.support.site import Page, Site, leaves
from tests.support.waiting import wait_until


@pytest.fixture
def key(frontier_name: str) -> str:
    """The key of seeds of this test."""
    return f"{frontier_name}:start_urls"


@pytest.fixture
def seeded(on_redis: Crawls, key: str) -> Crawls:
    """Crawls that live on the seeds of this test."""
    return Crawls(
        on_redis.site,
        on_redis.start_fork,
        on_redis.directory,
        Seeded,
        {**on_redis.settings, "PRIOQUEUE_SEEDS_KEY": key},
    )


def left(client: Any, key: str) -> list[str]:
    """Return all keys that have to do with these seeds."""
    return sorted(found.decode() for found in client.scan_iter(f"*{key}*", count=1000))


def dead_letters(client: Any, name: str) -> list[bytes]:
    return list(client.hvals(f"{{prioqueue:{name}}}:dead"))


def numbers(site: Site, count: int) -> tuple[list[str], list[str]]:
    """Put so many pages on the site; return their paths and their addresses."""
    paths = [f"/{number}" for number in range(count)]
    site.pages = leaves(*paths)
    return paths, [site.url(path) for path in paths]


# What is read


def test_a_list_is_crawled_from_its_head_on(seeded: Crawls, site: Site, client: Any, key: str) -> None:
    paths, urls = numbers(site, 20)
    client.rpush(key, *urls)

    result = seeded.run(settings={"CONCURRENT_REQUESTS": 1})

    assert result.pages == paths
    assert result.reason == "finished"
    assert result.stats["prioqueue/seeds/taken"] == 20
    assert result.stats["scheduler/enqueued/redis"] == 20
    assert left(client, key) == []


def test_a_sorted_set_is_crawled_from_its_highest_score_on(seeded: Crawls, site: Site, client: Any, key: str) -> None:
    paths, urls = numbers(site, 20)
    client.zadd(key, {url: number for number, url in enumerate(urls)})

    result = seeded.run(settings={"CONCURRENT_REQUESTS": 1})

    assert result.pages == paths[::-1]
    assert left(client, key) == []


def test_a_set_is_crawled(seeded: Crawls, site: Site, client: Any, key: str) -> None:
    paths, urls = numbers(site, 20)
    client.sadd(key, *urls)

    result = seeded.run()

    assert sorted(result.pages) == sorted(paths)
    assert left(client, key) == []


def test_the_default_key_is_named_after_the_spider(on_redis: Crawls, site: Site, client: Any) -> None:
    paths, urls = numbers(site, 3)
    client.rpush("seeded:start_urls", *urls)

    result = on_redis.run(spider=Seeded)

    assert sorted(result.pages) == paths


def test_an_object_says_all_of_a_request(seeded: Crawls, site: Site, client: Any, key: str) -> None:
    site.pages = leaves("/late", "/first")
    details = {
        "url": site.url("/first"),
        "method": "POST",
        "headers": {"X-Label": "h"},
        "body": "é",
        "meta": {"label": "m"},
        "cb_kwargs": {"more": [1]},
        "tier": "urgent",
        "priority": 5,
        "callback": "parse_details",
        "dont_filter": True,
    }
    client.rpush(key, json.dumps(details), json.dumps(details), site.url("/late"))

    result = seeded.run(settings={"CONCURRENT_REQUESTS": 1})

    item = {"page": "/first", "method": "POST", "label": "h", "body": "é", "meta": "m", "more": [1]}
    assert result.items == [item, item, {"page": "/late"}]
    assert (result.stats["prioqueue/done/tier/urgent"], result.stats["prioqueue/done/tier/normal"]) == (2, 1)


def test_duplicates_are_filtered_and_dropped(seeded: Crawls, site: Site, client: Any, key: str) -> None:
    _, urls = numbers(site, 1)
    client.rpush(key, *urls, *urls, *urls)

    result = seeded.run()

    assert result.pages == ["/0"]
    assert result.stats["dupefilter/filtered"] == 2
    assert len(result.dropped) == 2
    assert left(client, key) == []


def test_keys_are_read_best_first(seeded: Crawls, site: Site, client: Any, key: str) -> None:
    paths, urls = numbers(site, 6)
    client.rpush(f"{key}:late", *urls[3:])
    client.zadd(f"{key}:first", dict.fromkeys(urls[:3], 1))

    result = seeded.run(settings={"PRIOQUEUE_SEEDS_KEY": [f"{key}:first", f"{key}:late"], "CONCURRENT_REQUESTS": 1})

    assert sorted(result.pages[:3]) == paths[:3]
    assert result.pages[3:] == paths[3:]


def test_a_spider_without_the_mixin_reads_seeds_only_with_the_setting(
    on_redis: Crawls, site: Site, client: Any, key: str
) -> None:
    paths, urls = numbers(site, 3)
    client.rpush("plain:start_urls", *urls)
    client.rpush(key, *urls)

    silent = on_redis.run(spider=Plain)
    told = on_redis.run(spider=Plain, settings={"PRIOQUEUE_SEEDS_KEY": key})

    assert silent.pages == []
    assert not silent.lines("Reading seeds")
    assert sorted(told.pages) == paths
    assert client.delete("plain:start_urls") == 1


def test_pages_that_seeds_lead_to_are_crawled_by_two_workers_once_each(
    seeded: Crawls, site: Site, client: Any, key: str
) -> None:
    paths, urls = numbers(site, 600)
    client.rpush(key, *urls)

    first, second = seeded.start(), seeded.start()
    results = [first.wait(), second.wait()]

    assert sorted(page for result in results for page in result.pages) == sorted(paths)
    assert left(client, key) == []


# What can't be read


def test_unreadable_seeds_are_kept_with_the_reason(
    seeded: Crawls, site: Site, client: Any, key: str, frontier_name: str
) -> None:
    _, urls = numbers(site, 1)
    client.rpush(
        key,
        b"\xff",
        "ftp://example.com/",
        '{"url": 7}',
        json.dumps({"url": urls[0], "callback": "closed"}),
        json.dumps({"url": urls[0], "tier": "best"}),
        urls[0],
    )

    crawl = seeded.start()
    result = crawl.wait(troubles=True)

    letters = dead_letters(client, frontier_name)
    assert len(crawl.events("request_dead_lettered")) == 5
    assert result.pages == ["/0"]
    assert result.reason == "finished"
    assert result.stats["prioqueue/dead/decode"] == 5
    assert len(letters) == 5
    for raw, reason in [
        (b"\xff", b"not UTF-8"),
        (b"ftp://example.com/", b"must begin with http:// or https://"),
        (b'{"url": 7}', b"url must be a string"),
        (b'"closed"', b"not a public method of spider"),
        (b'"best"', b"not in PRIOQUEUE_TIERS"),
    ]:
        (letter,) = [letter for letter in letters if raw in letter and reason in letter]
        assert b"decode" in letter
        assert f"seed of {key}".encode() in letter
    counts = client.hgetall(f"{{prioqueue:{frontier_name}}}:stats")
    assert (int(counts[b"accepted"]), int(counts[b"dead"]), int(counts[b"done"])) == (6, 5, 1)


def test_a_seed_for_which_the_fingerprinter_raises_is_kept_with_the_reason(
    seeded: Crawls, site: Site, client: Any, key: str, frontier_name: str
) -> None:
    site.pages = leaves("/0")
    client.rpush(key, site.url("/broken"), site.url("/0"))
    fingerprinter = "tests.crawl.spiders.SometimesBrokenFingerprinter"

    result = seeded.run(settings={"REQUEST_FINGERPRINTER_CLASS": fingerprinter}, troubles=True)

    (letter,) = dead_letters(client, frontier_name)
    assert result.pages == ["/0"]
    assert b"/broken" in letter and b"the fingerprinter of a test fails" in letter
    assert left(client, key) == []


def test_a_spider_makes_requests_in_its_own_way(
    seeded: Crawls, site: Site, client: Any, key: str, frontier_name: str
) -> None:
    site.pages = leaves("/one", "/two")
    client.rpush(key, "two", "nothing", "lambda", "number", "unknown")

    result = seeded.run(spider=Own, troubles=True)

    assert sorted(result.pages) == ["/one", "/two"]
    letters = b"".join(dead_letters(client, frontier_name))
    assert b"can't be stored" in letters
    assert b"returned 7, which is not a Request" in letters
    assert b"make_request_from_seed() raised KeyError: 'unknown'" in letters
    assert result.reason == "finished"
    assert left(client, key) == []


def test_seeds_of_other_sites_are_dropped_as_requests_of_other_sites_are(
    seeded: Crawls, site: Site, client: Any, key: str, frontier_name: str
) -> None:
    _, urls = numbers(site, 1)
    client.rpush(key, site.url("/0", host=site.hosts[1]), *urls)

    result = seeded.run(spider=Fenced)

    assert result.pages == ["/0"]
    assert result.stats["offsite/filtered"] == 1
    assert dead_letters(client, frontier_name) == []
    assert left(client, key) == []


# Kills


def test_seeds_of_a_killed_worker_are_read_by_another_when_it_is_given_up(
    seeded: Crawls, site: Site, client: Any, key: str
) -> None:
    paths, urls = numbers(site, 20)
    client.rpush(key, *urls)
    worker = seeded.having(PRIOQUEUE_LEASE_TTL=2)

    worker.start(spider=Dying).process.wait(within=WITHIN_S)
    taken = [found for found in left(client, key) if ":taken:" in found]
    second = worker.run()

    assert len(taken) == 1
    assert sorted(second.pages) == sorted(paths)
    assert second.stats["prioqueue/seeds/returned"] == 20
    assert left(client, key) == []


def test_a_killed_worker_reads_its_seeds_again_at_once_under_its_id(
    seeded: Crawls, site: Site, client: Any, key: str
) -> None:
    paths, urls = numbers(site, 20)
    client.zadd(key, {url: -number for number, url in enumerate(urls)})
    worker = seeded.having(PRIOQUEUE_LEASE_TTL=600, PRIOQUEUE_WORKER_ID="me", CONCURRENT_REQUESTS=1)

    worker.start(spider=Dying).process.wait(within=WITHIN_S)
    second = worker.run()

    assert second.pages == paths
    assert left(client, key) == []


@pytest.mark.server_faults
def test_workers_killed_again_and_again_lose_no_seed(seeded: Crawls, site: Site, client: Any, key: str) -> None:
    paths, urls = numbers(site, 600)
    worker = seeded.having(PRIOQUEUE_LEASE_TTL=2)
    client.rpush(key, *urls)

    for pages in (50, 150, 250, 350):
        crawl = worker.start()
        wait_until(lambda pages=pages: len(site.visits) >= pages, what=f"{pages} pages", within=WITHIN_S)  # type: ignore[misc]
        crawl.kill()
    last = worker.run()

    assert {visit.path for visit in site.visits} == set(paths)
    assert last.reason == "finished"
    assert left(client, key) == []


# Waiting


@pytest.mark.real_time
def test_a_spider_waits_for_ever_and_starts_new_seeds_soon(seeded: Crawls, site: Site, client: Any, key: str) -> None:
    paths, urls = numbers(site, 4)
    crawl = seeded.start(settings={"PRIOQUEUE_MAX_IDLE": -1})
    wait_until(lambda: "Reading seeds" in crawl.process.log, what="it runs", within=WITHIN_S)

    delays = []
    for path, url in zip(paths, urls, strict=True):
        let_pass(1.3)
        pushed = time.monotonic()
        client.rpush(key, url)
        crawl.wait_for("asked", path)
        delays.append(time.monotonic() - pushed)
    crawl.interrupt()
    result = crawl.wait()

    # It may be 5 s until Scrapy looks again by itself.
    assert max(delays) < 2.5
    assert result.reason == "shutdown"
    assert left(client, key) == []


@pytest.mark.parametrize(("order", "said"), [("drained", "is draining the crawl"), ("paused", "has paused the crawl")])
def test_no_seeds_are_taken_while_an_operator_has_drained_or_paused_the_crawl(
    seeded: Crawls, site: Site, client: Any, key: str, frontier_name: str, order: str, said: str
) -> None:
    paths, urls = numbers(site, 2)
    state = f"{{prioqueue:{frontier_name}}}:state"
    first = seeded.start(settings={"PRIOQUEUE_MAX_IDLE": -1})
    wait_until(lambda: "Reading seeds" in first.process.log, what="it runs", within=WITHIN_S)
    client.hset(state, order, "1")
    wait_until(lambda: said in first.process.log, what="the order is known", within=WITHIN_S)

    client.rpush(key, *urls)
    second = seeded.start(settings={"PRIOQUEUE_MAX_IDLE": 0})
    wait_until(lambda: said in second.process.log, what="the order is known here, too", within=WITHIN_S)
    let_pass(2.5)
    waiting, asked = client.llen(key), first.pages
    client.hdel(state, order)
    wait_until(lambda: len(site.visits) == 2, what="they are crawled", within=WITHIN_S)
    first.interrupt()
    first.wait()
    second.wait()

    assert (waiting, asked) == (2, [])
    assert sorted(visit.path for visit in site.visits) == paths


@pytest.mark.server_faults
def test_a_worker_that_is_stopped_leaves_the_rest_where_it_was(
    seeded: Crawls, site: Site, client: Any, key: str
) -> None:
    paths, urls = numbers(site, 500)
    gate = threading.Event()
    site.pages.update(dict.fromkeys(paths[100:], Page(gate=gate)))
    client.rpush(key, *urls)

    # With plenty pending it reads a batch a second.
    crawl = seeded.start(settings={"PRIOQUEUE_SEEDS_BATCH_SIZE": 10})
    wait_until(lambda: len(site.visits) > 100, what="it works", within=WITHIN_S)
    crawl.interrupt()
    wait_until(lambda: "Received SIGINT" in crawl.process.log, what="it stops", within=WITHIN_S)
    gate.set()
    crawl.wait()
    rest = left(client, key)
    seeded.run()

    assert rest == [key]
    assert sorted(visit.path for visit in site.visits) == sorted(paths)


# What stands in the way


@pytest.mark.server_faults
def test_a_key_of_another_type_is_logged_once(seeded: Crawls, site: Site, client: Any, key: str) -> None:
    client.set(key, "x")

    result = seeded.run(settings={"PRIOQUEUE_MAX_IDLE": 3}, troubles=True)

    assert len(result.troubles) == 1
    assert result.lines(f"Seeds are not read: {key} is a string, not a list, set or sorted set; delete it")
    assert result.reason == "prioqueue_seeds_unread"
    assert left(client, key) == [key]


@pytest.mark.server_faults
def test_missing_rights_are_logged_once(
    seeded: Crawls, site: Site, redis_server_factory: StartServer, key: str
) -> None:
    server = redis_server_factory()
    admin: Any = server.client()
    admin.execute_command("ACL", "SETUSER", "worker", "on", ">word", "~{prioqueue:*", "&*", "+@all")

    def crawl() -> Any:
        url = server.url.replace("redis://", "redis://worker:word@")
        return seeded.run(settings={"PRIOQUEUE_REDIS_URL": url, "PRIOQUEUE_MAX_IDLE": 3}, troubles=True)

    refused = crawl()
    rules = f"~{key} ~{{{key}}}:take*"
    admin.execute_command("ACL", "SETUSER", "worker", *rules.split())
    paths, urls = numbers(site, 3)
    admin.rpush(key, *urls)
    allowed = crawl()

    (line,) = refused.lines("Seeds are not read")
    assert rules in line
    assert refused.reason == "prioqueue_seeds_unread"
    assert not allowed.troubles
    assert sorted(allowed.pages) == paths


def test_without_a_server_no_seeds_are_read(in_memory: Crawls, site: Site, key: str) -> None:
    settings = {"PRIOQUEUE_SEEDS_KEY": key, "PRIOQUEUE_MAX_IDLE": -1}

    result = in_memory.run(spider=Seeded, settings=settings)

    assert len(result.lines(f"Seeds ({key}) are not read without the server")) == 1
    assert result.reason == "finished"


@pytest.mark.server_faults
def test_a_server_that_is_away_for_a_while_loses_no_seed(
    seeded: Crawls, site: Site, redis_server_factory: StartServer, key: str
) -> None:
    paths, urls = numbers(site, 400)
    server = redis_server_factory(appendonly="yes", appendfsync="always")
    client: Any = server.client()
    crawl = seeded.start(settings={"PRIOQUEUE_REDIS_URL": server.url, "PRIOQUEUE_MAX_IDLE": 8})
    client.rpush(key, *urls)
    wait_until(lambda: len(site.visits) >= 50, what="it works", within=WITHIN_S)

    server.kill()
    server.start()
    result = crawl.wait(troubles=True)

    assert {visit.path for visit in site.visits} == set(paths)
    assert len(result.lines("Seeds are not read")) <= 1
    assert left(server.client(), key) == []


@loops
def test_seeds_are_read_on_every_loop(
    seeded: Crawls, site: Site, client: Any, key: str, process: str, settings: Mapping[str, Any], said: str
) -> None:
    paths, urls = numbers(site, 10)
    client.rpush(key, *urls)

    result = seeded.start(settings=settings, process=process).wait()

    assert said in result.log
    assert sorted(result.pages) == paths
    assert left(client, key) == []


# Spider middlewares


@pytest.mark.parametrize("spider", [Stamped, StampedPlain])
def test_seeds_go_through_process_start_once_as_start_requests_do(
    seeded: Crawls, site: Site, client: Any, key: str, spider: type[Spider]
) -> None:
    paths, urls = numbers(site, 9)
    site.pages = {**site.pages, **leaves("/own")}
    settings = {
        "SPIDER_MIDDLEWARES": {"tests.crawl.seeded.Stamps": 500},
        "PRIOQUEUE_MAX_IDLE": -1,
        "CONCURRENT_REQUESTS": 1,
    }

    crawl = seeded.start(spider=spider, settings=settings)
    for first in (0, 3, 6):
        client.rpush(key, *urls[first : first + 3])
        crawl.wait_for("item", *paths[first : first + 3])
    crawl.interrupt()
    result = crawl.wait()

    assert {item["page"] for item in result.items} == {"/own", *paths}
    assert sorted(item["stamps"] for item in result.items) == [[number] for number in range(1, 11)]
    assert left(client, key) == []


def test_seeds_that_process_start_drops_replaces_or_fails_on_are_done(
    seeded: Crawls, site: Site, client: Any, key: str, frontier_name: str
) -> None:
    site.pages = leaves("/a", "/other", "/added-before", "/added", "/b")
    names = ("a", "dropped", "replaced", "added", "fail", "dropped", "b")
    client.rpush(key, *(site.url(f"/{name}") for name in names))

    result = seeded.run(settings={"SPIDER_MIDDLEWARES": {"tests.crawl.seeded.Choice": 500}}, troubles=True)

    assert sorted(result.pages) == ["/a", "/added", "/added-before", "/b", "/other"]
    assert result.reason == "finished"
    assert result.stats["prioqueue/seeds/taken"] == 7
    assert result.stats["prioqueue/seeds/dropped"] == 2
    assert left(client, key) == []
    (letter,) = dead_letters(client, frontier_name)
    assert b"/fail" in letter
    assert b"process_start() of a spider middleware raised ValueError" in letter


def test_seeds_of_one_session_are_first_requests(seeded: Crawls, site: Site, client: Any, key: str) -> None:
    gate = threading.Event()
    site.pages = {"/0": Page(gate=gate), **leaves("/1")}
    seed = json.dumps({"url": site.url("/0"), "meta": {"cookiejar": 1}})
    client.rpush(key, seed)

    crawl = seeded.start(settings={"PRIOQUEUE_MAX_IDLE": 1})
    crawl.wait_for("asked", "/0")
    client.rpush(key, seed.replace("/0", "/1"))
    crawl.wait_for("asked", "/1")
    gate.set()
    result = crawl.wait()

    assert "prioqueue/cookiejar/kept" not in result.stats
    assert result.reason == "finished"
    assert not left(client, key)
