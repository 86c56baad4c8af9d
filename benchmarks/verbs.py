"""Every verb of the scripts and every command once, on a frontier: what the server takes, and a worker beside them."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import suppress
from itertools import chain, count, islice
from multiprocessing import Process

from filled import PLAN, request
from hand import NAME, TIERS, Hand, acks_of
from redis_server import RedisServer
from slow import SlowCalls

from scrapy_prioqueue.errors import PrioQueueError
from scrapy_prioqueue.frontier.base import Demand, Fail
from scrapy_prioqueue.frontier.policy import EVERY, Budget, Closing, Latency, Policy, SlotLimit
from scrapy_prioqueue.frontier.redis.link import Link
from scrapy_prioqueue.frontier.redis.operators.checkup import frontier_findings
from scrapy_prioqueue.frontier.redis.operators.doctor import server_findings
from scrapy_prioqueue.frontier.redis.operators.exporter import Exporter
from scrapy_prioqueue.frontier.redis.operators.importer import Importer
from scrapy_prioqueue.frontier.redis.operators.inspector import Inspector
from scrapy_prioqueue.frontier.redis.operators.operator import POSITIONS_PER_CALL, Operator

LEASED = 20_000
"""Requests that are out where it matters how many are."""

LOST = 2000

RECORDS = 100_000
"""How much of a frontier is exported, and imported under another name."""

WEIGHTED = Policy(weights=(8, 4, 2, 1))
LIMITED = Policy(slots={EVERY: SlotLimit(delay=1e-5, concurrency=100_000, burst=1000)})
BUDGETED = Policy(budgets={EVERY: Budget(pages=10**9)})

PUSHED, MOVED = 200_000, 30_000
"""By an operator while a worker makes exchanges."""

ALONE = 500
"""Exchanges of a worker beside which nobody does anything."""

MANY = Demand(100, is_fair=False)
SETTLED = 100
"""How many leases are settled with each exchange."""

STEP_LIMIT = 5000
"""Exchanges until a policy that was switched on has reached all slots, at most."""


async def _work(worker: Hand) -> None:
    answer = await worker.exchange((), Demand(16))
    await worker.send(acks_of(answer.leases), SETTLED)


class _Verbs:
    def __init__(self, server: RedisServer, slow: SlowCalls, slots: int) -> None:
        self._server = server
        self._slow = slow
        self._slots = slots
        self._link = Link(server.url, timeout_s=300)
        self._operator = Operator(self._link, NAME, lease_ttl_s=0.01)
        self._inspector = Inspector(self._link, NAME)
        self._fresh = count(10**11)

    def run(self) -> None:
        self._note("join", self._joined(Policy()))
        self._note("lose leases", self._lost())
        self._note("recover", self._recovered())
        self._note("evict", self._evicted())
        self._note("fail, replay, purge", self._dead())
        self._do(
            "push", lambda: self._operator.push([request(next(self._fresh), self._slots) for _ in range(5000)], PLAN)
        )
        self._do("look", self._look)
        self._do("move, remove, drop, forget", self._move)
        self._do("order, budget, reopen", self._order)
        self._do("export", self._export)
        self._note("lease and ack many", self._many_leased())
        for name, policy in (("weights", WEIGHTED), ("limits", LIMITED), ("budgets", BUDGETED), ("none", Policy())):
            self._note(f"switch to {name}", self._joined(policy))
        self._note("notes", self._noted())
        self._do("limit", self._limit)
        self._do("look again", self._look)
        time.sleep(0.02)  # noqa: TID251 - the workers must have been silent for as long as the operator waits
        self._do("reset", self._operator.reset)
        self._link.close()

    def _do(self, what: str, action: Callable[[], object]) -> None:
        begun = time.perf_counter()
        with self._slow.during(what, self._server):
            action()
        print(f"  {what}: {time.perf_counter() - begun:.1f} s", file=sys.stderr, flush=True)

    def _note(self, what: str, work: Awaitable[None]) -> None:
        async def run() -> None:
            await work

        self._do(what, lambda: asyncio.run(run()))

    async def _joined(self, policy: Policy) -> None:
        worker = Hand(self._server.url, "joined", policy=policy)
        await worker.join()
        for _ in range(STEP_LIMIT):
            await _work(worker)
            if not self._link.client.hexists(f"{{prioqueue:{NAME}}}:state", "unsorted"):
                break
        for _ in range(100):
            await _work(worker)
        await worker.leave()

    async def _lost(self) -> None:
        lost, other = Hand(self._server.url, "lost", lease_ttl_s=0.5), Hand(self._server.url, "other")
        await lost.join()
        await lost.lease(LOST, MANY)
        await lost.close()
        await other.join()
        await asyncio.sleep(1)
        while (await other.exchange((), Demand(0))).reaped:
            pass
        await other.leave()

    async def _recovered(self) -> None:
        for _ in range(2):
            worker = Hand(self._server.url, "restarted")
            await worker.join()
            await worker.lease(LOST, MANY)
            await worker.close()
        worker = Hand(self._server.url, "restarted")
        await worker.join()
        await worker.leave()

    async def _evicted(self) -> None:
        worker = Hand(self._server.url, "gone")
        await worker.join()
        await worker.lease(LOST, MANY)
        await worker.close()
        self._operator.evict("gone", max_attempts=100)

    async def _dead(self) -> None:
        worker = Hand(self._server.url, "failing")
        await worker.join()
        leases = await worker.lease(LOST, MANY)
        fails = [Fail(lease.lease_id, lease.attempt, "error", "detail", "traceback") for lease in leases]
        await worker.send(fails, SETTLED)
        await worker.leave()
        letters = list(self._inspector.requests.dead())
        half = len(letters) // 2
        self._operator.replay([(letter, letter.payload, None) for letter in letters[:half]], PLAN)
        self._operator.purge(letters[half:])

    async def _many_leased(self) -> None:
        worker = Hand(self._server.url, "many")
        await worker.join()
        leases = await worker.lease(LEASED, MANY)
        await worker.send(acks_of(leases[: LEASED // 2]), SETTLED)
        # The rest stays out while policies are switched on.
        await worker.close()

    async def _noted(self) -> None:
        worker = Hand(self._server.url, "noting")
        await worker.join()
        slots = [request(number, self._slots).slot for number in range(min(200, self._slots))]
        notes = [note for slot in slots for note in (Latency(slot, 100, True), Closing(slot, 10))]
        await worker.exchange((), Demand(0, notes=notes))
        await worker.leave()

    def _look(self) -> None:
        inspector = self._inspector
        inspector.status()
        for sort in (None, "pending", "leased", "name"):
            inspector.slots(30, sort)
        inspector.workers()
        inspector.held_by_worker()
        first = list(inspector.peek(1000))
        for stored in first[:1] + first[-1:]:
            inspector.ahead_of(stored)
        list(islice(inspector.requests.each(), RECORDS))
        for finding in chain(
            server_findings(self._link, inspector.keys.of("probe")), frontier_findings(inspector, TIERS)
        ):
            if finding.severity == "wrong":
                print(f"  wrong: {finding}", file=sys.stderr)

    def _move(self) -> None:
        some = list(islice((stored for stored in self._inspector.requests.each() if stored.state == "pending"), 4000))
        self._operator.move((stored, stored.rank + 1, stored.payload) for stored in some[:2000])
        self._operator.remove(some[2000:])
        self._operator._calls.run([("drop", ("", POSITIONS_PER_CALL))] * 20)  # noqa: SLF001 - all of it would be dropped
        pushes = [request(number, self._slots) for number in range(2000)]
        self._operator.forget([push.fingerprint for push in pushes if push.fingerprint])

    def _order(self) -> None:
        self._operator.order(paused=True)
        self._operator.order(paused=False)
        self._operator.budget(EVERY, Budget(pages=10**9))
        self._operator.budget(EVERY, None)
        self._operator.open_slot(request(0, self._slots).slot)

    def _limit(self) -> None:
        self._operator.limit(EVERY, SlotLimit(delay=0.001))
        self._operator.limit(EVERY, None)

    def _export(self) -> None:
        def records() -> Iterator[dict[str, object]]:
            number = 0
            for number, record in enumerate(islice(Exporter(self._link, NAME).records(), RECORDS)):  # noqa: B007
                yield record
            yield {"kind": "end", "records": number}

        copy = f"{NAME}-copy"
        Importer(self._link, copy).run(records())
        with suppress(PrioQueueError):
            Operator(self._link, copy, lease_ttl_s=0.01).reset()


def _push_many(url: str, slots: int) -> None:
    """Push as `scrapy frontier push` does, in a process of its own."""
    link = Link(url, timeout_s=120)
    operator = Operator(link, NAME)
    for first in range(0, PUSHED, operator.pushes_per_trip):
        last = min(PUSHED, first + operator.pushes_per_trip)
        operator.push([request(2 * 10**11 + number, slots) for number in range(first, last)], PLAN)
    link.close()


def _move_many(url: str, _: int) -> None:
    """Move as `scrapy frontier move` does, likewise."""
    link = Link(url, timeout_s=120)
    operator = Operator(link, NAME)
    found = islice(operator.requests.each(["pending"]), MOVED)
    operator.move((stored, stored.rank + 1, stored.payload) for stored in found)
    link.close()


OPERATIONS: Mapping[str, Callable[[str, int], None] | None] = {
    "nothing": None,
    f"push of {PUSHED:,}": _push_many,
    f"move of {MOVED:,}": _move_many,
}


def exchanges_beside(server: RedisServer, slots: int) -> dict[str, list[float]]:
    """Return how many milliseconds a worker's exchanges take, in order, beside each of these."""
    return {what: asyncio.run(_exchanges_beside(server, slots, action)) for what, action in OPERATIONS.items()}


async def _exchanges_beside(server: RedisServer, slots: int, action: Callable[[str, int], None] | None) -> list[float]:
    worker = Hand(server.url, "beside")
    await worker.join()
    process = Process(target=action, args=(server.url, slots)) if action else None
    if process is not None:
        process.start()
    taken: list[float] = []
    while process.is_alive() if process is not None else len(taken) < ALONE:
        begun = time.perf_counter()
        answer = await worker.exchange((), Demand(16))
        taken.append((time.perf_counter() - begun) * 1000)
        await worker.send(acks_of(answer.leases), SETTLED)
        await asyncio.sleep(0.01)
    if process is not None:
        process.join()
        if process.exitcode:
            raise RuntimeError(f"{action} has failed")
    await worker.leave()
    return sorted(taken)


def run_verbs(server: RedisServer, slow: SlowCalls, slots: int) -> None:
    """Run all of them; the frontier is empty afterwards."""
    print(f"verbs on port {server.port}", file=sys.stderr, flush=True)
    _Verbs(server, slow, slots).run()
