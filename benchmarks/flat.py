"""Measure what size costs: push, lease and ack on frontiers of ten thousand to ten million pending requests.

The frontiers are servers of their own, all there at once, and take turns: a round is some thousand pushes, leases and
acks on each, after which it holds as many requests as before. One of them has a million slots. Then every verb of the
scripts and every command runs once on each, and the longest call that the server noted is listed.

Beside them the data structures alone take part in the rounds, see `plain.py`: a server of each size with as many slots.

The largest frontier takes about 3 GB, and some minutes to fill; so does the largest plain one.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from statistics import median

from filled import fill, request
from hand import Hand, acks_of
from plain import fill_plain, lease_plain, push_plain
from program import Option, processor_s, run_from_command_line, workplace
from redis_server import RedisServer
from results import Cell, Measured, Report, Table
from slow import SLOW_MS, SlowCalls
from verbs import exchanges_beside, run_verbs

from scrapy_prioqueue.frontier.base import Ack, Demand
from scrapy_prioqueue.frontier.redis.link import Link
from scrapy_prioqueue.pump.outbox import REQUESTS_PER_BATCH

SLOTS = 20
LEASE = 16

SIZES = ["10000/20", "100000/20", "1000000/20", "10000000/20", "1000000/1000000"]
"""Pending requests and slots of the full form; the first is what others are compared with."""

QUICK_SIZES = ["10000/20", "300000/20", "100000/100000"]

FILLED = "Frontiers that were filled"

PHASES = ("push", "lease", "ack")

PLAIN_PHASES = ("push", "lease")
"""What plain commands know."""

Fill = Callable[[str, int, int, int], None]


@dataclass(slots=True)
class Subject:
    """A frontier of some size, and what its rounds took.

    Args:
        costs: by phase the server's processor time for one request in each round, in microseconds.
        fill_s: seconds that filling took.
        memory_b: bytes of the server's data for one pending request, its fingerprint included.
    """

    pending: int
    slots: int
    server: RedisServer
    fill_s: float = 0.0
    memory_b: float = 0.0
    costs: dict[str, list[float]] = field(default_factory=lambda: {phase: [] for phase in PHASES})
    slow: SlowCalls = field(default_factory=SlowCalls)

    @property
    def title(self) -> str:
        """What tables call it."""
        return f"{self.pending:,} in {self.slots:,} slots"


async def run_round(subject: Subject, first: int, operations: int) -> None:
    """Push, lease and ack so many requests, beginning with that number."""
    hand = Hand(subject.server.url, "bench")
    pushes = [request(number, subject.slots) for number in range(first, first + operations)]
    acks: list[Ack] = []

    async def lease() -> None:
        acks.extend(acks_of(await hand.lease(operations, Demand(LEASE))))

    try:
        await hand.join()
        phases: Sequence[Callable[[], Awaitable[None]]] = (
            lambda: hand.send(pushes, REQUESTS_PER_BATCH),
            lease,
            lambda: hand.send(acks, LEASE),
        )
        for phase, run in zip(PHASES, phases, strict=True):
            with measured(subject, phase, operations):
                await run()
    finally:
        await hand.leave()


def run_plain_round(subject: Subject, first: int, operations: int) -> None:
    """Push and take out so many requests with plain commands, beginning with that number."""
    link = Link(subject.server.url, timeout_s=60)
    phases: Sequence[Callable[[], None]] = (
        lambda: push_plain(link, first, first + operations, subject.slots, REQUESTS_PER_BATCH),
        lambda: lease_plain(link, operations, subject.slots, LEASE),
    )
    try:
        for phase, run in zip(PLAIN_PHASES, phases, strict=True):
            with measured(subject, phase, operations):
                run()
    finally:
        link.close()


@contextmanager
def measured(subject: Subject, phase: str, operations: int) -> Iterator[None]:
    """Note what the ``with`` block takes of the server's processor for each of so many operations."""
    client = SlowCalls.client(subject.server)
    before = processor_s(client)
    yield
    subject.costs[phase].append((processor_s(client) - before) / operations * 1e6)


@contextmanager
def subjects(sizes: Sequence[tuple[int, int]], fill: Fill, kind: str = "") -> Iterator[Sequence[Subject]]:
    """Start a server for each size and fill it."""
    with ExitStack() as stack:
        found = []
        for pending, slots in sizes:
            noted = {"slowlog_log_slower_than": 1000, "slowlog_max_len": 10_000, "latency_monitor_threshold": 5}
            _, server = stack.enter_context(workplace(**noted))
            subject, begun = Subject(pending, slots, server), time.perf_counter()
            fill(server.url, 0, pending, slots)
            subject.fill_s = time.perf_counter() - begun
            subject.memory_b = _memory(server) / pending
            subject.slow.forget(server)
            print(f"{subject.title}{kind}: filled in {subject.fill_s:.0f} s", file=sys.stderr, flush=True)
            found.append(subject)
        yield found


def _memory(server: RedisServer) -> float:
    return float(SlowCalls.client(server).info("memory")["used_memory_dataset"])


def cost_table(found: Sequence[Subject]) -> Table:
    """Return the server's processor time for one request."""
    note = (
        f"All processor time of Redis for one request, with {REQUESTS_PER_BATCH} pushes per call, and {LEASE} leases"
        " and acks per call. Ratios are to the first row in the same round."
    )
    return _costs("What push, lease and ack cost by size", PHASES, found, note)


def plain_table(found: Sequence[Subject]) -> Table:
    """Return the same for plain commands."""
    note = (
        "The same payloads and ranks are in a sorted set per slot, and the fingerprints in a set. A push is a `ZADD`"
        f" and a `SADD`, {REQUESTS_PER_BATCH} pushes per round trip; a lease is a `ZPOPMIN`, {LEASE} per round trip,"
        " from the slots in turn. Measured in the same rounds, on separate servers."
    )
    return _costs("What plain commands cost by size", PLAIN_PHASES, found, note)


def _costs(title: str, phases: Sequence[str], found: Sequence[Subject], note: str) -> Table:
    """Return a table of these phases by size, and how each compares with that of the first size."""
    columns = ["pending", *(f"{phase}, µs" for phase in phases), *(f"{phase}, ratio" for phase in phases)]
    rows: list[Sequence[Cell]] = []
    for subject in found:
        costs = [Measured(subject.costs[phase], 1) for phase in phases]
        bases = [found[0].costs[phase] for phase in phases]
        ratios = [
            Measured([mine / its for mine, its in zip(cost.values, base, strict=True)])
            for cost, base in zip(costs, bases, strict=True)
        ]
        rows.append([subject.title, *costs, *ratios])
    return Table(title, columns, rows, note)


def size_table(found: Sequence[Subject]) -> Table:
    """Return how much memory a pending request takes, and what filling took."""
    rows: list[Sequence[Cell]] = [
        [subject.title, round(subject.memory_b), round(subject.fill_s, 1)] for subject in found
    ]
    note = "Bytes of Redis memory for one pending request, including its fingerprint and its share of the slots."
    return Table(FILLED, ["pending", "bytes per request", "seconds to fill"], rows, note)


def call_table(found: Sequence[Subject], longest: Sequence[Mapping[str, float]]) -> Table:
    """Return the longest call by what was done, in milliseconds."""
    names = sorted({name for each in longest for name in each})
    rows: list[Sequence[Cell]] = [[name, *(each.get(name) for each in longest)] for name in names]
    note = (
        "Milliseconds, from `SLOWLOG`; - means that all calls took less than 1."
        f" The goal is that none takes more than {SLOW_MS:g}."
    )
    return Table("The longest call to the server", ["verb: command", *(one.title for one in found)], rows, note)


def beside_table(found: Sequence[Subject]) -> Table:
    """Return what the exchanges of a worker take while an operator changes many requests."""
    rows: list[Sequence[Cell]] = []
    for subject in found:
        for what, taken in exchanges_beside(subject.server, subject.slots).items():
            rows.append([subject.title, what, round(median(taken), 1), round(taken[len(taken) * 99 // 100], 1)])
    note = "A worker leases 16 requests and acks them again and again, 10 ms apart; the operator is another process."
    return Table("A worker beside an operator", ["pending", "beside", "exchange p50, ms", "p99, ms"], rows, note)


OPTIONS = (
    Option("--rounds", 7, "how often each size is measured", quick=3),
    Option("--operations", 6000, "requests pushed, leased and acked in a round", quick=3000),
    Option("--sizes", SIZES, "pending requests and slots of each frontier: 1000/20 1000/1000", quick=QUICK_SIZES),
    Option("--no-verbs", False, "leave out the calls of every verb"),
)


def run_benchmark(options: argparse.Namespace) -> None:
    """Fill, measure and print."""
    rounds, operations = options.rounds, options.operations
    sizes = [(int(pending), int(slots)) for pending, slots in (size.split("/") for size in options.sizes)]
    # In plain sorted sets a slot is a key among others, however many there are.
    plain_sizes = [(pending, slots) for pending, slots in sizes if slots == sizes[0][1]]
    with subjects(sizes, fill) as found, subjects(plain_sizes, fill_plain, ", plain") as plain:
        report = Report.begin("flat", options, found[0].server)
        report.add(size_table(found))
        for number in range(rounds):
            for subject in found:
                asyncio.run(run_round(subject, subject.pending + number * operations, operations))
            for subject in plain:
                run_plain_round(subject, subject.pending + number * operations, operations)
            print(f"round {number + 1}", file=sys.stderr, flush=True)
        report.add(cost_table(found), plain_table(plain))
        for subject in found:
            subject.slow.note("working", subject.server)
        if not options.no_verbs:
            report.add(beside_table(found))
            for subject in found:
                run_verbs(subject.server, subject.slow, subject.slots)
        report.add(call_table(found, [subject.slow.longest for subject in found]))


if __name__ == "__main__":
    sys.exit(run_from_command_line(run_benchmark, __doc__, *OPTIONS))
