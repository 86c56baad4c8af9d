"""Measure what a pending request takes in Redis, ours beside scrapy-redis, on every Redis server of this machine."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import redis
from contenders import NEAR, contenders, has_scrapy_redis
from crawled import COMMON_SETTINGS
from pending_crawl import MIXED, PLAIN
from program import run_as_program, workplace
from redis_server import BINARY_VARIABLE, available_redis_servers, find_redis_server
from results import Cell, Measured, Report, Table, add_options
from served import HERE, BenchmarkFailed
from sizing import PENDING

OURS, THEIRS = "scrapy-prioqueue", "scrapy-redis"
SCRAPY_REDIS_NEAR = "scrapy-redis, near"
WITHIN_S = 600.0

KINDS = {PLAIN: "", MIXED: ", with referers and arguments"}


def bytes_per_request(url: str, kind: str, settings: Mapping[str, Any], options: argparse.Namespace) -> float:
    """Fill an empty server and return what each request takes.

    Raises:
        BenchmarkFailed: it didn't come to its end.
    """
    with redis.Redis.from_url(url, socket_timeout=10) as client:
        client.flushall()
    words = json.dumps({**COMMON_SETTINGS, "LOGSTATS_INTERVAL": 0, "SCHEDULER_PERSIST": True, **settings})
    numbers = ["--requests", str(options.requests), "--hosts", str(options.hosts)]
    ended = subprocess.run(
        [sys.executable, HERE / "pending_crawl.py", kind, url, *numbers, "--settings", words],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=WITHIN_S,
        check=False,
    )
    if ended.returncode:
        raise BenchmarkFailed(ended.stderr)
    return float(json.loads(ended.stdout)["bytes"])


def measure(binary: Path, versions: set[str], options: argparse.Namespace) -> Iterator[Sequence[Cell]]:
    """Yield the rows of one server, none if its version is among those that were measured already."""
    with workplace(binary=binary) as (_, server):
        with redis.Redis.from_url(server.url, socket_timeout=10) as client:
            version = str(client.info("server")["redis_version"])
        if version in versions:
            return
        versions.add(version)
        settings = {one.name: one.settings for one in contenders(server.url, server.url, "")}
        found: dict[tuple[str, str], list[float]] = {}
        for number in range(1, options.rounds + 1):
            for kind in KINDS:
                for name, contender in ((THEIRS, SCRAPY_REDIS_NEAR), (OURS, NEAR)):
                    if contender not in settings:
                        continue
                    size_b = bytes_per_request(server.url, kind, settings[contender], options)
                    found.setdefault((name, kind), []).append(size_b)
                    print(
                        f"round {number}  {version}  {name}{KINDS[kind]}  {size_b:.0f} B", file=sys.stderr, flush=True
                    )
    for (name, kind), sizes in sorted(found.items(), key=lambda one: (one[0][1] == MIXED, one[0][0])):
        theirs = found.get((THEIRS, kind), [])
        ratio = Measured([mine / its for mine, its in zip(sizes, theirs, strict=False)])
        yield [name + KINDS[kind], version, Measured(sizes, 0), ratio]


def parse_options() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--requests", type=int, default=100_000, help="that are stored")
    parser.add_argument("--hosts", type=int, default=20, help="that the requests go to in turn")
    parser.add_argument("--rounds", type=int, default=3, help="how often")
    add_options(parser)
    options = parser.parse_args()
    if options.quick:
        options.requests, options.rounds = 5000, 1
    return options


def run_benchmark(options: argparse.Namespace) -> None:
    """Measure on all servers, one if a binary is named or in the short form, and print the table."""
    only_one = options.quick or BINARY_VARIABLE in os.environ
    servers = [find_redis_server()] if only_one else available_redis_servers()
    with workplace() as (_, server):
        report = Report.begin("pending", options, server)
    versions: set[str] = set()
    rows = [row for binary in servers for row in measure(binary, versions, options)]
    note = (
        f"{options.requests:,} requests on {options.hosts} hosts, stored by Scrapy's engine without filtering:"
        " URLs of 80 characters, depth and callback;"
        " half of those of the second kind have a referer and a fifth have `cb_kwargs`."
        " All of the server's memory, keys included."
    )
    report.add(Table(PENDING, ["", "Redis server", "bytes per request", "ratio to scrapy-redis"], rows, note))
    if not has_scrapy_redis():
        print("scrapy-redis is not installed (pip install 'scrapy-prioqueue[bench]') and so not in the table.")


if __name__ == "__main__":
    sys.exit(run_as_program(lambda: run_benchmark(parse_options())))
