"""Measure who is served when there is more than enough for everybody: shares of tiers, urgent requests, turns of slots.

Shares and turns are counted in leases, one exchange at a time, so that there is an order. The time until an urgent
request starts is measured with pumps at work.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import re
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hand import TIERS, Hand, acks_of
from program import Option, Workplace, run_from_command_line, workplace
from results import Cell, Report, Table
from simulated import Page, SimulatedWorker, fleet, until

from scrapy_prioqueue.client import FrontierClient
from scrapy_prioqueue.codec.plain import read_plain
from scrapy_prioqueue.frontier.base import Demand, Lease, Push
from scrapy_prioqueue.frontier.policy import Policy
from scrapy_prioqueue.pump.outbox import BATCH_SIZE
from scrapy_prioqueue.rank import rank_of, tier_of

WEIGHTS = (8, 4, 2, 1)
WINDOW = 1000
"""Consecutive leases in which shares are counted."""

PAGE_S = (0.05, 0.3)
"""How long a page takes, while urgent requests are waited for."""

FEWEST_FOR_SHARES = 100
"""Of fewer urgent requests 99 % is the worst."""

URGENT = re.compile(r"urgent-(\d+)$")


async def order_of(url: str, policy: Policy, requests: Sequence[Push], count: int, workers: int) -> Sequence[Lease]:
    """Return the first so many leases in the order in which they are granted to that many workers.

    Each worker acks what it holds when it leases again.
    """
    hands = [Hand(url, f"worker-{number}", policy=policy) for number in range(workers)]
    held: dict[Hand, Sequence[Lease]] = dict.fromkeys(hands, ())
    try:
        for hand in hands:
            await hand.join()
        await hands[0].send(requests, BATCH_SIZE)
        leases: list[Lease] = []
        while len(leases) < count:
            hand = random.choice(hands)
            answer = await hand.exchange(acks_of(held[hand]), Demand(random.randint(1, 16)))
            held[hand] = answer.leases
            leases += answer.leases
        return leases[:count]
    finally:
        for hand in hands:
            await hand.close()


# Shares


def tiered_requests(count: int) -> Sequence[Push]:
    """Return so many requests of each tier, in 20 slots."""
    return [
        Push(rank_of(tier, number % 5), f"site-{number % 20}.test", b"page")
        for number in range(count)
        for tier in range(4)
    ]


def worst_share(tiers: Sequence[int]) -> Mapping[int, float]:
    """Return by tier how far the number of leases was from its share, at worst, in any window."""
    fair = {tier: WINDOW * weight / sum(WEIGHTS) for tier, weight in enumerate(WEIGHTS)}
    counts = Counter(tiers[:WINDOW])
    worst = {tier: abs(counts[tier] - fair[tier]) for tier in fair}
    for gone, come in zip(tiers, tiers[WINDOW:], strict=False):
        counts[gone] -= 1
        counts[come] += 1
        for tier in fair:
            worst[tier] = max(worst[tier], abs(counts[tier] - fair[tier]))
    return worst


async def starts_of(url: str, policy: Policy, requests: Sequence[Push], count: int, workers: int) -> Sequence[int]:
    """Return the tiers of the first so many requests that the pumps of that many workers start, in that order."""
    tiers: list[int] = []

    def fetch(lease: Lease) -> Page:
        tiers.append(tier_of(lease.rank))
        return Page(random.uniform(*PAGE_S) / 4)

    async with fleet(url, fetch, policy, workers=workers, tiers=TIERS) as members:
        for member in members:
            member.starts_nothing = True
        for request in requests:
            members[0].push(request)
        await until(lambda: not members[0].pump.outbox, what="all requests stored", within_s=60)
        for member in members:
            member.starts_nothing = False
            member.wake()
        await until(lambda: len(tiers) >= count, what="enough requests started", within_s=600)
    return tiers[:count]


async def measure_shares(place: Workplace, options: argparse.Namespace) -> Table:
    """Lease with weights while all tiers have requests; return a table."""
    policy, count = Policy(weights=WEIGHTS), options.leases
    requests = tiered_requests(count * max(WEIGHTS) // sum(WEIGHTS) + WINDOW)
    leases = await order_of(place.server.url, policy, requests, count, options.workers)
    place.clear()
    starts = await starts_of(place.server.url, policy, requests, count, options.workers)
    rows: list[Sequence[Cell]] = []
    for what, tiers in (("leases", [tier_of(lease.rank) for lease in leases]), ("starts", starts)):
        worst, counts = worst_share(tiers), Counter(tiers)
        for tier, name in enumerate(TIERS):
            shares = [f"{WEIGHTS[tier] / sum(WEIGHTS):.2%}", f"{counts[tier] / count:.2%}"]
            rows.append([f"{what}, {name}", *shares, f"{worst[tier]:.2f}", f"{worst[tier] / WINDOW:.2%}"])
    columns = ["", "weight", "share", f"most off in {WINDOW}", "of them"]
    note = f"{count} leases, and {count} starts by {options.workers} simulated workers, while all tiers had requests."
    return Table("Shares", columns, rows, note)


# Urgent requests


class Load:
    """Keeps workers busy with requests of the lower tiers, and notes when urgent ones are pushed and started."""

    def __init__(self) -> None:
        self.started = 0
        self.pushed_at: dict[int, float] = {}
        self.started_at: dict[int, float] = {}

    def requests(self, count: int) -> Sequence[Push]:
        """Return so many requests of each lower tier."""
        return [
            Push(rank_of(tier, 0), f"site-{number % 50}.test", b"page") for number in range(count) for tier in (1, 2, 3)
        ]

    def fetch(self, lease: Lease) -> Page:
        """Start a request; a page of the load leads to another one of its kind, so that there is no end of them."""
        self.started += 1
        urgent = _urgent_number(lease)
        if urgent is not None:
            self.started_at[urgent] = time.monotonic()
        links = [] if urgent is not None else [Push(lease.rank, lease.slot, lease.payload)]
        return Page(random.uniform(*PAGE_S), links)

    def late_s(self) -> Sequence[float]:
        """Return how long each urgent request has waited, the shortest first."""
        return sorted(self.started_at[number] - pushed for number, pushed in self.pushed_at.items())


def _urgent_number(lease: Lease) -> int | None:
    """Return which urgent request it is, None if it is none; a client's are encoded, those of workers are not."""
    if tier_of(lease.rank) != 0:
        return None
    is_own = lease.payload.startswith(b"urgent-")
    found = URGENT.search(lease.payload.decode() if is_own else read_plain(lease.payload, lease.slot).url)
    return int(found[1]) if found else None


@dataclass(frozen=True, slots=True)
class Waited:
    """What urgent requests had to wait under a load.

    Args:
        times_s: sorted.
        pages_per_s: started meanwhile.
    """

    times_s: Sequence[float]
    pages_per_s: float

    def row(self, name: str) -> Sequence[Cell]:
        """Return it as it is printed."""
        number = len(self.times_s)
        values = [self.times_s[min(number - 1, int(share * number))] for share in (0.5, 0.99, 1)]
        median, most, worst = (f"{value * 1000:.0f}" for value in values)
        return [name, number, median, most if number >= FEWEST_FOR_SHARES else None, worst, f"{self.pages_per_s:.0f}"]


async def wait_for_urgent(url: str, policy: Policy, options: argparse.Namespace, *, is_client: bool) -> Waited:
    """Push urgent requests under full load, from a worker or from a client in another thread."""
    load = Load()
    concurrency = options.concurrency
    async with fleet(url, load.fetch, policy, workers=options.workers, tiers=TIERS, concurrency=concurrency) as members:
        for request in load.requests(options.workers * concurrency * 5):
            members[0].push(request)
        places = options.workers * concurrency
        await until(lambda: load.started > 3 * places, what="all workers busy", within_s=60)
        began_at, began = time.monotonic(), load.started
        with FrontierClient(url, "bench") as client:
            for number in range(options.urgent):
                await asyncio.sleep(random.uniform(0.5, 1.5) / options.urgent_per_s)
                load.pushed_at[number] = time.monotonic()
                if is_client:
                    await asyncio.to_thread(client.push, f"https://site-1.test/urgent-{number}", tier=TIERS[0])
                else:
                    push_from(random.choice(members), number)
        await until(lambda: len(load.started_at) == options.urgent, what="all urgent requests started", within_s=60)
        return Waited(load.late_s(), (load.started - began) / (time.monotonic() - began_at))


def push_from(member: SimulatedWorker, number: int) -> None:
    """Push an urgent request as a callback of this worker does."""
    member.push(Push(rank_of(0, 0), f"site-{number % 50}.test", b"urgent-%d" % number))


async def measure_urgent(place: Workplace, options: argparse.Namespace) -> Table:
    """Wait for urgent requests from within and from outside, with and without weights; return a table."""
    rows: list[Sequence[Cell]] = []
    for order, policy in (("best tier first", Policy()), ("weights 8/4/2/1", Policy(weights=WEIGHTS))):
        for origin, is_client in (("a worker", False), ("a client", True)):
            place.clear()
            waited = await wait_for_urgent(place.server.url, policy, options, is_client=is_client)
            rows.append(waited.row(f"{order}, pushed by {origin}"))
            print("urgent: " + " ".join(map(str, rows[-1])), file=sys.stderr, flush=True)
    columns = ["ms until an urgent request starts", "requests", "median", "99 %", "worst", "pages/s"]
    note = f"{options.workers} workers with {options.concurrency} places each, on pages of 50 to 300 ms."
    return Table("Urgent requests", columns, rows, note)


# Turns of slots


def slotted_requests(big: int, small: int, each: int) -> Sequence[Push]:
    """Return requests of equal rank: many of one slot, and after them a few of many slots."""
    return [
        *(Push(rank_of(1, 0), "big.test", b"page") for _ in range(big)),
        *(Push(rank_of(1, 0), f"small-{number}.test", b"page") for _ in range(each) for number in range(small)),
    ]


def turns_of(slots: Sequence[str]) -> tuple[Mapping[str, int], Mapping[str, int]]:
    """Return by slot which lease was its first one, from 1, and the most leases from one turn to its next."""
    last: dict[str, int] = {}
    first: dict[str, int] = {}
    longest: dict[str, int] = {}
    for number, slot in enumerate(slots, 1):
        first.setdefault(slot, number)
        if slot in last:
            longest[slot] = max(longest.get(slot, 0), number - last[slot])
        last[slot] = number
    return first, longest


async def measure_turns(place: Workplace, options: argparse.Namespace) -> Table:
    """Lease while one slot has very many requests and others few; return a table."""
    big, small, each = options.big, 1000, 10
    rows: list[Sequence[Cell]] = []
    for order, policy in (("one order", Policy()), ("weights 8/4/2/1", Policy(weights=WEIGHTS))):
        place.clear()
        count = (small + 1) * each
        leases = await order_of(place.server.url, policy, slotted_requests(big, small, each), count, options.workers)
        first, longest = turns_of([lease.slot for lease in leases])
        turns = [max(first.values()), max(longest.values()), longest["big.test"]]
        rows.append([order, big, f"{small} × {each}", len(first), *turns])
    columns = ["", "of one slot", "others", "slots served", "last first turn at lease"]
    return Table("Turns", [*columns, "longest between turns, leases", "of the big slot"], rows)


MEASURES = {"shares": measure_shares, "urgent": measure_urgent, "turns": measure_turns}

OPTIONS = (
    Option("--workers", 10, "simulated workers"),
    Option("--concurrency", 8, "requests at a time of each, while urgent ones come"),
    Option("--leases", 30_000, "in which shares are counted", quick=3000),
    Option("--urgent", 400, "urgent requests of each kind", quick=40),
    Option("--urgent-per-s", 10.0, "how often one is pushed"),
    Option("--big", 100_000, "requests of the big slot", quick=10_000),
    Option("--only", [], "what is measured", choices=tuple(MEASURES)),
)


def run_benchmark(options: argparse.Namespace) -> None:
    """Start a server, measure and print the tables."""
    with workplace() as place:
        report = Report.begin("fairness", options, place.server)
        for name, measure in MEASURES.items():
            if not options.only or name in options.only:
                place.clear()
                report.add(asyncio.run(measure(place, options)))


if __name__ == "__main__":
    sys.exit(run_from_command_line(run_benchmark, __doc__, *OPTIONS))
