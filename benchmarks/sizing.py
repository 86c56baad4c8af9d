"""The tables of the sizing guide, worked out from the results of the benchmarks; the formulas are in the guide."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import fleet
import workers
from contenders import NEAR
from fleet_worker import CONCURRENCY
from page import Library, NotMeasured, Source, number_of, printed
from results import Cell, Table

MILLION = 1_000_000
SIZES = (MILLION, 10 * MILLION, 100 * MILLION, 1000 * MILLION)

SEEN = "Memory and time by number of URLs"
MODES = ("exact", "compact", "bloom")

PENDING = "Bytes per pending request"
USUAL_REQUEST = "URL, depth, callback"

RATES = (100, 1000, 10_000)
"""Pages per second of a fleet."""

BUSY_PLACES = 90
"""Per cent of the time that places have a page, from which on a fleet is what Redis's time per page is taken from."""

PAGE_S = (0.5, 2.0)
"""Seconds that a page takes, for Little's law."""


def gigabytes(count: float) -> str:
    """Return bytes as GB, a billion bytes, or as MB below one."""
    return f"{printed(count / 1e9)} GB" if count >= 1e9 else f"{printed(count / 1e6)} MB"


def seen_bytes(library: Library) -> Mapping[str, tuple[float, int]]:
    """Return by mode the bytes per URL at the largest number of URLs measured, and that number.

    Raises:
        NotMeasured: there is none for any mode.
    """
    table = library.table("seen", SEEN)
    found: dict[str, tuple[float, int]] = {}
    for name, urls, cell in zip(*(table.column(one) for one in ("mode", "URLs", "bytes per URL")), strict=True):
        number = number_of(cell)
        mode = str(name)
        if mode in MODES and isinstance(urls, int) and number is not None and urls > found.get(mode, (0, 0))[1]:
            found[mode] = (number, urls)
    if not found:
        raise NotMeasured("seen")
    return found


def pending_bytes(library: Library) -> float:
    """Return the bytes of a pending request without anything special in Redis, the most of all that was measured."""
    table = library.table("pending", PENDING)
    columns = (table.column(name) for name in (table.columns[0], "requests", "bytes per request"))
    found = [
        number
        for name, kind, cell in zip(*columns, strict=True)
        if (name, kind) == ("scrapy-prioqueue", USUAL_REQUEST) and (number := number_of(cell)) is not None
    ]
    if not found:
        raise NotMeasured("pending")
    return max(found)


def memory_table(library: Library) -> Table:
    """Return Redis's memory for what was seen and for what is pending."""
    rows: list[Sequence[Cell]] = []
    each = seen_bytes(library)
    pending = pending_bytes(library)
    for count in SIZES:
        seen = [gigabytes(count * size_b) for size_b, _ in each.values()]
        rows.append([f"{count:,}", *seen, gigabytes(count * pending)])
    measured = ", ".join(f"{mode} {printed(size_b)} at {largest:,} URLs" for mode, (size_b, largest) in each.items())
    note = (
        f"From bytes per URL as measured: {measured}; and {printed(pending)} bytes per pending request."
        " Rows beyond those sizes are these figures multiplied, not measured."
    )
    return Table("Memory", ["URLs", *(f"seen, {mode}" for mode in each), "pending"], rows, note)


def worker_table(library: Library) -> Table:
    """Return how many cores and how much of a server a rate takes."""
    worker_ms = library.value("workers", workers.SPEED, [NEAR, "1"], "worker ms")
    redis_us = redis_us_per_request(library)
    rows: list[Sequence[Cell]] = [
        [
            f"{rate:,}/s",
            printed(rate * worker_ms / 1000),
            f"{printed(rate * redis_us / 1e6 * 100)} %",
            *(f"{rate * page_s:,.0f}" for page_s in PAGE_S),
        ]
        for rate in RATES
    ]
    note = (
        f"{printed(worker_ms)} ms of a worker's processor and {printed(redis_us)} µs of Redis's per page, as measured"
        " with a spider that only follows links. Redis runs scripts on one core."
    )
    columns = ["pages", "workers' cores", "of Redis's core", *(f"leased, pages of {one:g} s" for one in PAGE_S)]
    return Table("Workers", columns, rows, note)


def redis_us_per_request(library: Library) -> float:
    """Return Redis's processor time per request with the largest fleet whose places were busy.

    Those that had to wait exchange more at a time, which is cheaper.
    """
    table = library.table("fleet", fleet.SIGHT)
    found = [
        number
        for busy, cell in zip(table.column("of their places, %"), table.column("Redis µs"), strict=True)
        if (number := number_of(cell)) and (number_of(busy) or 0) >= BUSY_PLACES
    ]
    if not found:
        raise NotMeasured("fleet")
    return found[-1]


def little_table(library: Library) -> Table:
    """Return Little's law beside what the fleet did: places = rate × time per page."""
    table = library.table("fleet", fleet.SIGHT)
    rows: list[Sequence[Cell]] = []
    names = ("workers", "requests/s", "of their places, %", "p50, ms", "per exchange")
    for cells in zip(*(table.column(name) for name in names), strict=True):
        count, rate, busy, exchange_ms, each = (number_of(cell) or 0.0 for cell in cells)
        rows.append(
            [
                round(count),
                printed(rate),
                round(count * CONCURRENCY),
                printed(busy / 100 * count * CONCURRENCY),
                printed(rate / max(count, 1)),
                printed(rate / max(count, 1) / max(each, 0.01)),
                printed(rate / max(count, 1) * exchange_ms / 1000),
            ]
        )
    columns = ["workers", "pages/s", "places", "rate × time per page", "pages/s each", "exchanges/s each"]
    return Table("Little's law", [*columns, "started during an exchange, each"], rows)


SIZING: Mapping[str, Source] = {"memory": memory_table, "workers": worker_table, "little": little_table}
