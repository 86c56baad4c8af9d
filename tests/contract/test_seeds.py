"""Seeds in Redis: an entry that was taken is kept until its request is stored, and put back otherwise."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
from redis.asyncio import Redis
from redis.crc import key_slot

from scrapy_prioqueue.errors import FrontierFull, FrontierUnavailable
from scrapy_prioqueue.frontier.base import Demand, FrontierConfig
from scrapy_prioqueue.frontier.redis.connection import Connection
from scrapy_prioqueue.frontier.redis.frontier import RedisFrontier
from scrapy_prioqueue.frontier.redis.seeds import RedisSeeds, SeedKeys
from tests.support.coroutines import run
from tests.support.servers import RedisServer, StartServer


class LosingConnection(Connection):
    """Loses answers on demand."""

    loses_answers = False

    async def ask(self, command: Callable[[Redis], Any]) -> Any:
        answer = await super().ask(command)
        if self.loses_answers:
            raise FrontierUnavailable(self.address, "no answer")
        return answer


class Seeds:
    """Workers that read seeds from keys of one test.

    Args:
        name: of the frontier; the keys begin with it.
    """

    def __init__(self, server: RedisServer, name: str) -> None:
        self._url = server.url
        self.name = name
        self.client: Any = server.client()
        self.connections: list[LosingConnection] = []

    def key(self, noun: str) -> str:
        return f"{self.name}:{noun}"

    def of(self, worker: str, *nouns: str, ttl_s: float = 60.0) -> RedisSeeds:
        """Return what a worker sees."""
        return RedisSeeds(
            self.connect(),
            frontier=self.name,
            worker=worker,
            keys=[self.key(noun) for noun in nouns or ["seeds"]],
            lease_ttl_s=ttl_s,
        )

    def connect(self) -> LosingConnection:
        """Return a connection that is closed after the test."""
        self.connections.append(LosingConnection(self._url))
        return self.connections[-1]

    def join(self, worker: str) -> RedisFrontier:
        """Let a worker enter the frontier, so that it counts as alive."""
        frontier = RedisFrontier(FrontierConfig(self.name, ("a",), worker), self.connect())
        run(frontier.join())
        return frontier

    def left(self) -> list[str]:
        """Return all keys but those of the frontier."""
        found = (key.decode() for key in self.client.scan_iter(f"*{self.name}*", count=1000))
        return sorted(key for key in found if not key.startswith("{prioqueue:"))


@contextmanager
def seeds_of(server: RedisServer, name: str) -> Iterator[Seeds]:
    """Yield the seeds of a frontier, and close what they have opened."""
    seeds = Seeds(server, name)
    try:
        yield seeds
    finally:
        for connection in seeds.connections:
            run(connection.close())
        seeds.client.close()


@pytest.fixture
def seeds(redis_server: RedisServer, frontier_name: str) -> Iterator[Seeds]:
    with seeds_of(redis_server, frontier_name) as seeds:
        yield seeds


def data(taken: Any) -> Sequence[bytes]:
    return [seed.data for seed in taken.seeds]


def push(seeds: Seeds, kind: str, count: int, noun: str = "seeds") -> list[bytes]:
    """Push so many entries to a key of that type; return them in the order in which they are to be taken."""
    entries = [b"%d \n\x00\xff" % number for number in range(count)]
    key = seeds.key(noun)
    if kind == "list":
        seeds.client.rpush(key, *entries)
    elif kind == "set":
        seeds.client.sadd(key, *entries)
    else:
        seeds.client.zadd(key, {entry: -number / 3 for number, entry in enumerate(entries)})
    return entries


def content(seeds: Seeds, kind: str) -> Any:
    key, client = seeds.key("seeds"), seeds.client
    if kind == "list":
        return client.lrange(key, 0, -1)
    return client.smembers(key) if kind == "set" else client.zrange(key, 0, -1, withscores=True)


KINDS = pytest.mark.parametrize("kind", ["list", "zset", "set"])


@KINDS
def test_entries_are_taken_in_batches_and_dropped_when_they_are_settled(seeds: Seeds, kind: str) -> None:
    entries, worker = push(seeds, kind, 5), seeds.of("w")

    first = run(worker.exchange([], 3))
    second = run(worker.exchange(first.seeds, 3))
    last = run(worker.exchange(second.seeds, 3))

    taken = [*data(first), *data(second)]
    assert len(data(first)) == 3
    assert taken == entries if kind != "set" else sorted(taken) == sorted(entries)
    assert (first.sees_more, second.sees_more, last.sees_more, data(last)) == (True, True, False, [])
    assert seeds.left() == []


@KINDS
def test_entries_that_are_not_stored_are_put_back_unchanged(seeds: Seeds, kind: str) -> None:
    push(seeds, kind, 500)
    before, worker = content(seeds, kind), seeds.of("w")

    taken = run(worker.exchange([], 450))
    half = run(worker.leave([]))

    assert (len(taken.seeds), half) == (450, 450)
    assert content(seeds, kind) == before
    assert seeds.left() == [seeds.key("seeds")]


def test_leaving_releases_only_leases_that_are_not_settled(seeds: Seeds) -> None:
    entries, worker = push(seeds, "list", 4), seeds.of("w")
    taken = run(worker.exchange([], 3))

    given_back = run(worker.leave(taken.seeds[:2]))

    assert given_back == 1
    assert content(seeds, "list") == entries[2:]


@KINDS
def test_next_process_of_a_worker_takes_what_the_one_before_has_left(seeds: Seeds, kind: str) -> None:
    entries = push(seeds, kind, 5)
    run(seeds.of("w").exchange([], 3))

    found = run(seeds.of("w").exchange([], 9))

    assert sorted(data(found)) == sorted(entries)
    assert kind == "set" or data(found) == entries
    assert found.given_back == 3


def test_others_take_what_a_lost_worker_has_left_and_wait_for_one_that_lives(seeds: Seeds) -> None:
    entries = push(seeds, "list", 3)
    lost, _ = seeds.join("lost"), seeds.join("living")
    run(seeds.of("lost").exchange([], 9))
    other = seeds.of("living")

    waiting = run(other.exchange([], 9))
    run(lost.leave())
    rescued = run(other.exchange([], 9))
    found = run(other.exchange([], 9))

    assert (data(waiting), waiting.sees_more) == ([], True)
    assert (data(rescued), rescued.sees_more, rescued.given_back) == ([], True, 3)
    assert data(found) == entries


def test_a_silent_worker_is_lost_after_a_lease(seeds: Seeds) -> None:
    push(seeds, "list", 3)
    silent = seeds.join("silent")
    run(seeds.of("silent").exchange([], 9))

    early = run(seeds.of("w").exchange([], 9))
    late = run(seeds.of("w", ttl_s=0.0).exchange([], 9))
    run(silent.exchange([], Demand(0)))

    assert (early.given_back, late.given_back) == (0, 3)


def test_entries_taken_by_workers_of_another_frontier_are_left_to_them(seeds: Seeds) -> None:
    push(seeds, "list", 3)
    run(seeds.of("w").exchange([], 2))
    stranger = RedisSeeds(seeds.connect(), frontier="other", worker="v", keys=[seeds.key("seeds")], lease_ttl_s=1)

    taken = run(stranger.exchange([], 9))
    nothing = run(stranger.exchange(taken.seeds, 9))

    assert len(taken.seeds) == 1
    assert (data(nothing), nothing.sees_more, nothing.given_back) == ([], False, 0)


def test_each_round_begins_with_the_best_key(seeds: Seeds) -> None:
    late, worker = push(seeds, "zset", 3, "late"), seeds.of("w", "first", "late")

    one = run(worker.exchange([], 2))
    first = push(seeds, "set", 1, "first")
    two = run(worker.exchange([], 2))

    assert data(one) == late[:2]
    assert data(two) == [*first, late[2]]


def test_a_settled_entry_is_not_put_back_under_a_reused_id(seeds: Seeds) -> None:
    """A late call of an earlier process drops nothing of its successor."""
    push(seeds, "list", 1)
    old = seeds.of("w")
    taken = run(old.exchange([], 1))
    new = seeds.of("w")
    run(new.exchange([], 1))

    run(old.exchange(taken.seeds, 0))

    assert run(new.leave([])) == 1


def test_a_key_of_another_type_is_reported_and_others_are_read(seeds: Seeds) -> None:
    entries, worker = push(seeds, "list", 2, "late"), seeds.of("w", "first", "late")
    seeds.client.hset(seeds.key("first"), "a", "b")

    found = run(worker.exchange([], 9))

    assert found.wrong_types == {seeds.key("first"): "hash"}
    assert data(found) == entries


def test_nothing_is_put_back_into_a_key_of_another_type(seeds: Seeds) -> None:
    push(seeds, "list", 2)
    worker = seeds.of("w")
    run(worker.exchange([], 2))
    seeds.client.set(seeds.key("seeds"), "x")

    assert run(worker.leave([])) == 0
    assert len(seeds.left()) == 3


@pytest.mark.parametrize(("before", "after"), [("zset", "list"), ("list", "zset"), ("set", "list"), ("list", "set")])
def test_entries_are_put_back_into_a_key_that_has_become_another_kind(seeds: Seeds, before: str, after: str) -> None:
    entries, worker = push(seeds, before, 2), seeds.of("w")
    run(worker.exchange([], 2))
    push(seeds, after, 3)

    run(worker.leave([]))
    found = run(seeds.of("w").exchange([], 9))

    assert set(data(found)) >= set(entries)
    assert len(found.seeds) == (5 if after == "list" else 3)


def test_entries_taken_by_a_call_without_an_answer_are_found(seeds: Seeds) -> None:
    entries = push(seeds, "list", 5)
    worker = seeds.of("w", "seeds", "other")
    held = run(worker.exchange([], 1))
    seeds.connections[-1].loses_answers = True
    with pytest.raises(FrontierUnavailable):
        run(worker.exchange([], 2))
    seeds.connections[-1].loses_answers = False
    found = run(worker.exchange([], 3))

    assert [*data(held), *data(found)] == entries[:4]


def test_a_full_server_moves_nothing_and_drops_what_is_settled(
    redis_server_factory: StartServer, frontier_name: str
) -> None:
    with seeds_of(redis_server_factory(), frontier_name) as seeds:
        push(seeds, "list", 5)
        worker = seeds.of("w")
        taken = run(worker.exchange([], 2))
        seeds.client.config_set("maxmemory", 1)

        run(worker.exchange(taken.seeds[:1], 0))
        with pytest.raises(FrontierFull, match="maxmemory"):
            run(worker.exchange([], 2))
        seeds.client.config_set("maxmemory", 0)

        assert seeds.client.llen(seeds.key("seeds")) == 3
        assert run(worker.leave([])) == 1


@pytest.mark.parametrize("key", ["books:start_urls", "{books}:start_urls", "a{b}{c}"])
def test_all_keys_hash_to_one_slot(key: str) -> None:
    keys = SeedKeys(key, "frontier")

    assert {key_slot(name.encode()) for name in (keys.takers, keys.taken("w:{1}"))} == {key_slot(key.encode())}
