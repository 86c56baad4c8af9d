"""A table of fingerprints with times grows with those that are not new, and expired ones are dropped."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest

from scrapy_prioqueue.frontier.redis.seen.fingerprints import hashed, locations_of
from scrapy_prioqueue.frontier.redis.seen.shapes import Shape, read_shape, shape_for
from scrapy_prioqueue.frontier.seen import Mode, SeenPolicy
from tests.lua.test_seen import DEFAULT_S, Frontier, fingerprint
from tests.lua.test_seen_moves import field_of
from tests.support.servers import RedisServer

PER_PERIOD, PER_CALL, PERIODS = 600, 20, 4


def periods(frontier: Frontier, count: int) -> Iterator[float]:
    """Push new fingerprints, each live for a period; yield the bytes for each live one at the end of each period."""
    numbers = iter(range(10**9))
    client: Any = frontier.scripts.client
    for _ in range(count):
        for _ in range(PER_PERIOD // PER_CALL):
            frontier.scripts.now_ms += DEFAULT_S * 1000 * PER_CALL // PER_PERIOD
            assert frontier.push([(next(numbers), None) for _ in range(PER_CALL)]) == []
        pipeline = client.pipeline(transaction=False)
        for key in client.scan_iter(frontier.scripts.keys.prefix + "seen:*", count=1000):
            pipeline.memory_usage(key, samples=0)
        yield sum(pipeline.execute()) / PER_PERIOD


@pytest.mark.parametrize("expected", [None, PER_PERIOD])
@pytest.mark.parametrize("mode", ["exact", "compact"])
def test_memory_follows_those_that_are_not_new_yet(
    redis_server: RedisServer, frontier_name: str, mode: Mode, expected: int | None
) -> None:
    plain, timed = (shape_for(SeenPolicy(mode, expected, revisit_s=each)).text() for each in (None, DEFAULT_S))
    (without,) = periods(Frontier(redis_server, f"{frontier_name}-plain", plain), 1)
    frontier = Frontier(redis_server, frontier_name, timed)

    each = list(periods(frontier, PERIODS))

    assert max(each) < 2 * without
    assert frontier.count == len(list(frontier.records(read_shape(timed)))) < 1.5 * PER_PERIOD


@pytest.fixture
def frontier(redis_server: RedisServer, frontier_name: str) -> Frontier:
    return Frontier(redis_server, frontier_name, "exact 2 4 24 t1:8")


SHAPE = read_shape("exact 2 4 24 t1:8")


def test_a_table_grows_by_a_bucket_at_a_time_and_everything_is_found(frontier: Frontier) -> None:
    for number in range(300):
        assert frontier.push([(number, None)]) == []
        assert field_of(frontier, "seen_moved") >= (number + 1) / (0.6 * 2) - 3

    assert frontier.known([(number, None) for number in range(301)]) == list(range(300))
    assert {until_of(frontier, SHAPE, number) for number in range(300)} == {frontier.scripts.now_ms // 1000 + DEFAULT_S}
    assert until_of(frontier, SHAPE, 300) is None


def until_of(frontier: Frontier, shape: Shape, number: int) -> float | None:
    """Return the time that a program which is no worker finds for a fingerprint."""
    (location,) = locations_of(shape, hashed(fingerprint(number)), field_of(frontier, "seen_moved"))
    command, key = location.command(frontier.scripts.keys)
    assert command == "HGETALL"
    reply: Any = frontier.scripts.client.hgetall(str(key))
    return location.until(reply)


def test_a_call_sweeps_a_bounded_part(frontier: Frontier) -> None:
    source = random.Random(6)
    shape = "exact 2 64 64 t16:8"
    frontier.scripts.client.hset(frontier.scripts.keys.state, "seen_shape", shape)
    for _ in range(10):
        frontier.push([(source.randrange(10**6), None) for _ in range(300)])
    kept = frontier.count
    frontier.scripts.now_ms += 100 * DEFAULT_S * 1000

    counts = []
    while frontier.count > 1:
        frontier.scripts.client.config_resetstat()
        frontier.push([(0, None)])
        stats: Any = frontier.scripts.client.info("commandstats")
        counts.append(sum(each["calls"] for each in stats.values()))

    assert kept > 2_900
    assert len(counts) > 3
    assert max(counts) < 2_000
