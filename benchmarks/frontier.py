"""Measure the frontier alone: push, lease and ack requests through one client, beside plain sorted-set commands.

Once without policies, once with each policy that a frontier enforces, and once with all of them: limits, weights,
budgets and water marks. All are so high that nothing waits and nothing is refused: this is the price of checking them.

Plain means `SADD` and `ZADD` for a push and `ZPOPMIN` for a lease, pipelined, the same payloads on the same server.
That has no leases, no slots and no tiers, and loses what a killed worker held; it is the floor, not a rival.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import sys
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from functools import partial
from hashlib import sha1
from itertools import islice
from typing import Any

from hand import NO_POLICY, Hand
from processes import BenchmarkFailed
from program import Option, run_from_command_line, workplace
from redis.asyncio import Redis
from results import Cell, Measured, Report, Table

from scrapy_prioqueue.frontier.base import Ack, Demand, Push
from scrapy_prioqueue.frontier.base import Spent as Cost
from scrapy_prioqueue.frontier.labels import Label, labelled
from scrapy_prioqueue.frontier.policy import EVERY, Budget, Policy, SlotLimit
from scrapy_prioqueue.frontier.redis.connection import parse_version
from scrapy_prioqueue.frontier.redis.scripts import scripts_for
from scrapy_prioqueue.pump.outbox import BATCH_SIZE, MAX_BATCHES
from scrapy_prioqueue.rank import rank_of

NOTED_MS = 1.0
"""Script calls that take longer are noted by the server."""

SLOW_MS = 5.0
"""No script call should take longer: other workers wait meanwhile."""

COST = Cost(10_000, 250)
"""What each request is said to have cost where there are budgets."""

PAYLOAD = b"\x93\x01\xa3GET\xd9P%s\x81\xa5depth\x03\xa5parse"
"""About what the codec makes of a link to an 80-byte URL."""

SPEED = "Push, lease and ack"
MEMORY = "Memory of the server"
CALLS = "Longest script calls"

OURS = "scrapy-prioqueue"
PLAIN = "plain commands"

LIMITS = Policy(slots={EVERY: SlotLimit(delay=1e-5, concurrency=1000, burst=1000)})
BUDGETS = Policy(budgets={EVERY: Budget(pages=10**9, renders=10**9, bytes=10**15, seconds=1e9)})
WEIGHTS = Policy(weights=(8, 4, 2, 1))
ALL = Policy(
    slots=LIMITS.slots,
    weights=WEIGHTS.weights,
    budgets=BUDGETS.budgets,
    high_water=10**9,
    low_water=10**8,
    discovery=(3,),
)

POLICIES = {"limits": LIMITS, "budgets": BUDGETS, "weights": WEIGHTS, "all policies": ALL}


def requests(count: int, slots: int) -> Sequence[Push]:
    """Return requests of four tiers, some priorities and that many slots."""
    made = []
    for number in range(count):
        slot = f"www.site-{number % slots}.example"
        url = f"https://{slot}/section-{number % 97}/an-ordinary-page-of-the-site-{number:012d}.html".encode()
        rank = rank_of(number % 4, number % 11 - 5)
        made.append(Push(rank, slot, PAYLOAD % url, sha1(url).digest()))
    return made


def with_budgets(pushes: Sequence[Push]) -> Sequence[Push]:
    """Return the same requests with the name of their slot as budget key."""
    return [replace(push, payload=labelled(push.payload, Label(False, [push.slot]))) for push in pushes]


@dataclass(frozen=True, slots=True)
class Spent:
    """What a phase took, or one request of it.

    Args:
        wall_s: seconds.
        client_s: seconds of processor time of this process.
        server_s: seconds of processor time of the Redis server.
        memory_b: bytes by which the server's data has grown.
    """

    wall_s: float
    client_s: float
    server_s: float
    memory_b: float

    def __add__(self, other: Spent) -> Spent:
        return Spent(*(mine + its for mine, its in zip(astuple(self), astuple(other), strict=True)))


class Ours:
    """A worker on a `RedisFrontier`, with batches and leases as the pump makes them.

    Args:
        lease: requests per lease.
    """

    def __init__(self, url: str, lease: int, policy: Policy = NO_POLICY) -> None:
        self._hand = Hand(url, "bench", policy=policy)
        self._lease = lease
        self._cost = None if policy.budgets is None else COST

    async def open(self) -> None:
        """Connect."""
        await self._hand.join()

    async def push(self, pushes: Sequence[Push]) -> None:
        """Store all requests, as many at a time as the pump sends at most."""
        await self._hand.send(pushes, BATCH_SIZE * MAX_BATCHES)

    async def drain(self) -> int:
        """Lease all requests and ack each lot with the exchange for the next; return how many were acked."""
        acks: Sequence[Ack] = ()
        while True:
            answer = await self._hand.exchange(acks, Demand(self._lease, is_idle=not acks))
            if not acks and not answer.leases:
                return answer.depth.done
            acks = [Ack(lease.lease_id, lease.attempt, spent=self._cost) for lease in answer.leases]

    async def close(self) -> None:
        """Disconnect."""
        await self._hand.close()


async def exchange_plainly(client: Redis, pushes: Iterable[Push], pops: int) -> Sequence[Any]:
    """Store requests in a sorted set and a set, and take so many out; return the replies."""
    pipeline = client.pipeline(transaction=False)
    for push in pushes:
        assert push.fingerprint is not None
        pipeline.sadd("seen", push.fingerprint)
        pipeline.zadd("queue", {push.payload: push.rank})
    for _ in range(pops):
        pipeline.zpopmin("queue")
    return await pipeline.execute()


class Plain:
    """One sorted set and one set."""

    def __init__(self, url: str, lease: int) -> None:
        self._client = Redis.from_url(url)
        self._lease = lease

    async def open(self) -> None:
        """Connect."""
        await self._client.ping()

    async def push(self, pushes: Sequence[Push]) -> None:
        """Store all requests, as many at a time as `Ours`."""
        remaining = iter(pushes)
        while piece := list(islice(remaining, BATCH_SIZE * MAX_BATCHES)):
            await exchange_plainly(self._client, piece, 0)

    async def drain(self) -> int:
        """Take all requests, as many at a time as `Ours`; return how many were there."""
        taken = 0
        while found := sum(map(bool, await exchange_plainly(self._client, (), self._lease))):
            taken += found
        return taken

    async def close(self) -> None:
        """Disconnect."""
        await self._client.aclose()


class Meter:
    """Measures phases: wall clock, both processors, the server's memory, and its slow script calls.

    Args:
        client: to the server.
    """

    def __init__(self, client: Redis) -> None:
        self._client = client
        self.slow_calls: list[tuple[str, float]] = []

    async def measure(self, phase: Awaitable[Any]) -> tuple[Any, Spent]:
        """Run a phase; return its result and what it took."""
        gc.collect()
        memory_before = await self._memory()
        before = await self._times()
        result = await phase
        after = await self._times()
        wall_s, client_s, server_s = (now - then for now, then in zip(after, before, strict=True))
        return result, Spent(wall_s, client_s, server_s, await self._memory() - memory_before)

    async def _times(self) -> Sequence[float]:
        info = await self._client.info("cpu")
        return time.perf_counter(), time.process_time(), info["used_cpu_user"] + info["used_cpu_sys"]

    async def _memory(self) -> float:
        """Empty the slow log, which takes memory, and return that of the data, without buffers of connections.

        The difference is `used_memory_dataset`, but Redis reports that without a sign: of an empty database it can be
        nearly 2**64.
        """
        await self._note_slow_calls()
        memory = await self._client.info("memory")
        return float(memory["used_memory"] - memory["used_memory_overhead"])

    async def _note_slow_calls(self) -> None:
        version = parse_version(str((await self._client.info("server"))["redis_version"]))
        names = {script.digest: name for name, script in scripts_for(version).items()}
        for entry in await self._client.slowlog_get(-1):
            words = entry["command"].split(b" ", 2)
            if words[0].upper() == b"EVALSHA":
                self.slow_calls.append((names[words[1].decode()], entry["duration"] / 1000))
        await self._client.slowlog_reset()


@dataclass(frozen=True, slots=True)
class Round:
    """What pushing and draining took.

    Args:
        push: all pushes.
        drain: all leases and acks.
        slow_calls: script calls that the server noted, as (name, milliseconds).
    """

    push: Spent
    drain: Spent
    slow_calls: Sequence[tuple[str, float]]


async def run_once(name: str, subject: Ours | Plain, url: str, pushes: Sequence[Push]) -> Round:
    """Push and drain all requests on an empty server.

    Raises:
        BenchmarkFailed: not all came out again.
    """
    client = Redis.from_url(url)
    await client.flushall()
    meter = Meter(client)
    try:
        await subject.open()
        _, pushing = await meter.measure(subject.push(pushes))
        done, draining = await meter.measure(subject.drain())
    finally:
        await subject.close()
        await client.aclose()
    if done != len(pushes):
        raise BenchmarkFailed(f"{name}: {done} of {len(pushes)} requests came out again")
    return Round(pushing, draining, meter.slow_calls)


async def run_rounds(url: str, options: argparse.Namespace) -> Mapping[str, Sequence[Round]]:
    """Run all in turns and return the rounds by name."""
    pushes = requests(options.requests, options.slots)
    budgeted = with_budgets(pushes)
    subjects: dict[str, tuple[Callable[[], Ours | Plain], Sequence[Push]]] = {
        OURS: (lambda: Ours(url, options.lease), pushes),
        PLAIN: (lambda: Plain(url, options.lease), pushes),
    }
    for name, policy in POLICIES.items():
        ours = partial(Ours, url, options.lease, policy)
        subjects[f"with {name}"] = (ours, pushes if policy.budgets is None else budgeted)
    rounds: dict[str, list[Round]] = {}
    for number in range(1, options.rounds + 1):
        for name, (subject, its_pushes) in subjects.items():
            found = await run_once(name, subject(), url, its_pushes)
            rounds.setdefault(name, []).append(found)
            speed = len(pushes) / (found.push + found.drain).wall_s
            print(f"round {number}  {name:18}  {speed:8.0f} requests/s", file=sys.stderr, flush=True)
    return rounds


def speed_table(rounds: Mapping[str, Sequence[Round]], count: int, note: str) -> Table:
    """Return requests per second, and microseconds of processor time per request."""
    rows: list[Sequence[Cell]] = []
    for name, runs in rounds.items():
        for phase, spent in _phases(runs).items():
            rows.append(
                [
                    f"{name}: {phase}",
                    Measured([count / one.wall_s for one in spent], 0),
                    Measured([one.server_s / count * 1e6 for one in spent], 1),
                    Measured([one.client_s / count * 1e6 for one in spent], 1),
                ]
            )
    rows.append(_ratio("ours to plain", rounds[OURS], rounds[PLAIN]))
    rows.extend(_ratio(f"with {name} to without", rounds[f"with {name}"], rounds[OURS]) for name in POLICIES)
    return Table(SPEED, ["", "requests/s", "Redis µs", "client µs"], rows, note)


def _ratio(name: str, ours: Sequence[Round], theirs: Sequence[Round]) -> Sequence[Cell]:
    pairs = [(mine.push + mine.drain, its.push + its.drain) for mine, its in zip(ours, theirs, strict=True)]
    return [
        f"{name}: ratio of all",
        Measured([its.wall_s / mine.wall_s for mine, its in pairs]),
        Measured([mine.server_s / its.server_s for mine, its in pairs]),
        Measured([mine.client_s / its.client_s for mine, its in pairs]),
    ]


def _phases(runs: Sequence[Round]) -> Mapping[str, Sequence[Spent]]:
    return {
        "push": [run.push for run in runs],
        "lease and ack": [run.drain for run in runs],
        "all": [run.push + run.drain for run in runs],
    }


def memory_table(rounds: Mapping[str, Sequence[Round]], count: int) -> Table:
    """Return bytes of the server's memory per pending request and per fingerprint."""
    rows: list[Sequence[Cell]] = [
        [
            name,
            Measured([-run.drain.memory_b / count for run in runs], 0),
            Measured([(run.push + run.drain).memory_b / count for run in runs], 1),
        ]
        for name, runs in rounds.items()
    ]
    return Table(MEMORY, ["", "bytes per pending request", "bytes per fingerprint"], rows)


def call_table(runs: Sequence[Round]) -> Table:
    """Return how long script calls take at worst."""
    names = sorted({name for run in runs for name, _ in run.slow_calls})
    rows: list[Sequence[Cell]] = []
    for name in names:
        by_round = [[ms for other, ms in run.slow_calls if other == name] for run in runs]
        worst = [max(times, default=0.0) for times in by_round]
        rows.append([name, Measured(worst, 1), sum(ms > SLOW_MS for times in by_round for ms in times)])
    return Table(CALLS, ["script", "longest call, ms", f"calls over {SLOW_MS:g} ms, all rounds"], rows)


OPTIONS = (
    Option("--requests", 100_000, "how many are pushed, leased and acked", quick=10_000),
    Option("--rounds", 5, "how often", quick=1),
    Option("--lease", 16, "requests per lease, whose acks go with the next one"),
    Option("--slots", 20, "hosts that the requests belong to"),
)


def run_benchmark(options: argparse.Namespace) -> None:
    """Start a server, run the rounds and print the report."""
    with workplace(slowlog_log_slower_than=int(NOTED_MS * 1000), slowlog_max_len=100_000) as (_, server):
        report = Report.begin("frontier", options, server)
        sample = requests(1, 1)[0]
        note = (
            f"{options.requests} requests of {len(sample.payload)} bytes in {options.slots} slots;"
            f" {BATCH_SIZE * MAX_BATCHES} pushes or {options.lease} leases per round trip. µs are processor time per"
            " request."
            " Policies: a delay, concurrency and burst for every slot, weights 8/4/2/1,"
            " caps of all four kinds for a budget key per slot, water marks."
        )
        rounds = asyncio.run(run_rounds(server.url, options))
        report.add(speed_table(rounds, options.requests, note))
        if not options.quick:
            # What so few requests take is lost in what tables of fingerprints grow by at a time.
            report.add(memory_table(rounds, options.requests))
        report.add(call_table([run for name, runs in rounds.items() if name != PLAIN for run in runs]))


if __name__ == "__main__":
    sys.exit(run_from_command_line(run_benchmark, __doc__, *OPTIONS))
