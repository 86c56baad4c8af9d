"""Measure what a page costs the server by rate per worker, by number of workers and by what the server does with it.

The workers are those of ``fleet.py``, whose pages take half a second. Each page brings one new request. Processor time,
bytes of the network, of the append-only file and of replicas are read from `INFO`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import redis
from fleet import Run, run_fleet
from processes import wait_until
from program import Option, run_from_command_line, workplace
from redis_server import HOST, RedisServer
from results import Cell, Measured, Report, Table

BY_FLEET = "A page by fleet"
BY_OPTION = "A page by option"

PAGE_S = 0.5

FLEETS = ((10, 100), (25, 40), (100, 10), (250, 2), (10, 10))
"""Workers, and pages per second of each."""

USUAL = (10, 100)
"""The fleet with which options are measured."""

EXAMPLE = (25, 40)
"""The fleet from which the guide works out its example."""

EVERY_SECOND, REPLICA = "`appendfsync everysec`", "a replica"

BUSY = 50
"""Workers that keep the server busy all the time."""

KNOWN = 9
"""Known requests on a page, where there are any."""

SYNC_WITHIN_S = 30.0


@dataclass(frozen=True, slots=True)
class Setup:
    """How a fleet is measured.

    Args:
        name: in the table.
        config: directives of the server.
        words: further arguments of the workers.
        has_replica: the server has one.
        workers: how many.
        rate: pages per second of each, None for as many as possible.
    """

    name: str
    config: Mapping[str, Any] = field(default_factory=dict)
    words: Sequence[str] = ()
    has_replica: bool = False
    workers: int = USUAL[0]
    rate: int | None = USUAL[1]

    @property
    def arguments(self) -> Sequence[str]:
        """Of ``fleet_worker.py``."""
        paced = () if self.rate is None else ("--page-s", str(PAGE_S), "--places", str(round(self.rate * PAGE_S)))
        return [*paced, *self.words]


IN_MEMORY = "nothing on disk"
SETUPS = (
    Setup(IN_MEMORY),
    Setup(EVERY_SECOND, {"appendonly": True, "appendfsync": "everysec"}),
    Setup("`appendfsync always`", {"appendonly": True, "appendfsync": "always"}),
    Setup(REPLICA, has_replica=True),
    Setup("a replica, `PRIOQUEUE_WAIT_REPLICAS = 1`", words=("--wait-replicas", "1"), has_replica=True),
    Setup(f"{KNOWN} known links on each page", words=("--known", str(KNOWN))),
    Setup(f"{BUSY} workers, pages without delay", workers=BUSY, rate=None),
    Setup("the same, `io-threads 2`", {"io_threads": 2, "io_threads_do_reads": True}, workers=BUSY, rate=None),
)


@dataclass(frozen=True, slots=True)
class Sample:
    """What a fleet's pages took.

    Args:
        run: of the fleet.
        info: by which the figures of `INFO` have grown.
    """

    run: Run
    info: Mapping[str, float]

    def per_page(self, name: str) -> float:
        """Return by how much a figure has grown with each page."""
        return self.info.get(name, 0.0) / self.run.requests


COUNTERS = (
    "total_net_input_bytes",
    "total_net_output_bytes",
    "master_repl_offset",
    "aof_current_size",
    "total_commands_processed",
)


def figures(client: redis.Redis) -> Mapping[str, float]:
    """Return counters of a server, and the processor time of its main thread."""
    info: Any = client.info("all")
    main = info.get("used_cpu_user_main_thread", 0.0) + info.get("used_cpu_sys_main_thread", 0.0)
    return {"main_s": main, **{name: float(info.get(name, 0)) for name in COUNTERS}}


@contextmanager
def serving(directory: Path, setup: Setup) -> Iterator[RedisServer]:
    """Yield a server, with its replica if it has one."""
    with ExitStack() as stack:
        server = stack.enter_context(
            RedisServer(directory / "redis", auto_aof_rewrite_percentage=0, repl_diskless_sync_delay=0, **setup.config)
        )
        if setup.has_replica:
            stack.enter_context(RedisServer(directory / "replica", replicaof=f"{HOST} {server.port}"))
            with redis.Redis.from_url(server.url) as client:
                wait_until(lambda: client.wait(1, 100), what="the replica follows", within_s=SYNC_WITHIN_S)
        yield server


def measure(directory: Path, setup: Setup, seconds: float) -> Sample:
    """Run a fleet for so long on its own server."""
    with serving(directory, setup) as server:
        seen: list[Mapping[str, float]] = []

        def look(client: redis.Redis) -> None:
            seen.append(figures(client))

        run = run_fleet(server, setup.workers, setup.arguments, seconds, look)
        before, after = seen
        return Sample(run, {name: after[name] - before[name] for name in before})


def fleet_row(setup: Setup, found: Sequence[Sample]) -> Sequence[Cell]:
    """Return what a page costs with a fleet."""
    return [
        setup.workers,
        setup.rate,
        Measured([one.run.per_s for one in found], 0),
        Measured([one.run.per_exchange for one in found], 1),
        Measured([one.run.redis_us for one in found], 0),
        Measured([one.per_page("total_net_input_bytes") for one in found], 0),
        Measured([one.per_page("total_net_output_bytes") for one in found], 0),
    ]


def option_row(setup: Setup, found: Sequence[Sample]) -> Sequence[Cell]:
    """Return what a page costs with an option."""
    return [
        setup.name,
        Measured([one.run.per_s for one in found], 0),
        Measured([one.run.redis_us for one in found], 0),
        Measured([one.per_page("main_s") * 1e6 for one in found], 0),
        Measured([one.per_page("total_net_input_bytes") for one in found], 0),
        Measured([one.per_page("total_net_output_bytes") for one in found], 0),
        Measured([one.per_page("aof_current_size") for one in found], 0) if setup.config.get("appendonly") else None,
        Measured([one.per_page("master_repl_offset") for one in found], 0) if setup.has_replica else None,
    ]


def tables(found: Mapping[str, Sequence[Sample]], fleets: Sequence[Setup]) -> Sequence[Table]:
    """Return both tables."""
    columns = ["workers", "pages/s each", "pages/s", "pages per exchange", "Redis µs"]
    network = ["bytes in", "bytes out"]
    by_fleet = [fleet_row(setup, found[setup.name]) for setup in fleets]
    by_option = [option_row(setup, found[setup.name]) for setup in SETUPS]
    note = (
        "Per page: processor time of the server, and bytes that it receives and sends; each page takes"
        f" {PAGE_S:g} s on average and brings one new request of 104 bytes, its fingerprint included."
        " Where pages/s are fewer than workers × pages/s each, the workers' processes had no more processor time."
    )
    return [
        Table(BY_FLEET, [*columns, *network], by_fleet, note),
        Table(
            BY_OPTION,
            ["", "pages/s", "Redis µs", "main thread µs", *network, "append-only file", "to each replica"],
            by_option,
            f"Per page, with {USUAL[0]} workers of {USUAL[1]} pages/s each unless a row says otherwise. Bytes out are"
            " those to workers and replicas; some versions of Redis don't count the latter.",
        ),
    ]


OPTIONS = (
    Option("--seconds", 5.0, "for which each fleet is measured", quick=1.0),
    Option("--rounds", 3, "how often", quick=1),
)


def run_benchmark(options: argparse.Namespace) -> None:
    """Measure all in turns and print the report."""
    fleets = [Setup(f"{workers} x {rate}", workers=workers, rate=rate) for workers, rate in FLEETS]
    setups = [*fleets, *SETUPS]
    found: dict[str, list[Sample]] = {}
    with workplace() as (directory, server):
        report = Report.begin("traffic", options, server)
        for number in range(1, options.rounds + 1):
            for index, setup in enumerate(setups):
                sample = measure(directory / f"{number}-{index}", setup, options.seconds)
                found.setdefault(setup.name, []).append(sample)
                text = f"round {number}  {setup.name:45}  {sample.run.per_s:7.0f} pages/s"
                print(f"{text}  Redis {sample.run.redis_us:6.1f} µs", file=sys.stderr, flush=True)
        report.add(*tables(found, fleets))


if __name__ == "__main__":
    sys.exit(run_from_command_line(run_benchmark, __doc__, *OPTIONS))
