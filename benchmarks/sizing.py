"""The tables of the sizing guide, worked out from the results of the benchmarks; the formulas are in the guide."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import flat
import fleet
import traffic
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

EXAMPLE_WORKERS = (10, 100, 500)
EXAMPLE_PAGE_S = 1.0

CONNECTIONS = 3
"""Of each worker: one for exchanges, one for the bell, one for its records."""

BUSY_FLEET = 50
"""Workers of the fleet that kept the server busy, whose exchanges serve the most pages."""


def gigabytes(count: float) -> str:
    """Return bytes as GB, a billion bytes, or as MB below one."""
    return f"{printed(count / 1e9)} GB" if count >= 1e9 else f"{printed(count / 1e6)} MB"


def seen_bytes(library: Library) -> Mapping[str, Mapping[int, float]]:
    """Return by mode the bytes per URL by the number of URLs, from a million on.

    Raises:
        NotMeasured: there is none for any mode.
    """
    table = library.table("seen", SEEN)
    found: dict[str, dict[int, float]] = {}
    for name, urls, cell in zip(*(table.column(one) for one in ("mode", "URLs", "bytes per URL")), strict=True):
        number = number_of(cell)
        mode = str(name)
        if mode in MODES and isinstance(urls, int) and urls >= MILLION and number is not None:
            found.setdefault(mode, {})[urls] = number
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
        seen = [gigabytes(count * by_size.get(count, by_size[max(by_size)])) for by_size in each.values()]
        rows.append([f"{count:,}", *seen, gigabytes(count * pending)])
    measured = ", ".join(
        f"{mode} {printed(by_size[max(by_size)])} at {max(by_size):,} URLs" for mode, by_size in each.items()
    )
    note = (
        f"From bytes per URL as measured at that size; beyond it {measured}; and {printed(pending)} bytes per pending"
        " request. Rows beyond those sizes are these figures multiplied, not measured."
    )
    return Table("Memory", ["URLs", *(f"seen, {mode}" for mode in each), "pending"], rows, note)


def growth_table(library: Library) -> Table:
    """Return what a pending request takes with its fingerprint, by how many there are."""
    table = library.table("flat", flat.FILLED)
    rows = list(zip(table.column("pending"), table.column("bytes per request"), strict=True))
    return Table("Growth", ["pending", "bytes each, with the fingerprint"], rows)


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


def example_table(library: Library) -> Table:
    """Return what fleets of three sizes need of one server."""
    usual, always_on = ([traffic.EXAMPLE[0], traffic.EXAMPLE[1]], traffic.EVERY_SECOND)
    per_page = {
        name: library.value("traffic", traffic.BY_FLEET, list(map(str, usual)), name)
        for name in ("Redis µs", "bytes in", "bytes out")
    }
    busy_us = library.value("fleet", fleet.SPEED, [fleet.OURS, str(BUSY_FLEET)], "Redis µs")
    written_b = library.value("traffic", traffic.BY_OPTION, [always_on], "append-only file")
    replicated_b = library.value("traffic", traffic.BY_OPTION, [traffic.REPLICA], "to each replica")
    seen_b = max(seen_bytes(library)["exact"].values())
    rows: list[Sequence[Cell]] = []
    for count in EXAMPLE_WORKERS:
        rate = count * traffic.EXAMPLE[1]
        rows.append(
            [
                f"{count:,}",
                f"{rate:,}",
                f"{rate * EXAMPLE_PAGE_S:,.0f}",
                f"{printed(rate * busy_us / 1e4)} % to {printed(rate * per_page['Redis µs'] / 1e4)} %",
                f"{count * CONNECTIONS:,}",
                *(f"{printed(rate * size_b / 1e6)} MB/s" for size_b in (per_page["bytes in"], per_page["bytes out"])),
                *(f"{printed(rate * size_b / 1e6)} MB/s" for size_b in (written_b, replicated_b)),
                gigabytes(rate * 86_400 * seen_b),
            ]
        )
    columns = ["workers", "pages/s", "leased", "of Redis's core", "connections", "network in", "network out"]
    columns += ["append-only file", "to each replica", "seen, per day"]
    return Table("Example", columns, rows)


SIZING: Mapping[str, Source] = {
    "memory": memory_table,
    "growth": growth_table,
    "workers": worker_table,
    "little": little_table,
    "example": example_table,
}
