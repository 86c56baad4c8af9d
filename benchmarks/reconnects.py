"""Measure how a thousand workers come back to a Redis server that was killed and started again.

The clients have the connections of workers and their waits between two attempts, but no requests.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import redis
from processes import LINE_WITHIN_S, BenchmarkFailed, beside, line_of, wait_until
from program import Option, processor_s, run_from_command_line, workplace
from redis_server import RedisServer
from results import Cell, Measured, Report, Table

PROCESSES = 2
SAMPLES_PER_S = 20

TITLE = "Reconnects after a restart of the server"


@dataclass(frozen=True, slots=True)
class Run:
    """What the server and its clients saw.

    Args:
        per_s: most connections that were made within a second.
        back_s: seconds until a client was served again, in order.
        connections: that were made in all.
        scripts: that were loaded, some of them again and again.
        redis_s: seconds of processor time of the server.
    """

    per_s: float
    back_s: Sequence[float]
    connections: int
    scripts: int
    redis_s: float


def run(workers: int, down_s: float, after_s: float) -> Run:
    """Kill and start a server that has so many workers."""
    pause = threading.Event()
    with workplace(appendonly=True, maxclients=10_000) as (_, server), ExitStack() as stack:
        share = workers // PROCESSES
        # Without the clients' log of the outage.
        processes = [
            stack.enter_context(beside("reconnect_worker.py", server.url, share, workers, logs=False))
            for _ in range(PROCESSES)
        ]
        for process in processes:
            line_of(process)
        # All have the connections for their records, too.
        with redis.Redis.from_url(server.url) as client:
            _wait_for_clients(client, 3 * share * PROCESSES)
        server.kill()
        pause.wait(down_s)
        server.start()
        began_s = time.monotonic()
        made = list(_connections(server, began_s + after_s))
        with redis.Redis.from_url(server.url) as client:
            stats: Mapping[str, Any] = client.info("commandstats")
            redis_s = processor_s(client)
        back_s: list[float] = []
        for process in processes:
            assert process.stdin is not None
            process.stdin.close()
            back_s += (at_s - began_s for at_s in json.loads(line_of(process)))
    loads = stats.get("cmdstat_script|load", {}).get("calls", 0)
    per_s = [later - made[at] for at, later in enumerate(made[SAMPLES_PER_S:])]
    return Run(max(per_s), sorted(back_s), made[-1], loads, redis_s)


def _wait_for_clients(client: redis.Redis, wanted: int) -> None:
    wait_until(
        lambda: client.info("clients")["connected_clients"] >= wanted,
        what=f"{wanted} connections",
        within_s=LINE_WITHIN_S,
    )


def _connections(server: RedisServer, until_s: float) -> Iterator[int]:
    """Yield how many connections were made so far, at equal intervals."""
    pause = threading.Event()
    with redis.Redis.from_url(server.url, socket_timeout=LINE_WITHIN_S) as client:
        at_s = time.monotonic()
        while at_s < until_s:
            yield client.info("stats")["total_connections_received"]
            at_s += 1 / SAMPLES_PER_S
            pause.wait(max(0.0, at_s - time.monotonic()))


def table_of(runs: Mapping[int, Sequence[Run]], down_s: float) -> Table:
    """Return what came out, by number of workers."""
    columns = ["workers", "connections", "at most in a second", "half are back, s", "all are back, s"]
    columns += ["scripts loaded", "Redis s"]
    rows: list[Sequence[Cell]] = [
        [
            workers,
            Measured([run.connections for run in found], 0),
            Measured([run.per_s for run in found], 0),
            Measured([run.back_s[len(run.back_s) // 2] for run in found], 1),
            Measured([run.back_s[-1] for run in found], 1),
            Measured([run.scripts for run in found], 0),
            Measured([run.redis_s for run in found], 2),
        ]
        for workers, found in runs.items()
    ]
    note = (
        f"The server was killed with SIGKILL and was away for {down_s:g} s. Each worker has three connections: for its"
        " exchanges, its bell and its records. Redis s is its processor time until a while after all were back,"
        f" with {PROCESSES} processes for all workers on the same machine."
    )
    return Table(TITLE, columns, rows, note)


def benchmark(options: argparse.Namespace) -> None:
    """Run as the command line says."""
    with workplace() as (_, server):
        report = Report.begin("reconnects", options, server)
    runs: dict[int, list[Run]] = {}
    for number in range(1, options.rounds + 1):
        for workers in options.workers:
            found = run(workers, options.down, options.after)
            if not found.back_s:
                raise BenchmarkFailed("no client has noticed the outage")
            runs.setdefault(workers, []).append(found)
            text = f"round {number}  {workers:5} workers  {found.per_s:5.0f} connections/s at most"
            print(f"{text}  all back after {found.back_s[-1]:.1f} s", file=sys.stderr, flush=True)
    report.add(table_of(runs, options.down))


def main() -> int:
    """Run from the command line."""
    return run_from_command_line(
        benchmark,
        __doc__,
        Option("--workers", [250, 1000], "numbers of workers", quick=[100]),
        Option("--rounds", 3, "how often each is measured", quick=1),
        Option("--down", 10.0, "seconds for which the server is away", quick=3.0),
        Option("--after", 20.0, "seconds after the start that are watched", quick=10.0),
    )


if __name__ == "__main__":
    sys.exit(main())
