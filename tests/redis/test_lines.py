"""A worker with another policy moves all slots to their lanes before it begins, also with interruptions."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from scrapy_prioqueue.errors import NotPermitted, WrongKeyType
from scrapy_prioqueue.frontier.base import Batch, DeadLetter, Demand, FrontierConfig, Joined, Push
from scrapy_prioqueue.frontier.policy import Policy
from scrapy_prioqueue.frontier.redis.connection import Connection, KeyedCall
from scrapy_prioqueue.frontier.redis.frontier import SORTS_PER_TRIP, RedisFrontier
from scrapy_prioqueue.frontier.redis.keys import Keys
from scrapy_prioqueue.frontier.redis.link import Link
from scrapy_prioqueue.frontier.redis.operators.operator import CrawlPlan, Operator
from tests.contract.backends import TTL_S
from tests.support.clocks import UnixClock
from tests.support.coroutines import run
from tests.support.servers import RedisServer, StartServer

SLOTS = 3000
TIERS = ("high", "low")
WEIGHTED = Policy(weights=(2, 1))


class WatchedConnection(Connection):
    """Writes down the round trips, and lets something happen before the one that is the third to put slots in line."""

    def __init__(self, url: str, disturb: Callable[[], object] | None = None) -> None:
        super().__init__(url)
        self._disturb = disturb
        self.trips: list[Sequence[str]] = []

    @property
    def sorting_trips(self) -> list[Sequence[str]]:
        """Those that have put slots in line."""
        return [names for names in self.trips if "sort" in names]

    async def run(self, calls: Sequence[KeyedCall], *, wait_replicas: int = 0) -> list[Any]:
        self.trips.append([name for name, _, _ in calls])
        if self._disturb is not None and len(self.sorting_trips) == 3:
            disturb, self._disturb = self._disturb, None
            await asyncio.to_thread(disturb)
        return await super().run(calls, wait_replicas=wait_replicas)

    async def ask(self, command: Any) -> Any:
        self.trips.append(["a command"])
        return await super().ask(command)


class Crawl:
    """A crawl of many slots in one line."""

    def __init__(self, server: RedisServer, name: str) -> None:
        self.url = server.url
        self.client: Any = server.client()
        self.name = name
        self.clock = UnixClock()
        self.link = Link(server.url)
        self.operator = Operator(self.link, name)
        pushes = [Push(0, f"slot-{number}", b"payload") for number in range(SLOTS)]
        self.operator.open(CrawlPlan(TIERS))
        self.operator.push(pushes, CrawlPlan(TIERS))
        self.connections: list[Connection] = []

    def frontier(
        self, worker: str, policy: Policy = WEIGHTED, *, disturb: Callable[[], object] | None = None, **config: Any
    ) -> tuple[RedisFrontier, WatchedConnection]:
        """Return a worker that has not joined yet."""
        connection = WatchedConnection(self.url, disturb)
        self.connections.append(connection)
        wanted = FrontierConfig(self.name, TIERS, worker, lease_ttl_s=TTL_S, clock=self.clock, policy=policy, **config)
        return RedisFrontier(wanted, connection), connection

    def join(self, worker: str, disturb: Callable[[], object] | None = None) -> tuple[Joined, WatchedConnection]:
        """Let a worker join that brings weights."""
        frontier, connection = self.frontier(worker, disturb=disturb)
        return run(frontier.join()), connection

    @property
    def in_line(self) -> int:
        """How many slots are where they belong; -1 before anything has moved, or with something left aside."""
        keys = Keys(self.name)
        if self.client.hexists(keys.state, "unsorted"):
            return -1
        return int(self.client.zcard(keys.ready(0)) + self.client.zcard(keys.ready(1)))

    def close(self) -> None:
        """Close all connections."""
        for connection in self.connections:
            run(connection.close())
        self.link.close()


@pytest.fixture
def crawl(redis_server: RedisServer, frontier_name: str) -> Iterator[Crawl]:
    crawl = Crawl(redis_server, frontier_name)
    yield crawl
    crawl.close()


def test_many_slots_take_few_round_trips(crawl: Crawl) -> None:
    _, connection = crawl.join("w1")

    assert crawl.in_line == SLOTS
    # Some for the first ones, which are fewer calls, and for what else a worker asks when it joins.
    assert len(connection.trips) <= SLOTS // (50 * SORTS_PER_TRIP) + 11


def test_one_call_is_enough_if_no_lane_changes(crawl: Crawl) -> None:
    crawl.join("w1")

    _, connection = crawl.join("w2")

    assert connection.sorting_trips == [["sort"]]


def test_reaped_and_given_up_requests_are_reported(crawl: Crawl) -> None:
    lost, _ = crawl.frontier("lost", Policy())
    run(lost.join())
    assert len(run(lost.exchange((), Demand(80, is_fair=False))).leases) == 80
    crawl.clock.advance(TTL_S + 1)

    frontier, _ = crawl.frontier("w1", max_attempts=1)
    joined = run(frontier.join())
    reaped, letters = joined.reaped, list[DeadLetter](joined.dead_letters)
    while (answer := run(frontier.exchange((), Demand(0)))).reaped:
        reaped, letters = reaped + answer.reaped, [*letters, *answer.dead_letters]

    assert joined.reaped > 0
    assert reaped == len(letters) == len({letter.lease_id for letter in letters}) == 80
    assert crawl.operator.depth().dead == 80


# What may happen meanwhile


def test_a_worker_that_another_process_replaces_is_rejected(crawl: Crawl) -> None:
    with pytest.raises(NotPermitted, match="another process has joined"):
        crawl.join("w1", lambda: run(crawl.frontier("w1", Policy())[0].join()))


def test_a_worker_that_is_forgotten_enters_again_and_continues(crawl: Crawl) -> None:
    joined, _ = crawl.join("w1", lambda: crawl.operator.evict("w1", max_attempts=9))

    assert crawl.in_line == joined.depth.pending == SLOTS


def test_a_server_that_is_emptied_is_reported(crawl: Crawl) -> None:
    keys = crawl.client.keys(Keys(crawl.name).pattern())
    frontier, _ = crawl.frontier("w1", disturb=lambda: crawl.client.delete(*keys))

    joined = run(frontier.join())

    assert joined.has_forgotten
    assert joined.depth.workers == 1
    committed = run(frontier.exchange([Batch(1, [Push(0, "slot", b"payload")])], None)).committed
    assert [batch.number for batch in committed] == [1]


def test_a_crawl_that_ends_lets_its_worker_go(crawl: Crawl) -> None:
    def end() -> None:
        crawl.client.hset(Keys(crawl.name).state, "phase", "clearing")

    frontier, _ = crawl.frontier("w1", disturb=end)

    run(frontier.join())

    assert run(frontier.exchange((), Demand(1))).has_ended


def test_a_paused_crawl_has_its_slots_moved_to_lanes_too(crawl: Crawl) -> None:
    crawl.operator.order(paused=True)

    crawl.join("w1")

    assert crawl.in_line == SLOTS


def test_slots_find_their_lines_on_a_full_server(redis_server_factory: StartServer, frontier_name: str) -> None:
    crawl = Crawl(redis_server_factory(), frontier_name)

    joined, _ = crawl.join("w1", lambda: crawl.client.config_set("maxmemory", 1))

    crawl.client.config_set("maxmemory", 0)
    assert crawl.in_line == joined.depth.pending == SLOTS
    crawl.close()


def test_a_queue_of_another_program_is_named_and_no_slot_is_lost(crawl: Crawl) -> None:
    queue = Keys(crawl.name).queue(b"slot-2500")
    kept = crawl.client.dump(queue)

    with pytest.raises(WrongKeyType, match=re.escape(f"{queue.decode()} is a string and should be a zset")):
        crawl.join("w1", lambda: crawl.client.set(queue, "something else"))

    crawl.client.restore(queue, 0, kept, replace=True)
    crawl.join("w1")
    assert crawl.in_line == SLOTS
