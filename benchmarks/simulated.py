"""Workers that download nothing: the real pump on the real frontier, and pages that only take their time.

Many of them fit into one process, and whatever they start is noted with one clock.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from processes import BenchmarkFailed

from scrapy_prioqueue.frontier import open_frontier
from scrapy_prioqueue.frontier.base import Ack, Exchanged, Frontier, FrontierConfig, Lease, Orders, Push, Recall
from scrapy_prioqueue.frontier.kept import Kept
from scrapy_prioqueue.frontier.policy import Policy
from scrapy_prioqueue.frontier.runs import FleetTotals
from scrapy_prioqueue.pump.delegate import PumpConfig, Trouble
from scrapy_prioqueue.pump.outbox import HeldRequest, Outcome
from scrapy_prioqueue.pump.pump import Pump
from scrapy_prioqueue.runtime import AsyncioRunner

SLOT_CONCURRENCY = 8
"""Scrapy's default for one slot in one process."""

CLOSE_TIMEOUT_S = 10.0
OUTBOX_LIMIT = 10_000


@dataclass(frozen=True, slots=True)
class Page:
    """What becomes of a request.

    Args:
        seconds: from its start until its callback has run.
        links: requests that are found on it.
    """

    seconds: float
    links: Sequence[Push] = ()


Fetch = Callable[[Lease], Page]
"""Called when a request starts."""


class QuietDelegate:
    """The part of a pump's delegate that a worker without people, policies and large requests doesn't need.

    It is also the engine and its slots, as far as the pump asks them.
    """

    spider = None

    @property
    def engine(self) -> Any:
        return self

    @property
    def slots(self) -> Any:
        return self

    @property
    def is_closing(self) -> bool:
        return False

    @property
    def is_paused(self) -> bool:
        return False

    def may_wait(self, slot: str) -> bool:
        return False

    def held_up(self) -> Collection[str]:
        return ()

    def lost(self, lease_id: int) -> bool:
        """No page is reported as slow."""
        return False

    def degraded(self, cause: Trouble, detail: str) -> None:
        """Nobody needs to know."""

    def recovered(self, cause: Trouble, after_s: float) -> None:
        """Nobody needs to know."""

    def lost_leases(self, leases: Sequence[Lease], *, are_started: bool) -> None:
        """Nobody needs to know."""

    def changed_kept(self) -> Kept | None:
        return None

    def note_outcome(self, outcome: Outcome[Any]) -> None:
        """Nobody waits for it."""

    def too_large(self, push: Push, tag: object, roots: Sequence[HeldRequest]) -> None:
        """No request is large."""
        raise AssertionError(push)

    def note_answer(self, answer: Exchanged) -> None:
        """Nobody reads it."""

    def recalled(self, recall: Recall) -> None:
        """There is no cache of fingerprints."""

    def ordered(self, orders: Orders) -> None:
        """The pump obeys by itself."""

    def count(self, stat: str, change: int = 1) -> None:
        """Nobody reads stats."""

    def last_report(self) -> None:
        """Nobody reads the run history."""

    def note_totals(self, totals: FleetTotals | None) -> None:
        """Nobody reads the totals."""


class SimulatedWorker(QuietDelegate):
    """A pump and its delegate: starts what it is given as long as there are places, and asks for more.

    Args:
        config: of its frontier.
        frontier: of this worker, or the URL of the Redis server.
        concurrency: requests at a time.
    """

    def __init__(self, config: FrontierConfig, frontier: Frontier | str, fetch: Fetch, *, concurrency: int) -> None:
        self.stats: Counter[str] = Counter()
        self.has_own_requests = False
        """Requests will still come that were not found on pages, so the crawl can't end."""
        self.starts_nothing = False
        """It starts nothing."""
        self.most_pending = 0
        """The most requests that the frontier held pending after an exchange of this worker."""
        self.most_leased = 0
        """The same of requests that were leased."""
        self._concurrency = concurrency
        self._fetch = fetch
        self._active: dict[str, int] = {}
        self._running = 0
        self._is_woken = False
        self._stopped_by: Exception | None = None
        limits = PumpConfig(config.lease_ttl_s, 0.0, OUTBOX_LIMIT)
        if isinstance(frontier, str):
            frontier = open_frontier(config, frontier, timeout_s=30)
        self.pump: Pump[None] = Pump(frontier, AsyncioRunner(), self, limits)

    async def open(self) -> None:
        """Join the crawl and take part."""
        await self.pump.open().asFuture(asyncio.get_running_loop())
        self.pump.start()
        self.wake()

    async def close(self) -> None:
        """Leave; what is being fetched is given back."""
        await self.pump.close(CLOSE_TIMEOUT_S).asFuture(asyncio.get_running_loop())

    def push(self, request: Push) -> None:
        """Store a request."""
        self.pump.push(request, None)

    @property
    def has_ended(self) -> bool:
        """The crawl is over.

        Raises:
            BenchmarkFailed: this worker has no place in it any more.
        """
        if self._stopped_by is not None:
            raise BenchmarkFailed(f"a simulated worker was stopped: {self._stopped_by}")
        return self.pump.has_ended

    # The engine

    def _look(self) -> None:
        self._is_woken = False
        while self.free_places() > 0 and (lease := self.pump.take()) is not None:
            self._active[lease.slot] = self._active.get(lease.slot, 0) + 1
            self._running += 1
            page = self._fetch(lease)
            asyncio.get_running_loop().call_later(page.seconds, self._finish, lease, page.links)

    def _finish(self, lease: Lease, links: Sequence[Push]) -> None:
        for link in links:
            self.pump.push(link, None, lease.lease_id)
        self._running -= 1
        self._active[lease.slot] -= 1
        if not self._active[lease.slot]:
            del self._active[lease.slot]
        self.pump.finish(Ack(lease.lease_id, lease.attempt))
        self.wake()

    # The pump's delegate

    def wake(self) -> None:
        if not self._is_woken:
            self._is_woken = True
            asyncio.get_running_loop().call_soon(self._look)

    @property
    def concurrency(self) -> int:
        return self._concurrency

    def free_places(self) -> int:
        return 0 if self.starts_nothing else self._concurrency - self._running

    def room(self, waiting: Mapping[str, int], ahead: int) -> tuple[int, dict[str, int]]:
        most = SLOT_CONCURRENCY + ahead
        used = Counter(self._active) + Counter(waiting)
        return most, {slot: max(0, most - count) for slot, count in used.items()}

    def may_start(self, slot: str) -> bool:
        return self._active.get(slot, 0) < SLOT_CONCURRENCY

    def has_own_work(self) -> bool:
        return self.has_own_requests

    def count(self, stat: str, change: int = 1) -> None:
        self.stats[stat] += change
        # Among what is counted is every exchange that was answered.
        self.most_pending = max(self.most_pending, self.pump.depth.pending)
        self.most_leased = max(self.most_leased, self.pump.depth.leased)

    def stop(self, why: Exception) -> None:
        self._stopped_by = why

    def push_of(self, lease: Lease) -> Push:
        return Push(lease.rank, lease.slot, lease.payload)


@asynccontextmanager
async def fleet(
    url: str, fetch: Fetch, policy: Policy, *, workers: int, tiers: Sequence[str] = ("only",), concurrency: int = 16
) -> AsyncIterator[Sequence[SimulatedWorker]]:
    """Yield workers that take part in a crawl with this policy until the end of the ``async with`` block."""
    members = []
    try:
        for number in range(workers):
            config = FrontierConfig("bench", tiers, f"worker-{number}", policy=policy)
            member = SimulatedWorker(config, url, fetch, concurrency=concurrency)
            member.has_own_requests = True
            await member.open()
            members.append(member)
        yield members
    finally:
        await asyncio.gather(*(member.close() for member in members))


async def until(condition: Callable[[], object], *, what: str, within_s: float) -> None:
    """Wait until the condition is true.

    Raises:
        BenchmarkFailed: it was still false after that many seconds.
    """
    deadline = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > deadline:
            raise BenchmarkFailed(f"not within {within_s:g} s: {what}")
        await asyncio.sleep(0.05)
