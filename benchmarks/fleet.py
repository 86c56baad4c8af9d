"""Measure a fleet of up to 50 simulated workers on one Redis: requests per second, Redis's time, exchanges.

The workers are the real pump on the real frontier and download nothing; every page brings one new request. Once pages
take as long as on a busy crawl, so that one sees what workers see; once they take no time, until nothing goes faster,
in turns with as many clients that do the least with the same payloads: `SADD`, `ZADD` and `ZPOPMIN`, pipelined.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import redis
from fleet_worker import CONCURRENCY, SLOTS, Done
from processes import LINE_WITHIN_S, BenchmarkFailed, beside, line_of
from program import Option, processor_s, run_from_command_line, workplace
from redis_server import RedisServer
from results import Cell, Measured, Report, Table

PROCESSES = 2
"""The most processes that a fleet is spread over: more than the machine has cores would only take turns."""

WARM_UP_S = 1.0

OURS, PLAIN, PACED = "scrapy-prioqueue", "plain commands", "pages that take time"

PRIORITIES = 11
VARIED = f"scrapy-prioqueue, {PRIORITIES} priorities"
VARIED_WORKERS = 10
"""The fleet that is also measured with requests of several priorities, which are exchanged for better ones."""

SPEED = "Requests per second, pages that take no time"
SIGHT = "What workers see, pages that take time"


@dataclass(frozen=True, slots=True)
class Run:
    """What a fleet did in a while.

    Args:
        seconds: its length.
        redis_s: seconds of processor time of the server.
        done: by its processes.
    """

    seconds: float
    redis_s: float
    done: Sequence[Done]

    @property
    def requests(self) -> int:
        """Pushed, taken and done."""
        return sum(one.requests for one in self.done)

    @property
    def per_s(self) -> float:
        """Requests per second."""
        return self.requests / self.seconds

    @property
    def redis_us(self) -> float:
        """Microseconds of the server per request."""
        return self.redis_s / self.requests * 1e6

    @property
    def redis_share(self) -> float:
        """Per cent of the time that the server was at work."""
        return self.redis_s / self.seconds * 100

    @property
    def client_us(self) -> float:
        """Microseconds of all workers' processes per request."""
        return sum(one.cpu_s for one in self.done) / self.requests * 1e6

    @property
    def per_exchange(self) -> float:
        """Requests per round trip."""
        return self.requests / max(1, sum(one.exchanges for one in self.done))

    def exchange_ms(self, share: float) -> float | None:
        """Return how long so many of all round trips took at most; None if there were too few to tell."""
        times = sorted(ms for one in self.done for ms in one.exchange_ms)
        return times[int(share * len(times))] if (1 - share) * len(times) > 1 else None


def split(workers: int, processes: int) -> Sequence[int]:
    """Return how many workers each process has, none of them without any."""
    share, more = divmod(workers, processes)
    return [count for number in range(processes) if (count := share + (number < more))]


def run_fleet(
    server: RedisServer,
    workers: int,
    words: Sequence[str],
    seconds: float,
    look: Callable[[redis.Redis], None] = lambda _: None,
) -> Run:
    """Run a fleet on an empty server for so long.

    Args:
        look: called when the time begins and when it ends.

    Raises:
        BenchmarkFailed: a process ended, or did nothing.
    """
    pause = threading.Event()
    with redis.Redis.from_url(server.url, socket_timeout=30) as client, ExitStack() as stack:
        client.flushall()
        processes = [
            stack.enter_context(beside("fleet_worker.py", server.url, number, count, *words))
            for number, count in enumerate(split(workers, PROCESSES))
        ]
        for process in processes:
            if line_of(process) != "ready\n":
                raise BenchmarkFailed("a process of the fleet did not start")
        begin_s = time.monotonic() + WARM_UP_S
        for process in processes:
            assert process.stdin is not None
            process.stdin.write(f"{begin_s} {begin_s + seconds}\n")
            process.stdin.flush()
        pause.wait(begin_s - time.monotonic())
        before_s, began_s = processor_s(client), time.monotonic()
        look(client)
        pause.wait(begin_s + seconds - time.monotonic())
        look(client)
        redis_s, length_s = processor_s(client) - before_s, time.monotonic() - began_s
        lines = [line_of(process) for process in processes]
        for process in processes:
            process.wait(LINE_WITHIN_S)
    run = Run(length_s, redis_s, [Done(**json.loads(line)) for line in lines])
    if not run.requests:
        raise BenchmarkFailed("the fleet did nothing")
    return run


Runs = Mapping[str, Mapping[int, Sequence[Run]]]
"""By kind and number of workers, one by round."""


def measure(server: RedisServer, options: argparse.Namespace) -> Runs:
    """Run all rounds in turns."""
    kinds = {
        OURS: (),
        VARIED: ("--priorities", str(PRIORITIES)),
        PLAIN: ("--plain", str(CONCURRENCY)),
        PACED: ("--page-s", str(options.page_s)),
    }
    runs: dict[str, dict[int, list[Run]]] = {name: {} for name in kinds}
    for number in range(1, options.rounds + 1):
        for workers in options.workers:
            for name, words in kinds.items():
                if name == VARIED and workers != VARIED_WORKERS:
                    continue
                run = run_fleet(server, workers, words, options.seconds)
                runs[name].setdefault(workers, []).append(run)
                text = f"round {number}  {workers:3} workers  {name:31}  {run.per_s:7.0f} requests/s"
                print(f"{text}  Redis {run.redis_us:6.1f} µs", file=sys.stderr, flush=True)
    return runs


def speed_table(runs: Runs, seconds: float) -> Table:
    """Return how fast fleets are beside as many clients with plain commands."""
    columns = ["", "workers", "requests/s", "of plain, %", "Redis µs", "Redis busy, %", "workers µs", "per round trip"]
    rows: list[Sequence[Cell]] = []
    for name in (OURS, VARIED, PLAIN):
        for workers, found in runs[name].items():
            pairs = zip(found, runs[PLAIN][workers], strict=True)
            share = Measured([mine.per_s / its.per_s * 100 for mine, its in pairs], 0) if name != PLAIN else None
            rows.append(
                [
                    name,
                    workers,
                    Measured([run.per_s for run in found], 0),
                    share,
                    Measured([run.redis_us for run in found], 1),
                    Measured([run.redis_share for run in found], 0),
                    Measured([run.client_us for run in found], 0),
                    Measured([run.per_exchange for run in found], 1),
                ]
            )
    note = (
        f"Each row was measured for {seconds:g} s, with the workers spread over at most {PROCESSES} processes."
        " With scrapy-prioqueue a request is pushed, leased and acked;"
        f" with plain commands it is added to a set and a sorted set and popped, {CONCURRENCY} requests per pipeline."
        f" There are {SLOTS} slots and one tier, and one priority except in the row with 11."
        " Redis µs and workers µs are processor time per request; per round trip is the number of requests in one."
    )
    return Table(SPEED, columns, rows, note)


def sight_table(runs: Runs, page_s: float) -> Table:
    """Return what workers see at the rate of a busy crawl."""
    columns = ["workers", "requests/s", "of their places, %", "Redis µs", "Redis busy, %", "p50, ms", "p99, ms"]
    columns.append("per exchange")
    rows: list[Sequence[Cell]] = [
        [
            workers,
            Measured([run.per_s for run in found], 0),
            Measured([run.per_s * page_s / CONCURRENCY / workers * 100 for run in found], 0),
            Measured([run.redis_us for run in found], 1),
            Measured([run.redis_share for run in found], 0),
            *_quantiles(found),
            Measured([run.per_exchange for run in found], 1),
        ]
        for workers, found in runs[PACED].items()
    ]
    note = (
        f"Pages take {page_s * 1000:g} ms on average, {CONCURRENCY} at a time per worker."
        " Of their places is the share of the time in which a place has a page."
        " p50 and p99 are the times of an exchange as a worker sees it: the round trip, and the time that it waits"
        " at the server and in its process, which has many workers. Per exchange is the number of requests in one."
    )
    return Table(SIGHT, columns, rows, note)


def _quantiles(found: Sequence[Run]) -> Sequence[Cell]:
    by_share = [[run.exchange_ms(share) for run in found] for share in (0.5, 0.99)]
    known = [[ms for ms in each if ms is not None] for each in by_share]
    return [Measured(each, 1) if each else None for each in known]


OPTIONS = (
    Option("--workers", [1, 2, 5, 10, 25, 50], "sizes of the fleet", quick=[1, 10]),
    Option("--seconds", 5.0, "for which each fleet is measured", quick=1.0),
    Option("--page-s", 0.1, "seconds that a page takes, where it takes any"),
    Option("--rounds", 3, "how often", quick=1),
)


def run_benchmark(options: argparse.Namespace) -> None:
    """Start a server, run the fleets and print the report."""
    with workplace() as (_, server):
        report = Report.begin("fleet", options, server)
        runs = measure(server, options)
        report.add(speed_table(runs, options.seconds), sight_table(runs, options.page_s))


if __name__ == "__main__":
    sys.exit(run_from_command_line(run_benchmark, __doc__, *OPTIONS))
