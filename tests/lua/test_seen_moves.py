"""Fingerprints move from packed fields into sets while a frontier grows, and none is lost."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import pytest
import redis

from scrapy_prioqueue.frontier.redis.seen.shapes import read_shape
from tests.lua.test_seen import Frontier
from tests.support.servers import RedisServer

SHAPE = "exact 0 2 64 p3:8 s1:40 s2:40"
"""Room for 64; from 32 on each 16 move a set's part, of four fields."""

ALL = list(range(80))


def frontier_of(server: RedisServer, name: str, shape: str = SHAPE) -> Frontier:
    return Frontier(server, name, shape)


def field_of(frontier: Frontier, name: str) -> int:
    return int(frontier.scripts.client.hget(frontier.scripts.keys.state, name) or 0)


def push_each(frontier: Frontier, numbers: Sequence[int]) -> list[int]:
    """Push one by one; return how many sets were filled after each."""
    moved = []
    for number in numbers:
        assert frontier.push([(number, None)]) == []
        moved.append(field_of(frontier, "seen_moved"))
    return moved


def kinds(frontier: Frontier) -> set[bytes]:
    client: Any = frontier.scripts.client
    return {client.type(key) for key in client.scan_iter(frontier.scripts.keys.prefix + "seen:*", count=1000)}


def unseen(frontier: Frontier, numbers: Sequence[int]) -> list[int]:
    """Push again; return those that were new."""
    pushes = [(number, None) for number in numbers]
    known = frontier.known(pushes)
    duplicates = frontier.push(pushes)
    assert known == duplicates
    return [number for index, number in enumerate(numbers) if index not in set(duplicates)]


def test_a_packed_level_moves_step_by_step_from_when_it_is_half_full(
    redis_server: RedisServer, frontier_name: str
) -> None:
    frontier = frontier_of(redis_server, frontier_name)

    moved = push_each(frontier, ALL)

    assert moved == [0] * 47 + [1] * 16 + [2] * 17
    assert kinds(frontier) == {b"set"}
    assert frontier.count == field_of(frontier, "seen_sets") == len(ALL)
    assert unseen(frontier, ALL) == []
    assert frontier.forget(ALL[::7]) == list(range(len(ALL[::7])))
    assert unseen(frontier, ALL) == ALL[::7]


def test_fingerprints_from_before_the_move_follow_gradually(redis_server: RedisServer, frontier_name: str) -> None:
    frontier = frontier_of(redis_server, frontier_name, "exact 0 2 64 p5:8 s4:40")
    # As if none of these counted.
    for number in ALL:
        frontier.push([(number, None)])
        frontier.scripts.client.hset(frontier.scripts.keys.state, "seen", 0)
    assert field_of(frontier, "seen_moved") == 0
    frontier.scripts.client.hset(frontier.scripts.keys.state, "seen", 10_000)

    assert unseen(frontier, ALL) == []
    assert field_of(frontier, "seen_moved") == 0
    moved = push_each(frontier, range(100, 120))

    assert moved == [*range(1, 17), *[16] * 4]
    assert kinds(frontier) == {b"set"}
    assert unseen(frontier, [*ALL, *range(100, 120)]) == []


@pytest.fixture
def half_full(redis_server: RedisServer, frontier_name: str) -> Frontier:
    """A frontier in which the next new fingerprint moves a part."""
    frontier = frontier_of(redis_server, frontier_name)
    push_each(frontier, ALL[:47])
    return frontier


def assert_goes_on(frontier: Frontier) -> None:
    assert unseen(frontier, ALL[:48]) == []
    push_each(frontier, ALL[48:])
    assert field_of(frontier, "seen_moved") == 2
    assert unseen(frontier, ALL) == []
    kept = list(frontier.records(read_shape(SHAPE)))
    assert len(kept) == len(set(kept)) == len(ALL)


def test_a_set_that_is_something_else_stays_unfilled_and_the_batch_is_stored(half_full: Frontier) -> None:
    key = half_full.scripts.keys.prefix + "seen:1:0"
    half_full.scripts.client.set(key, "something else")

    assert push_each(half_full, ALL[47:48]) == [0]
    assert half_full.scripts.stat("pending") == 48
    half_full.scripts.client.delete(key)
    assert_goes_on(half_full)


@pytest.mark.parametrize("command", ["SADD", "HGET", "HDEL", "HSET"])
def test_a_command_that_is_forbidden_loses_no_fingerprint(
    redis_server: RedisServer, half_full: Frontier, command: str
) -> None:
    scripts = half_full.scripts
    everything: Any = scripts.client
    everything.execute_command("ACL", "SETUSER", "limited", "reset", "on", "nopass", "~*", "&*", "+@all", f"-{command}")
    scripts.client = redis.Redis(port=redis_server.port, username="limited", password="any")

    with suppress(redis.exceptions.ResponseError):
        half_full.push([(47, None)])
    scripts.client.close()
    scripts.client = everything

    assert field_of(half_full, "seen_moved") == 0
    if scripts.stat("pending") == 47:
        half_full.batches -= 1
        assert half_full.push([(47, None)]) == []
    assert scripts.stat("pending") == 48
    assert_goes_on(half_full)


def test_frontiers_that_share_what_was_seen_move_it_together(redis_server: RedisServer, frontier_name: str) -> None:
    home = frontier_of(redis_server, frontier_name)
    guest = frontier_of(redis_server, f"{frontier_name}-guest")
    guest.scripts.client.hset(guest.scripts.keys.state, "seen_name", frontier_name)

    for number in ALL:
        assert (home, guest)[number % 2].push([(number, None)]) == []

    assert (field_of(home, "seen_moved"), field_of(guest, "seen_moved")) == (2, 0)
    assert unseen(home, ALL) == unseen(guest, ALL) == []


def test_a_key_whose_name_has_a_percent_sign_is_found(redis_server: RedisServer, frontier_name: str) -> None:
    frontier = frontier_of(redis_server, f"{frontier_name}%d%%s")

    push_each(frontier, ALL)

    assert unseen(frontier, ALL) == []
    assert frontier.scripts.client.exists(frontier.scripts.keys.seen(1, 0))
