"""A cap of 100 pages is kept exactly by twenty workers that die, release leases and fall silent."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from redis.asyncio import Redis

from scrapy_prioqueue.frontier import open_frontier
from scrapy_prioqueue.frontier.base import (
    DEAD_BY_BUDGET,
    DEAD_BY_CALLBACK,
    Ack,
    Batch,
    DeadLetter,
    Demand,
    Depth,
    Fail,
    Frontier,
    FrontierConfig,
    Lease,
    Push,
    Release,
    Spent,
)
from scrapy_prioqueue.frontier.labels import Label, label_of, labelled
from scrapy_prioqueue.frontier.policy import Budget, Policy
from scrapy_prioqueue.frontier.redis.keys import Keys
from tests.support.coroutines import run
from tests.support.letters import letters_of
from tests.support.servers import RedisServer

WORKERS = 20
CAP = 100
SURPLUS = 50
LEASE_TTL_S = 3.0
"""Long enough that what a living worker holds never expires; the crawl ends when what the killed ones held has."""

STORM = CAP * 3 // 2
"""Workers die until so many requests have ended, half of all that will."""

WITHIN_S = 40.0

# Every request fits all of its keys or is given up: those of "b" belong to a narrower key as well.
KEYS = {"a": ("a",), "b": ("job of b", "b"), "c": ("c",)}
CAPS = ("a", "b", "job of b", "c")


class Ledger:
    """What the workers know: what they hold, and what has surely ended; each is at most what the frontier counts."""

    def __init__(self) -> None:
        self.held: dict[int, Lease] = {}
        self.ended: dict[int, Lease] = {}
        self.kills = 0
        self.most = Counter[str]()

    def note_granted(self, leases: Sequence[Lease]) -> None:
        """A worker holds these now."""
        for lease in leases:
            assert lease.lease_id not in self.ended, "a request was handed out after it had ended"
            self.held[lease.lease_id] = lease
        counts = Counter(keys_of(lease.payload)[-1] for lease in (*self.held.values(), *self.ended.values()))
        self.most |= counts

    def drop(self, leases: Sequence[Lease]) -> None:
        """A worker holds these no more."""
        for lease in leases:
            if self.held.get(lease.lease_id) is lease:
                del self.held[lease.lease_id]


class Process:
    """A worker from its start to its death or the end of the crawl.

    Args:
        url: of the server.
    """

    def __init__(self, config: FrontierConfig, url: str, ledger: Ledger, lottery: random.Random) -> None:
        self.frontier: Frontier = open_frontier(config, url)
        self._ledger = ledger
        self._lottery = lottery
        self._held: Sequence[Lease] = ()
        self._batches = 0

    async def live(self) -> Depth:
        """Fetch what there is, badly, until the crawl has ended; return the counts at that moment."""
        await self.frontier.join()
        settled: list[Ack | Fail | Release] = []
        while True:
            ended = [lease for lease, how in zip(self._held, settled, strict=True) if not isinstance(how, Release)]
            # Whatever is given back may be another worker's before the answer is here.
            self._ledger.drop([lease for lease in self._held if lease not in ended])
            self._batches += bool(settled)
            batches = [Batch(self._batches, settled)] if settled else []
            answer = await self.frontier.exchange(batches, Demand(self._lottery.randint(1, 5), is_idle=not settled))
            void = {settled[index] for committed in answer.committed for index in committed.void}
            for lease, how in zip(self._held, settled, strict=True):
                if lease in ended and how not in void:
                    self._ledger.ended[lease.lease_id] = lease
            self._ledger.drop(self._held)
            self._held = answer.leases
            self._ledger.note_granted(answer.leases)
            if answer.has_ended:
                return answer.depth
            await asyncio.sleep(self._lottery.uniform(0, 0.3))
            settled = [self._settle(lease) for lease in self._held]

    def _settle(self, lease: Lease) -> Ack | Fail | Release:
        chance = self._lottery.random()
        if chance < 0.3:
            return Release(lease.lease_id, lease.attempt)
        if chance < 0.4:
            return Fail(lease.lease_id, lease.attempt, DEAD_BY_CALLBACK, "it raises", spent=Spent(1, 1))
        return Ack(lease.lease_id, lease.attempt, spent=Spent(1, 1))

    async def die(self, living: asyncio.Task[Depth]) -> None:
        """Stop at once in any state; leases are kept until they expire."""
        await stopped(living)
        self._ledger.drop(self._held)
        await self.frontier.close()


async def stopped(task: asyncio.Task[Any]) -> None:
    """Cancel a task that talks to the server, and wait for its end."""
    while not task.done():
        # Up to Python 3.11 `asyncio.wait_for`, which the Redis client uses, may swallow it.
        task.cancel()
        await asyncio.wait([task], timeout=0.01)


def keys_of(payload: bytes) -> Sequence[str]:
    label = label_of(payload)
    assert label is not None
    return label.keys


class Crawl:
    """The workers, the storm that kills them, and a watch on what the frontier counts."""

    def __init__(self, url: str, name: str, lottery: random.Random) -> None:
        self.ledger = Ledger()
        self.url = url
        self.name = name
        self._lottery = lottery
        self._number = 0
        self._living: dict[str, tuple[Process, asyncio.Task[Depth]]] = {}

    def config(self, worker: str) -> FrontierConfig:
        policy = Policy(budgets={"*": Budget(pages=CAP)})
        return FrontierConfig(self.name, ("only",), worker, lease_ttl_s=LEASE_TTL_S, max_attempts=10_000, policy=policy)

    async def run(self) -> tuple[Depth, Sequence[DeadLetter]]:
        """Crawl to the end; return the last counts, and the dead letters."""
        observer = open_frontier(self.config("observer"), self.url)
        await observer.join()
        await observer.exchange([Batch(1, self._requests())], Demand(0, is_idle=True))
        watch = asyncio.create_task(self._watch())
        for number in range(WORKERS):
            self._start(f"worker-{number}")
        await self._storm()
        depths = await asyncio.wait_for(asyncio.gather(*(task for _, task in self._living.values())), WITHIN_S)
        for process, _ in self._living.values():
            await process.frontier.close()
        await stopped(watch)
        assert watch.cancelled(), watch.exception()
        letters = await letters_of(observer)
        await observer.close()
        return max(depths, key=lambda depth: depth.accepted), letters

    def _requests(self) -> Sequence[Push]:
        requests = [
            Push(self._lottery.randrange(5), key, labelled(b"\x01page", Label(False, KEYS[key])))
            for key in KEYS
            for _ in range(CAP + SURPLUS)
        ]
        self._lottery.shuffle(requests)
        return requests

    def _start(self, name: str) -> None:
        process = Process(self.config(name), self.url, self.ledger, self._lottery)
        self._living[name] = process, asyncio.create_task(process.live())

    async def _storm(self) -> None:
        """Kill workers; half of them return under their names, the others are replaced."""
        while len(self.ledger.ended) < STORM:
            await asyncio.sleep(self._lottery.uniform(0, 0.05))
            victim = self._lottery.choice(sorted(self._living))
            process, task = self._living.pop(victim)
            await process.die(task)
            self.ledger.kills += 1
            self._number += 1
            self._start(victim if self._lottery.random() < 0.5 else f"new-{self._number}")

    async def _watch(self) -> None:
        """Look at what the frontier counts, all of it in one moment."""
        async with Redis.from_url(self.url) as client:
            while True:
                used = await client.hmget(Keys(self.name).of("used"), [f"pages:{key}" for key in CAPS])
                counts = {key: int(count or 0) for key, count in zip(CAPS, used, strict=True)}
                assert max(counts.values()) <= CAP, counts
                await asyncio.sleep(0.001)


@pytest.mark.timeout(300)
def test_twenty_workers_that_die_fetch_exactly_what_the_budget_allows(
    redis_server: RedisServer, frontier_name: str, lottery: random.Random
) -> None:
    crawl = Crawl(redis_server.url, frontier_name, lottery)

    depth, letters = run(crawl.run(), within=100)

    by_reason = {
        reason: [letter for letter in letters if letter.reason == reason]
        for reason in (DEAD_BY_BUDGET, DEAD_BY_CALLBACK)
    }
    given_up = Counter(keys_of(letter.payload)[-1] for letter in by_reason[DEAD_BY_BUDGET])
    failed = Counter(keys_of(letter.payload)[-1] for letter in by_reason[DEAD_BY_CALLBACK])
    print(f"{crawl.ledger.kills} kills, most held and ended {crawl.ledger.most}, failed {failed}, {depth}")
    assert given_up == dict.fromkeys(KEYS, SURPLUS)
    assert len(letters) == given_up.total() + failed.total()
    assert depth.done == CAP * len(KEYS) - failed.total()
    assert depth.accepted == depth.done + depth.dead == (CAP + SURPLUS) * len(KEYS)
    assert max(crawl.ledger.most.values()) <= CAP
