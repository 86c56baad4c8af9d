"""What a benchmark has found: tables of raw samples, printed as Markdown and kept as JSON for the page and plots."""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import redis
from redis_server import RedisServer

PACKAGES = ("scrapy", "twisted", "redis", "hiredis", "msgpack", "scrapy-redis")


@dataclass(frozen=True, slots=True)
class Measured:
    """A cell of several samples, which prints as their median and, if there are several, lowest and highest.

    Args:
        values: the samples, in the order in which they were taken; none prints as "-".
        digits: behind the point.
    """

    values: Sequence[float]
    digits: int = 2

    def __str__(self) -> str:
        if not self.values:
            return "-"
        median = f"{statistics.median(self.values):.{self.digits}f}"
        if len(self.values) == 1:
            return median
        return f"{median} ({min(self.values):.{self.digits}f} to {max(self.values):.{self.digits}f})"


Cell = str | int | float | Measured | None
"""What a table holds; None prints as "-"."""


@dataclass(frozen=True, slots=True)
class Table:
    """One table of a benchmark.

    Args:
        title: one line, unique within the benchmark; the page's template asks for the table by it.
        columns: headings, with units; the first column says what a row is about.
        rows: cells, as many as there are columns.
        note: sentences that belong below it: what was held equal, what a column means.
    """

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    note: str = ""

    def column(self, name: str) -> Sequence[Cell]:
        """Return the cells below a heading.

        Raises:
            ValueError: there is none of that name.
        """
        index = list(self.columns).index(name)
        return [row[index] for row in self.rows]

    def markdown(self) -> str:
        """Return the table and its note, without the title."""
        text = markdown(self.columns, [[_printed(cell) for cell in row] for row in self.rows])
        return f"{text}\n\n{self.note}" if self.note else text

    def __str__(self) -> str:
        return f"{self.title}\n\n{self.markdown()}"


@dataclass(slots=True)
class Results:
    """All tables of one run of a benchmark, and on what they were measured.

    Args:
        benchmark: name of the program, without ``.py``.
        is_quick: it was the short form, whose numbers are rough.
        machine: processor, system and load.
        versions: of Python, the server and the packages.
        measured_on: day, as ``YYYY-MM-DD``.
    """

    benchmark: str
    is_quick: bool
    machine: str
    versions: str
    measured_on: str
    tables: list[Table] = field(default_factory=list)

    def table(self, title: str) -> Table:
        """Return a table by its title.

        Raises:
            KeyError: there is none.
        """
        for found in self.tables:
            if found.title == title:
                return found
        raise KeyError(f"{self.benchmark} has no table {title!r}")

    def write(self, path: Path) -> None:
        """Write them as JSON; what was there is replaced at once, so that no half of a file is ever seen."""
        words = {
            "benchmark": self.benchmark,
            "quick": self.is_quick,
            "machine": self.machine,
            "versions": self.versions,
            "measured_on": self.measured_on,
            "tables": [_encoded(one) for one in self.tables],
        }
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(".partial")
        partial.write_text(_dumped(words))
        partial.replace(path)

    @classmethod
    def read(cls, path: Path) -> Results:
        """Read what `write` has written."""
        words = json.loads(path.read_text())
        tables = [_decoded(one) for one in words["tables"]]
        return cls(
            words["benchmark"], words["quick"], words["machine"], words["versions"], words["measured_on"], tables
        )


class Report:
    """Prints a benchmark's tables as they come, and keeps them.

    Args:
        results: where they are kept.
        path: of the JSON file, None for none.
    """

    def __init__(self, results: Results, path: Path | None) -> None:
        self.results = results
        self._path = path

    @classmethod
    def begin(cls, benchmark: str, options: argparse.Namespace, server: RedisServer) -> Report:
        """Print on what is measured.

        Args:
            options: with those that all benchmarks have.
        """
        today = datetime.now(timezone.utc).date().isoformat()
        results = Results(benchmark, options.quick, machine(), versions(server), today)
        print(f"{results.machine}\n{results.versions}\n", flush=True)
        return cls(results, options.json)

    def add(self, *tables: Table) -> None:
        """Print and keep tables; the file is written anew each time, so that a run that breaks off leaves something."""
        for one in tables:
            print(f"{one}\n", flush=True)
            self.results.tables.append(one)
        if self._path is not None:
            self.results.write(self._path)


def _printed(cell: Cell) -> str:
    return "-" if cell is None else str(cell)


def _encoded(one: Table) -> dict[str, Any]:
    rows = [[_encoded_cell(cell) for cell in row] for row in one.rows]
    return {"title": one.title, "columns": list(one.columns), "rows": rows, "note": one.note}


def _encoded_cell(cell: Cell) -> Any:
    if not isinstance(cell, Measured):
        return cell
    # Two digits more than are printed: enough for ratios and plots, and the files stay small.
    return {"values": [round(value, cell.digits + 2) for value in cell.values], "digits": cell.digits}


def _decoded(words: dict[str, Any]) -> Table:
    rows = [[_decoded_cell(cell) for cell in row] for row in words["rows"]]
    return Table(words["title"], words["columns"], rows, words["note"])


def _decoded_cell(cell: Any) -> Cell:
    return Measured(cell["values"], cell["digits"]) if isinstance(cell, dict) else cell


def _dumped(words: dict[str, Any]) -> str:
    """Return JSON with a row per line, which a reader of a diff can follow."""
    tables = words.pop("tables")
    head = json.dumps(words, indent=1, ensure_ascii=False)[:-2]
    parts = []
    for one in tables:
        rows = ",\n   ".join(json.dumps(row, ensure_ascii=False) for row in one.pop("rows"))
        parts.append(json.dumps(one, ensure_ascii=False)[:-1] + f', "rows": [\n   {rows}\n  ]}}')
    return f'{head},\n "tables": [\n  ' + ",\n  ".join(parts) + "\n ]\n}\n"


def markdown(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
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
