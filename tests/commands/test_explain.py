"""`scrapy frontier explain`: each reason for which a URL is not being fetched."""

from __future__ import annotations

import random
import re
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgpack
import pytest
from scrapy import Request
from scrapy.utils.request import fingerprint

from scrapy_prioqueue.frontier.kept import Kept
from scrapy_prioqueue.frontier.policy import Policy
from scrapy_prioqueue.frontier.redis.keys import Keys
from scrapy_prioqueue.frontier.redis.link import Link
from scrapy_prioqueue.frontier.redis.operators import ahead
from scrapy_prioqueue.frontier.redis.operators.inspector import Inspector
from scrapy_prioqueue.frontier.seen import SeenPolicy
from scrapy_prioqueue.queues.starts import once_mark, start_mark
from tests.commands.conftest import Run
from tests.commands.requests import page
from tests.contract.backends import TTL_S, RedisBackend, ack, fail, release
from tests.support.servers import RedisServer

URL = "https://a.example/1"


def kinds(run: Run, url: str = URL) -> list[str]:
    return [reason["kind"] for reason in run("explain", url, "--json").json["reasons"]]


def test_never_seen(run: Run, backend: RedisBackend) -> None:
    backend.join("w1")

    ran = run("explain", URL)

    assert ran.code == 1
    assert "no worker has pushed it, or it was pushed with dont_filter=True and is done" in ran.out
    assert kinds(run) == ["unseen"]


@pytest.mark.parametrize("mark_of", [start_mark, once_mark])
def test_done_without_a_fingerprint(run: Run, backend: RedisBackend, mark_of: Callable[[bytes], bytes]) -> None:
    """As a request of `start()`, which isn't filtered, or one that isn't recorded."""
    worker = backend.join("w1", clock=None)
    request = Request("https://a.example", dont_filter=True)
    push = replace(page(request.url, slot="a"), fingerprint=None, start_mark=mark_of(fingerprint(request)))
    worker.commit(push)

    # Another spelling is found without its fingerprint, too.
    assert kinds(run, "https://a.example/") == ["pending"]
    (lease,) = worker.lease(1)
    assert kinds(run, "https://a.example/") == ["leased"]
    worker.commit(ack(lease))

    assert kinds(run, "https://a.example/") == ["done"]
    assert "in this crawl, which leaves no fingerprint" in run("explain", request.url).out
    assert run("explain", request.url).code == 0


def test_a_url_may_still_come_from_start_and_seeds(run: Run, backend: RedisBackend, client: Any) -> None:
    backend.clock.now_ms = int(time.time() * 1000)
    worker = backend.join("w1", policy=Policy(high_water=1))
    worker.ask(notes=[Kept(has_more_starts=True)])
    assert "start() may still yield it at worker w1" in run("explain", URL).out
    assert kinds(run) == ["unseen", "unread"]

    worker.commit(page("https://a.example/2"))
    worker.ask()
    seeds = f"seeds:{worker.frontier.config.name}"
    client.rpush(seeds, URL)
    explained = run("explain", URL, "-s", f"PRIOQUEUE_SEEDS_KEY={seeds}").out
    client.delete(seeds)

    assert "which doesn't read start() further at present" in explained
    assert f"not taken yet: {seeds}" in explained


def test_done(run: Run, backend: RedisBackend) -> None:
    worker = backend.join("w1")
    worker.commit(page(URL))
    worker.commit(ack(worker.lease(1)[0]))

    assert kinds(run) == ["done"]
    assert run("explain", URL).code == 0


def test_leased_for_what_only_its_worker_has(run: Run, backend: RedisBackend) -> None:
    worker = backend.join("w1")
    worker.commit(page(URL))
    (lease,) = worker.lease(1)
    worker.ask(notes=[Kept(3, 1, {lease.lease_id: 2})])

    explained = run("explain", URL)

    assert "its page is done, and 2 requests that it led to" in explained.out
    assert run("explain", URL, "--json").json["reasons"][0]["facts"]["kept"] == 2
    assert "3 more in the memory of their workers; 1 page stays leased until these are done" in run("status").out
    assert "kept" in run("workers").out
    (found,) = run("workers", "--json").json
    assert (found["kept"], found["kept_pages"]) == (3, 1)


def test_done_where_fingerprints_are_shared_and_the_crawl_has_ended(
    run: Run, backend: RedisBackend, frontier_name: str
) -> None:
    worker = backend.join("w1", seen_name=f"{frontier_name}-pool", seen=SeenPolicy("compact"))
    worker.commit(page(URL))
    worker.commit(ack(worker.lease(1)[0]))
    assert worker.lease(1, is_idle=True) == []
    worker.leave()

    assert kinds(run) == ["ended", "done"]
    assert run("explain", URL).code == 1
    assert run("status", "--json").json["state"]["seen_mode"] == "compact"


def test_seen_by_a_crawl_that_has_ended(run: Run, backend: RedisBackend) -> None:
    worker = backend.join("w1")
    worker.commit(page(URL))
    worker.commit(ack(worker.lease(1)[0]))
    assert worker.lease(1, is_idle=True) == []
    worker.leave()

    ran = run("explain", URL)

    assert ran.code == 1
    assert re.search("the crawl of frontier '.*' ended at 2.*\n  unknown: its fingerprints were dropped", ran.out)
    assert kinds(run) == ["ended", "unknown"]


def test_pending_behind_others_without_living_workers(run: Run, backend: RedisBackend) -> None:
    worker = backend.join("w1")
    worker.commit(page(URL), *(page(f"https://b.example/{number}", priority=1) for number in range(4)))

    # The workers' clock of the tests stands still long ago.
    assert kinds(run) == ["pending", "nobody"]
    assert "behind 4 requests" in run("explain", URL).out


def test_leased(run: Run, backend: RedisBackend, client: Any, keys: Keys) -> None:
    worker = backend.join("w1")
    worker.commit(page(URL))
    (lease,) = worker.lease(1)
    client.zadd(keys.leases, {lease.lease_id.to_bytes(8, "big"): 4_000_000_000_000})

    assert kinds(run) == ["leased"]
    assert "leased by w1 until" in run("explain", URL).out


def test_lease_that_has_expired(run: Run, backend: RedisBackend) -> None:
    worker = backend.join("w1")
    worker.commit(page(URL))
    worker.lease(1)

    assert "the lease has expired" in run("explain", URL).out


def test_dead(run: Run, backend: RedisBackend) -> None:
    worker = backend.join("w1")
    worker.commit(page(URL))
    worker.commit(fail(worker.lease(1)[0], "decode", "something\nbad"))

    assert kinds(run) == ["dead"]
    assert "because of decode: bad" in run("explain", URL).out


def test_delayed(run: Run, backend: RedisBackend) -> None:
    backend.join("w1").commit(replace(page(URL), not_before_ms=4_000_000_000_000))

    assert kinds(run) == ["delayed", "nobody"]
    assert "delayed until 2096" in run("explain", URL).out


def test_paused_fleet_and_waiting_slot(run: Run, backend: RedisBackend, client: Any, keys: Keys) -> None:
    backend.join("w1").commit(page(URL))
    client.hset(keys.state, "paused", 1)
    client.zadd(keys.of("paced"), {"a.example": 4_000_000_060_000})
    client.zadd(keys.of("workers"), {"w1": 4_000_000_000_000})

    assert kinds(run) == ["pending", "paused", "rate"]


def test_drained_fleet_explains_what_was_never_seen(run: Run, backend: RedisBackend, client: Any, keys: Keys) -> None:
    backend.join("w1")
    client.hset(keys.state, "drained", 1)

    assert kinds(run) == ["unseen", "drained"]


def test_the_page_on_which_it_was_found(run: Run, backend: RedisBackend) -> None:
    payload = b"\x01" + msgpack.packb({0: URL, 15: "https://a.example/list", 16: 1_700_000_000})
    backend.join("w1").commit(replace(page(URL), payload=payload))

    found = run("explain", URL, "--json").json["reasons"]

    assert {"source": "https://a.example/list", "found_s": 1_700_000_000} in [reason["facts"] for reason in found]


def test_other_spelling_of_the_same_page_is_found(run: Run, backend: RedisBackend) -> None:
    backend.join("w1").commit(page("https://a.example/1?b=2&a=1"), page("https://a.example/1?a=1&b=3"))

    found = run("explain", "https://a.example/1?a=1&b=2", "--json").json

    assert [request["request"]["url"] for request in found["requests"]] == ["https://a.example/1?b=2&a=1"]


def test_page_in_a_slot_of_another_name_is_found(run: Run, backend: RedisBackend) -> None:
    backend.join("w1").commit(page(URL, slot="apart", meta={"download_slot": "apart"}))

    assert kinds(run)[0] == "pending"


def test_an_invalid_url_is_wrong_use(run: Run, backend: RedisBackend) -> None:
    backend.join("w1")

    assert run("explain", "no-scheme").code == 2


@pytest.mark.parametrize("seed", range(4))
def test_as_many_go_before_as_are_served_before(backend: RedisBackend, redis_server: RedisServer, frontier_name: str,
                                               seed: int) -> None:  # fmt: skip
    chance = random.Random(seed)
    worker = backend.join("w1")
    for number in range(60):
        host = f"s{chance.randrange(5)}.example"
        worker.commit(page(f"https://{host}/{number}", priority=chance.randrange(2)))
    for lease in worker.lease(chance.randrange(9)):
        worker.commit(release(lease))
    inspector = Inspector(Link(redis_server.url), frontier_name)

    peeked = inspector.peek(60)

    # Slots change their turns while better ranks are served, so it is exact for the best rank only.
    best = [stored for stored in peeked if stored.rank == peeked[0].rank]
    assert [inspector.ahead_of(stored) for stored in best] == [(place, True) for place in range(len(best))]
    for place, stored in enumerate(peeked):
        assert abs(inspector.ahead_of(stored)[0] - place) < 5
    inspector.link.close()


def test_place_among_many_slots_is_an_estimate(
    run: Run, backend: RedisBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ahead, "SLOT_LIMIT", 10)
    backend.join("w1").commit(page(URL, tier=2), *(page(f"https://s{number}.example/") for number in range(39)))

    assert "behind about 39 requests" in run("explain", URL).out


def test_suspect_is_distinguished(run: Run, backend: RedisBackend) -> None:
    worker = backend.join("w1")
    worker.commit(page(URL))
    for number in range(2):
        worker.lease(1)
        backend.clock.advance(TTL_S + 1)
        worker = backend.join(f"w{number + 2}")
        worker.ask()

    assert "as a suspect" in run("explain", URL).out
