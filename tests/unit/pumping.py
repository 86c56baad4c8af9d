"""A pump between a delegate and a frontier that tests control; the frontier wraps a real one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from twisted.internet.defer import Deferred

from scrapy_prioqueue.errors import FrontierFull, FrontierUnavailable, RequestTooLarge
from scrapy_prioqueue.frontier.base import (
    Ack,
    Batch,
    Claim,
    Demand,
    Depth,
    Exchanged,
    Frontier,
    FrontierConfig,
    Joined,
    Lease,
    Orders,
    Push,
    Recall,
    Report,
)
from scrapy_prioqueue.frontier.kept import Kept
from scrapy_prioqueue.frontier.memory import MemoryFrontier, MemoryStore
from scrapy_prioqueue.frontier.operations import payload_size
from scrapy_prioqueue.frontier.policy import LimitsInForce, Policy
from scrapy_prioqueue.frontier.runs import FleetTotals
from scrapy_prioqueue.frontier.waits import Blocked, SlowPage, Waits
from scrapy_prioqueue.pump.delegate import PumpConfig, Trouble
from scrapy_prioqueue.pump.outbox import HeldRequest, Outcome
from scrapy_prioqueue.pump.pump import Pump
from scrapy_prioqueue.runtime import AsyncioRunner, InlineRunner
from tests.unit.virtual_time import until

T = TypeVar("T")

TTL_S = 60.0
ROUND_TRIP_S = 0.001


def in_loop_time() -> float:
    """Return the time of the running loop."""
    return asyncio.get_running_loop().time()


def in_loop_time_ms() -> int:
    """Return the same as frontiers count it."""
    return 1_700_000_000_000 + round(in_loop_time() * 1000)


def frontier_config(worker: str = "w1", **fields: Any) -> FrontierConfig:
    """Return the configuration of a worker on a frontier in virtual time."""
    base: dict[str, Any] = {"name": "test", "tiers": ("a",), "lease_ttl_s": TTL_S, "clock": in_loop_time_ms}
    base["suspect_groups"] = ()
    return FrontierConfig(worker=worker, **{**base, **fields})


@dataclass
class Call:
    """One call of the frontier, as it came."""

    verb: str
    at: float
    batches: Sequence[Batch] = ()
    demand: Demand | None = None
    held: Sequence[tuple[int, int]] = ()


class RemoteFrontier(Frontier):
    """An in-process frontier at the end of a line that can break; it takes a round trip to answer.

    Args:
        inner: carries out what arrives.
    """

    address = "redis://test.example:6379/0"
    is_local = False

    def __init__(self, inner: MemoryFrontier) -> None:
        self.inner = inner
        self.config = inner.config
        self.calls: list[Call] = []
        self.running = 0
        self.most_running = 0
        self.round_trip_s = ROUND_TRIP_S
        self.lost_connections = 0
        self.lost_requests = 0
        self.lost_answers = 0
        self.is_away = False
        self.is_unreachable = False
        self.is_full = False
        self.size_limit = 0
        self.recall: Recall | None = None
        self.orders = Orders()
        self.timing: dict[bytes, tuple[int, int | None]] = {}
        self.must_ask = False
        self.next_due_s: float | None = None
        self.error: Exception | None = None
        self.is_answering = asyncio.Event()
        self.is_answering.set()
        self.rings: list[Callable[[], object]] = []
        self.is_closed = False

    def sent(self, verb: str) -> list[Call]:
        """Return the calls of a verb so far."""
        return [call for call in self.calls if call.verb == verb]

    async def join(self) -> Joined:
        return await self._carried_out(Call("join", in_loop_time()), self.inner.join)

    async def exchange(self, batches: Sequence[Batch], demand: Demand | None) -> Exchanged:
        copies = [Batch(batch.number, tuple(batch.operations)) for batch in batches]
        call = Call("exchange", in_loop_time(), copies, demand)
        answer = await self._carried_out(call, lambda: self._exchange(batches, demand))
        leases = [self._timed(lease) for lease in answer.leases]
        due_s = answer.next_due_s if self.next_due_s is None else self.next_due_s
        return replace(answer, orders=self.orders, leases=leases, must_ask=self.must_ask, next_due_s=due_s)

    def _timed(self, lease: Lease) -> Lease:
        """Return a lease with the time that `timing` says for its payload."""
        start_in_ms, late_ms = self.timing.get(lease.payload, (0, None))
        return lease._replace(start_in_ms=start_in_ms, late_ms=late_ms)

    async def known(self, pushes: Sequence[Push]) -> Sequence[int]:
        return await self._carried_out(Call("known", in_loop_time()), lambda: self.inner.known(pushes))

    async def pending(self, slot: str, first: int, limit: int) -> Sequence[Lease]:
        call = Call("pending", in_loop_time())
        return await self._carried_out(call, lambda: self.inner.pending(slot, first, limit))

    async def workers(self) -> Sequence[str]:
        return await self._carried_out(Call("workers", in_loop_time()), self.inner.workers)

    async def limits_in_force(self) -> LimitsInForce:
        return await self._carried_out(Call("limits_in_force", in_loop_time()), self.inner.limits_in_force)

    async def renew(self, held: Sequence[tuple[int, int]]) -> Sequence[int]:
        return await self._carried_out(Call("renew", in_loop_time(), held=held), lambda: self.inner.renew(held))

    async def leases(self) -> Sequence[tuple[int, int]]:
        return await self._carried_out(Call("leases", in_loop_time()), self.inner.leases)

    async def reconcile(self, held: Sequence[tuple[int, int]]) -> int:
        return await self._carried_out(Call("reconcile", in_loop_time(), held=held), lambda: self.inner.reconcile(held))

    async def waits(self) -> Waits:
        return await self._carried_out(Call("waits", in_loop_time()), self.inner.waits)

    async def report_slow(self, pages: Sequence[SlowPage], blocked: Blocked | None = None) -> None:
        await self._carried_out(Call("report_slow", in_loop_time()), lambda: self.inner.report_slow(pages, blocked))

    async def leave(self, report: Report | None = None) -> FleetTotals | None:
        return await self._carried_out(Call("leave", in_loop_time()), lambda: self.inner.leave(report))

    async def count_letters(self) -> int:
        return await self.inner.count_letters()

    async def listen(self, ring: Callable[[], object]) -> None:
        self.rings.append(ring)
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            self.rings.remove(ring)

    def twin(self) -> RemoteFrontier:
        return self

    async def close(self) -> None:
        self.is_closed = True

    async def _carried_out(self, call: Call, carry_out: Callable[[], Coroutine[Any, Any, T]]) -> T:
        self.calls.append(call)
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        try:
            await asyncio.sleep(self.round_trip_s / 2)
            if self.error is not None:
                raise self.error
            if self.is_unreachable or self._counts_down("lost_connections"):
                raise FrontierUnavailable(self.address, "no connection", was_sent=False)
            if self.is_away or self._counts_down("lost_requests"):
                raise FrontierUnavailable(self.address, "the request was lost")
            result = await carry_out()
            await asyncio.sleep(self.round_trip_s / 2)
            await self.is_answering.wait()
            if self._counts_down("lost_answers"):
                raise FrontierUnavailable(self.address, "the answer was lost")
            return result
        finally:
            self.running -= 1

    def _counts_down(self, name: str) -> bool:
        left: int = getattr(self, name)
        setattr(self, name, max(0, left - 1))
        return left > 0

    async def _exchange(self, batches: Sequence[Batch], demand: Demand | None) -> Exchanged:
        if self.orders.is_paused and demand is not None:
            demand = replace(demand, limit=0)
        recall, self.recall = self.recall, None
        if recall is not None:
            position = self.inner.store.workers[self.config.worker].last_batch
            known = await self.inner.exchange([batch for batch in batches if batch.number <= position], None)
            return Exchanged(known.committed, recall=recall)
        why: Exception = FrontierFull("the server has reached its maxmemory")
        refused = [self.is_full and await self._takes_memory(batch) for batch in batches]
        if self.size_limit:
            why = RequestTooLarge("max request size exceeded")
            refused = [any(payload_size(each) > self.size_limit for each in batch.operations) for batch in batches]
        if True not in refused:
            return await self.inner.exchange(batches, demand)
        answer = await self.inner.exchange(batches[: refused.index(True)], demand)
        return Exchanged(
            answer.committed,
            why,
            answer.leases,
            answer.depth,
            has_ended=answer.has_ended,
        )

    async def _takes_memory(self, batch: Batch) -> bool:
        """Return whether a full server rejects a batch; it confirms a batch that it has applied."""
        session = self.inner.store.workers.get(self.config.worker)
        is_applied = session is not None and batch.number <= session.last_batch
        requests = [operation for operation in batch.operations if isinstance(operation, Push | Claim)]
        pushes = [request for request in requests if isinstance(request, Push)]
        return not is_applied and len(await self.inner.known(pushes)) < len(requests)


class FakeEngine:
    """The engine and its slots; what they answer are the delegate's attributes."""

    def __init__(self, delegate: FakeDelegate) -> None:
        self._delegate = delegate

    @property
    def slots(self) -> FakeEngine:
        return self

    @property
    def is_closing(self) -> bool:
        return self._delegate.closing

    @property
    def is_paused(self) -> bool:
        return self._delegate.paused

    @property
    def concurrency(self) -> int:
        return self._delegate.most_running

    def wake(self) -> None:
        self._delegate.wakes += 1

    def room(self, waiting: Mapping[str, int], ahead: int) -> tuple[int, dict[str, int]]:
        return 100, dict.fromkeys(self._delegate.full_slots, 0) | self._delegate.room

    def may_start(self, slot: str) -> bool:
        return slot not in self._delegate.full_slots

    def may_wait(self, slot: str) -> bool:
        return slot not in self._delegate.full_slots or slot in self._delegate.patient_slots


class FakeDelegate:
    """The scheduler's place; what it answers are its attributes. At first `start()` is not used up."""

    def __init__(self) -> None:
        self.spider = None
        self.engine = FakeEngine(self)
        self.outcomes: list[Outcome[str]] = []
        self.too_large_pushes: list[tuple[Push, Sequence[HeldRequest]]] = []
        self.wakes = 0
        self.kept: Kept | None = None
        self.recalls: list[Recall] = []
        self.orders: list[Orders] = []
        self.stopped_by: Exception | None = None
        self.lost_pages: list[int] = []
        self.troubles: list[tuple[str, str]] = []
        self.lost_names: list[tuple[str, bool]] = []
        self.gives_way = False
        self.own_work = True
        self.closing = False
        self.paused = False
        self.most_running = 8
        self.places = 0
        self.full_slots: set[str] = set()
        self.patient_slots: set[str] = set()
        self.room: dict[str, int] = {}
        self.held_up_slots: set[str] = set()
        self.stats: dict[str, int] = {}
        self.report: Report | None = None
        self.totals: list[FleetTotals | None] = []
        self.fingerprints: dict[bytes, bytes] = {}

    def note_outcome(self, outcome: Outcome[str]) -> None:
        self.outcomes.append(outcome)

    def too_large(self, push: Push, tag: str | None, roots: Sequence[HeldRequest]) -> None:
        self.too_large_pushes.append((push, roots))

    def note_answer(self, answer: Exchanged) -> None:
        """Answers are what a test has made them."""

    def changed_kept(self) -> Kept | None:
        kept, self.kept = self.kept, None
        return kept

    def recalled(self, recall: Recall) -> None:
        self.recalls.append(recall)

    def ordered(self, orders: Orders) -> None:
        self.orders.append(orders)

    def lost(self, lease_id: int) -> bool:
        self.lost_pages.append(lease_id)
        return self.gives_way

    def degraded(self, cause: Trouble, detail: str) -> None:
        self.troubles.append((cause, detail))

    def recovered(self, cause: Trouble, after_s: float) -> None:
        self.troubles.append((cause, f"over after {after_s:.1f} s"))

    def lost_leases(self, leases: Sequence[Lease], *, are_started: bool) -> None:
        self.lost_names += [(lease.payload.decode(), are_started) for lease in leases]

    def push_of(self, lease: Lease) -> Push:
        return Push(lease.rank, lease.slot, lease.payload, self.fingerprints.get(lease.payload))

    def stop(self, why: Exception) -> None:
        self.stopped_by = why

    def has_own_work(self) -> bool:
        return self.own_work

    def free_places(self) -> int:
        return self.places

    def held_up(self) -> Collection[str]:
        return self.held_up_slots

    def count(self, stat: str, change: int = 1) -> None:
        self.stats[stat] = self.stats.get(stat, 0) + change

    def last_report(self) -> Report | None:
        return self.report

    def note_totals(self, totals: FleetTotals | None) -> None:
        self.totals.append(totals)

    @property
    def tags(self) -> list[str | None]:
        """Tags of the outcomes so far, in order."""
        return [outcome.tag for outcome in self.outcomes]


class Bench:
    """A pump with all that belongs to it.

    Args:
        is_local: over the in-process frontier itself, instead of one at the end of a line.
        store: that of another bench, to share its crawl.
        policy: what the frontier enforces.
    """

    def __init__(
        self,
        *,
        is_local: bool = False,
        store: MemoryStore | None = None,
        worker: str = "w1",
        policy: Policy | None = None,
        concurrency: int = 8,
        **config: Any,
    ) -> None:
        self.delegate = FakeDelegate()
        self.delegate.most_running = concurrency
        self.inner = MemoryFrontier(frontier_config(worker, policy=policy or Policy()), store)
        self.remote = RemoteFrontier(self.inner)
        fields = {
            "lease_ttl_s": TTL_S,
            "max_idle_s": 0.0,
            "outbox_limit": 100,
            **config,
        }
        self.pump: Pump[str] = Pump(
            self.inner if is_local else self.remote,
            InlineRunner() if is_local else AsyncioRunner(),
            self.delegate,
            PumpConfig(**fields),
            in_loop_time,
        )

    async def open(self) -> Bench:
        """Join and begin to exchange."""
        await finished(self.pump.open())
        self.pump.start()
        return self

    async def close(self, timeout_s: float = 10.0) -> None:
        """Leave."""
        await finished(self.pump.close(timeout_s))

    def offer(self, places: int) -> None:
        """Let so many requests start, as when a download has ended."""
        self.delegate.places = places
        self.pump.consider()

    def end_start(self) -> None:
        """Let `start()` be used up."""
        self.delegate.own_work = False
        self.pump.consider()

    def push(
        self,
        *names: str,
        rank: int = 0,
        slot: str = "shop.example",
        fingerprint: bytes | None = None,
        found_on: Lease | None = None,
    ) -> None:
        """Push requests whose payloads and tags are these names."""
        for name in names:
            page = None if found_on is None else found_on.lease_id
            self.pump.push(Push(rank, slot, name.encode(), fingerprint), name, page)

    def ack(self, lease: Lease) -> None:
        """Finish a request."""
        self.pump.finish(Ack(lease.lease_id, lease.attempt))

    def take(self) -> Lease:
        """Return the request to start now; there must be one."""
        lease = self.pump.take()
        assert lease is not None
        return lease

    @property
    def operations(self) -> list[Any]:
        """All operations of the batches sent so far, each batch once."""
        batches = {batch.number: batch for call in self.remote.sent("exchange") for batch in call.batches}
        return [operation for number in sorted(batches) for operation in batches[number].operations]


async def finished(deferred: Deferred[T]) -> T:
    """Wait for a Deferred in the running loop."""
    return await deferred.asFuture(asyncio.get_running_loop())


async def stored(bench: Bench, count: int) -> None:
    """Wait until so many operations are carried out."""
    await until(lambda: len(bench.delegate.outcomes) >= count, what=f"{count} outcomes")


async def leased(bench: Bench, count: int = 1) -> None:
    """Wait until so many leases are there to be started."""
    await until(lambda: len(bench.pump.inbox) >= count, what=f"{count} leases in the inbox")


def depth(bench: Bench) -> Depth:
    """Return the counts of the crawl."""
    return bench.inner.store.depth(0)
