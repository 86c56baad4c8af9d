"""How the benchmarks print: Markdown tables, and on what they were measured."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from collections.abc import Sequence
from pathlib import Path

import redis
from redis_server import RedisServer

PACKAGES = ("scrapy", "twisted", "redis", "hiredis", "msgpack", "scrapy-redis")


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table, aligned: the first column to the left, numbers to the right."""
    widths = [max(map(len, cells)) for cells in zip(columns, *rows, strict=True)]
    rule = [":" + "-" * (widths[0] - 1), *("-" * (width - 1) + ":" for width in widths[1:])]

    def line(cells: Sequence[str]) -> str:
        first, *others = zip(cells, widths, strict=True)
        padded = [first[0].ljust(first[1]), *(cell.rjust(width) for cell, width in others)]
        return f"| {' | '.join(padded)} |"

    return "\n".join(line(cells) for cells in (columns, rule, *rows))


def machine() -> str:
    """Return a line on the machine, and how busy it is."""
    load = ", ".join(f"{load:.1f}" for load in os.getloadavg())
    return (
        f"Machine: {os.cpu_count()} × {_processor()}, {platform.system()} {platform.release()};"
        f" load average at the start {load}."
    )


def versions(server: RedisServer) -> str:
    """Return a line on the versions of what takes part."""
    with redis.Redis.from_url(server.url, socket_timeout=10) as client:
        redis_version = client.info("server")["redis_version"]
    packages = ", ".join(f"{name} {version}" for name in PACKAGES if (version := _version(name)))
    return f"Versions: Python {platform.python_version()}, Redis server {redis_version}, {packages}."


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())
