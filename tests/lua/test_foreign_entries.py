"""Entries of another program among the requests become dead letters and block nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from scrapy_prioqueue.frontier.base import DEAD_BY_DECODE
from scrapy_prioqueue.frontier.policy import Policy, SlotLimit
from scrapy_prioqueue.frontier.redis.keys import Keys
from scrapy_prioqueue.frontier.redis.link import Link
from scrapy_prioqueue.frontier.redis.operators.requests import Requests
from tests.contract.backends import RedisBackend, Worker, ack, is_balanced, push
from tests.support.servers import RedisServer

SLOT = "shop.example"
SHORT = b"short"


class Frontier:
    """A frontier with one pending request, and a client that writes into it."""

    def __init__(self, server: RedisServer, name: str, policy: Policy) -> None:
        self.client: Any = server.client()
        self.keys = Keys(name)
        self.backend = RedisBackend(name, server.url)
        self.worker: Worker = self.backend.join("w1", clock=None, policy=policy)
        self.worker.commit(push("good", 5, SLOT))
        self.link = Link(server.url)

    def requests(self) -> list[bytes]:
        """Return the payloads that an operator is shown."""
        return [stored.payload for stored in Requests(self.link, self.keys).each()]

    def close(self) -> None:
        self.link.close()
        self.backend.close()


@pytest.fixture(params=[Policy(), Policy(slots={"*": SlotLimit(concurrency=100)})], ids=["plain", "limits"])
def frontier(redis_server: RedisServer, frontier_name: str, request: pytest.FixtureRequest) -> Iterator[Frontier]:
    frontier = Frontier(redis_server, frontier_name, request.param)
    yield frontier
    frontier.close()


@pytest.mark.parametrize("noun", ["queue", "suspects", "delayed"])
def test_entry_that_is_too_short_becomes_a_dead_letter(frontier: Frontier, noun: str) -> None:
    key = frontier.keys.queue(SLOT.encode()) if noun == "queue" else frontier.keys.of(noun)
    frontier.client.zadd(key, {SHORT: 1})
    shown = frontier.requests()

    answers = [frontier.worker.ask(limit=9) for _ in range(2)]

    leases = [lease for answer in answers for lease in answer.leases]
    assert [lease.payload for lease in leases] == [b"good"]
    letters = [letter for answer in answers for letter in answer.dead_letters]
    assert [(letter.reason, letter.payload) for letter in letters] == [(DEAD_BY_DECODE, SHORT)]
    assert frontier.client.zscore(key, SHORT) is None
    frontier.worker.commit(*(ack(lease) for lease in leases))
    depth = frontier.worker.depth()
    assert (depth.pending, depth.delayed, depth.leased, depth.done, depth.dead) == (0, 0, 0, 1, 1)
    assert is_balanced(depth)
    assert b"good" in shown


def test_lease_without_a_request_is_dropped(frontier: Frontier) -> None:
    frontier.client.zadd(frontier.keys.leases, {SHORT: 1})

    (lease,) = frontier.worker.lease(9)

    assert lease.payload == b"good"
    assert frontier.client.zscore(frontier.keys.leases, SHORT) is None


def test_slot_that_is_not_text_is_served(frontier: Frontier) -> None:
    slot = b"shop\xff.example"
    frontier.client.zadd(frontier.keys.queue(slot), {b"\0\0\0\0\0\0\0\1\0foreign": 1})
    frontier.client.zadd(frontier.keys.of("ready"), {b"\0\0\0\0\0\0\0\1" + slot: 1})
    frontier.client.hset(frontier.keys.of("turns"), slot, b"\0\0\0\0\0\0\0\1")
    shown = frontier.requests()

    leases = [lease for _ in range(2) for lease in frontier.worker.lease(9)]

    assert {lease.payload: lease.slot for lease in leases} == {b"good": SLOT, b"foreign": r"shop\xff.example"}
    assert set(shown) == {b"good", b"foreign"}
