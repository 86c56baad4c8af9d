"""Crawls of one worker with lost connections, and with a server that is sometimes full or loses leases.

Each page is fetched once, and the crawl ends.
"""

from __future__ import annotations

import asyncio
import random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from scrapy_prioqueue.frontier.base import Depth, Lease, Recall
from tests.unit.pumping import Bench, Call
from tests.unit.virtual_time import run_in_virtual_time, until

PLACES = 4
PAGES = 40

FULL_CALLS = 4

LOSSES = ["lost_connections", "lost_requests", "lost_answers"]


def faults_of(*kinds: str) -> st.SearchStrategy[dict[int, str]]:
    """Return what happens to which call."""
    return st.dictionaries(st.integers(1, 60), st.sampled_from([*LOSSES, *kinds]), max_size=40)


# Both in one crawl are too much: a server without memory can't take the claims to what it has forgotten.
FAULTS = faults_of("full_server") | faults_of("forgotten_leases")


class Crawl:
    """Fetches pages that take their time and lead to others, until the pump says that it is over.

    Args:
        faults: what happens to the n-th call of the frontier.
        seed: of the times that pages and round trips take.
    """

    def __init__(self, faults: dict[int, str], seed: int) -> None:
        self.faults = faults
        self.random = random.Random(seed)
        self.fetched: list[str] = []
        self.running: set[asyncio.Task[None]] = set()
        self.pushed = 0
        self.full_calls = 0

    async def run(self) -> Bench:
        """Crawl to the end."""
        self.bench = bench = Bench(concurrency=PLACES)
        self.count_calls()
        bench.delegate.engine.wake = self.start_what_can_start  # type: ignore[method-assign]
        await bench.open()
        bench.offer(PLACES)
        self.push_some(1)
        bench.end_start()
        await until(lambda: bench.pump.has_ended and not self.running, what="the end", within=600, every=0.1)
        self.faults, self.full_calls = {}, 0
        await bench.close()
        return bench

    def count_calls(self) -> None:
        """Let each call of the frontier, the first one excepted, meet its fault."""
        calls = 0
        carried_out = self.bench.remote._carried_out  # noqa: SLF001

        async def counted(call: Call, carry_out: object) -> object:
            nonlocal calls
            fault = self.faults.get(calls)
            calls += 1
            self.bench.remote.round_trip_s = self.random.choice([0.001, 0.02, 0.3, 2.5])
            self.full_calls -= 1
            if fault == "full_server":
                self.full_calls = FULL_CALLS
            elif fault == "forgotten_leases":
                self.forget_leases(call)
            elif fault:
                setattr(self.bench.remote, fault, 1)
            self.bench.remote.is_full = self.full_calls > 0
            return await carried_out(call, carry_out)  # type: ignore[arg-type]

        self.bench.remote._carried_out = counted  # type: ignore[assignment,method-assign]  # noqa: SLF001

    def forget_leases(self, call: Call) -> None:
        """Let the server forget some leases, and answer that it has forgotten something."""
        if call.verb != "exchange":
            return
        store = self.bench.inner.store
        for lease_id in store.leases.of_worker("w1"):
            if self.random.random() < 0.5:
                store.give_back(store.leases.end(lease_id), was_attempt=False)
        self.bench.remote.recall = Recall()

    def push_some(self, count: int, page: Lease | None = None) -> None:
        """Find pages."""
        for _ in range(min(count, PAGES - self.pushed)):
            self.pushed += 1
            self.bench.push(f"page {self.pushed}", rank=self.random.randrange(3), found_on=page)

    def start_what_can_start(self) -> None:
        """Do what the engine does when it is woken."""
        while self.bench.delegate.places > 0 and (lease := self.bench.pump.take()) is not None:
            self.bench.delegate.places -= 1
            task = asyncio.get_running_loop().create_task(self.fetch(lease))
            self.running.add(task)
            task.add_done_callback(self.running.discard)

    async def fetch(self, lease: Lease) -> None:
        """Fetch a page, then push its children, then ack it."""
        await asyncio.sleep(self.random.choice([0.001, 0.1, 1.0]))
        self.fetched.append(lease.payload.decode())
        self.push_some(self.random.randrange(4) if self.pushed > 1 else 3, self.random.choice([lease, None]))
        self.bench.ack(lease)
        self.bench.delegate.places += 1
        self.bench.pump.consider()
        self.start_what_can_start()


@pytest.mark.server_faults
@settings(max_examples=40)
@given(FAULTS, st.integers(0, 2**16))
@example({8: "lost_answers", 9: "full_server"}, 1)
def test_each_page_is_fetched_once_and_the_crawl_ends_with_any_losses(faults: dict[int, str], seed: int) -> None:
    crawl = Crawl(faults, seed)

    bench = run_in_virtual_time(crawl.run())

    assert sorted(crawl.fetched) == sorted(f"page {number + 1}" for number in range(crawl.pushed))
    assert bench.inner.store.depth(0) in (Depth(), Depth(accepted=crawl.pushed, done=crawl.pushed))
    assert bench.remote.most_running == 1
    assert not any(outcome.is_void for outcome in bench.delegate.outcomes)
