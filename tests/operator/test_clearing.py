"""A clearing deletes all keys of a frontier and no others, and continues an interrupted one."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import closing
from typing import Any

import pytest

from scrapy_prioqueue.errors import FrontierUnavailable
from scrapy_prioqueue.frontier.policy import Policy, SlotLimit
from scrapy_prioqueue.frontier.redis import clearing
from scrapy_prioqueue.frontier.redis.clearing import FIELDS, Clearing
from scrapy_prioqueue.frontier.redis.connection import Connection
from scrapy_prioqueue.frontier.redis.frontier import RedisFrontier
from scrapy_prioqueue.frontier.redis.key_types import TYPES
from scrapy_prioqueue.frontier.redis.keys import KEPT_BY_ALL, Keys
from scrapy_prioqueue.frontier.redis.link import Link
from scrapy_prioqueue.frontier.redis.operators.calls import ScriptCalls
from scrapy_prioqueue.frontier.redis.operators.operator import Operator
from scrapy_prioqueue.frontier.seen import SeenPolicy
from tests.contract.backends import RedisBackend, Worker, ack, push
from tests.support.servers import RedisServer

SEEN = {
    "exact": SeenPolicy(),
    "overflowing": SeenPolicy(expected=1),
    "times": SeenPolicy(revisit_s=60),
    "bloom": SeenPolicy(mode="bloom"),
}


@pytest.fixture
def left(client: Any, frontier_name: str) -> Callable[[], set[str]]:
    """Return the nouns of the keys that there are."""
    keys = Keys(frontier_name)
    return lambda: {keys.noun(key) for key in client.keys(keys.pattern())}


@pytest.fixture
def scans(client: Any) -> Iterator[Callable[[], int]]:
    """Return how often keys were scanned for since the test began."""
    client.config_resetstat()
    yield lambda: client.info("commandstats").get("cmdstat_scan", {"calls": 0})["calls"]


def fill(worker: Worker, slots: int = 30, requests: int = 300) -> None:
    """Push requests that wait in every kind of place, and lease some."""
    numbers = range(requests)
    fingerprints = [b"%020d" % number for number in numbers]
    worker.commit(*(push(f"{n}", slot=f"s{n % slots}", fingerprint=fingerprints[n]) for n in numbers))
    worker.commit(push("start", start_mark=b"%020d" % 0), push("later", delay_ms=60_000))
    worker.lease(3)


@pytest.mark.parametrize("mode", SEEN)
@pytest.mark.parametrize(
    "policy",
    [
        pytest.param(Policy(), id="plain"),
        pytest.param(Policy(slots={"*": SlotLimit(delay=1000)}, weights=(2,)), id="limits-and-weights"),
    ],
)
def test_a_reset_drops_everything_without_looking_for_it(
    *,
    operator: Operator,
    backend: RedisBackend,
    left: Callable[[], set[str]],
    scans: Callable[[], int],
    mode: str,
    policy: Policy,
) -> None:
    worker = backend.join("w1", policy=policy, seen=SEEN[mode])
    fill(worker)
    assert {"queue", "seen", "delayed", "leased"} <= left()

    operator.reset()

    assert scans() == 0
    assert left() == {"state"}


def test_slots_that_have_not_found_their_lines_lose_their_queues_too(
    operator: Operator, backend: RedisBackend, left: Callable[[], set[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(backend.join("w1"), slots=300)
    monkeypatch.setattr(RedisFrontier, "_sort_slots", never)
    backend.join("w2", policy=Policy(weights=(2,)))
    assert "unsorted" in left()

    operator.reset()

    assert left() == {"state"}


async def never(self: RedisFrontier) -> bool:
    return True


def test_the_last_worker_clears_without_looking_for_keys(
    backend: RedisBackend, left: Callable[[], set[str]], scans: Callable[[], int], client: Any
) -> None:
    worker = backend.join("w1")
    worker.commit(*(push(f"{n}", fingerprint=b"%020d" % n) for n in range(10)))
    client.mset({f"foreign:{number}": 0 for number in range(2000)})

    worker.commit(*(ack(lease) for lease in worker.lease(10)))
    assert worker.ask(is_idle=True).has_ended
    worker.leave()

    assert scans() == 0
    assert left() == {"state", "stats"}


@pytest.mark.parametrize("mode", SEEN)
def test_forgetting_drops_what_was_seen_without_looking_for_it(
    *, operator: Operator, backend: RedisBackend, left: Callable[[], set[str]], scans: Callable[[], int], mode: str
) -> None:
    worker = backend.join("w1", seen=SEEN[mode])
    fill(worker)

    operator.forget_all()

    assert scans() == 0
    assert not left() & {"seen", "marks"}
    assert worker.commit(push("0", fingerprint=b"%020d" % 0)).duplicates == []


def test_all_keys_of_the_table_are_dropped(frontier_name: str) -> None:
    keys = Keys(frontier_name)

    calls = [call for trip in Clearing(keys, "w1", "all", [None] * len(FIELDS)).trips() for call in trip]

    names = {keys.noun(str(name).encode()) for _, (_, _, _, _, *names) in calls for name in names}
    assert names == {*TYPES} - KEPT_BY_ALL - {"queue", "seen", "served"}


def test_a_clearing_continues_where_another_one_was_cut_short(
    operator: Operator, redis_server: RedisServer, backend: RedisBackend, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clearing, "CALLS_PER_TRIP", 1)
    fill(backend.join("w1"))
    run_before, trips = ScriptCalls.run, []

    def run(self: ScriptCalls, calls: Any) -> list[Any]:
        trips.append(calls)
        if len(trips) == 5:
            raise FrontierUnavailable("here", "it is cut short")
        return run_before(self, calls)

    monkeypatch.setattr(ScriptCalls, "run", run)
    with pytest.raises(FrontierUnavailable):
        operator.reset()
    assert client.hget(operator.keys.state, "cleared") == b"all 2000"

    with closing(Link(redis_server.url)) as link:
        Operator(link, operator.name, lease_ttl_s=10).reset()

    names = [len(call[1]) - 4 for trip in trips[5:] for call in trip if call[0] == "clear"]
    assert 2000 < sum(names) < 2200
    assert client.hget(operator.keys.state, "cleared") is None


@pytest.mark.parametrize("field", ["seen_levels", "layout"])
def test_keys_of_an_earlier_version_are_scanned_for(
    operator: Operator, backend: RedisBackend, left: Callable[[], set[str]], client: Any, field: str
) -> None:
    fill(backend.join("w1"))
    client.hset(operator.keys.state, "layout", "1") if field == "layout" else client.hdel(operator.keys.state, field)
    client.set(operator.keys.of("seen:7:1"), "")

    operator.reset()

    assert left() == {"state"}


def test_a_worker_that_scans_is_not_taken_for_gone(
    backend: RedisBackend, frontier_name: str, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(backend.join("w1"))
    client.hdel(Keys(frontier_name).state, "seen_levels")
    client.mset({f"foreign:{number}": 0 for number in range(3000)})
    backend.clock.advance(100)
    ages, scan_before = [], Connection.scan

    async def scan(self: Connection, pattern: str) -> AsyncIterator[list[bytes]]:
        async for found in scan_before(self, pattern):
            backend.clock.advance(20)
            yield found
            ages.append(backend.clock.now_ms - int(client.hget(Keys(frontier_name).state, "cleaning_ms")))

    monkeypatch.setattr(Connection, "scan", scan)
    backend.join("w2", flush=True)

    assert len(ages) > 3
    assert max(ages) < 30_000
