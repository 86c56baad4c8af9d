"""Measure what water marks hold back: crawls of a site whose listings show 100 new links each, a start() without end.

Memory is that of the worker processes (resident) and what Redis says it uses, watched from outside.
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
from functools import partial
from pathlib import Path
from typing import Any

import redis
from crawled import CRAWL_WITHIN_S, crawling, visits_of
from listings import FRONT_PAGE, IS_LISTING, LINKS, urls_of
from processes import HOST, BenchmarkFailed, beside, served
from program import Option, Workplace, run_from_command_line, workplace
from redis_server import RedisServer
from results import Cell, Report, Table

from scrapy_prioqueue.client import FrontierClient

SAMPLE_S = 0.1
WORKERS = 2
STARTS = 10_000_000
MILLION = 1_000_000
STARTS_SHOWN_AT = (0.05, 0.2, 0.4, 0.6, 0.8, 0.9, 1)
"""Shares of the requests that are waited for when memory is shown while start() is read."""

SHOWN_AT = (0.1, 0.25, 0.5, 0.75, 0.95)
"""Shares of the pages that are done when memory is shown."""


@dataclass(frozen=True, slots=True)
class Sight:
    """What is seen at one moment.

    Args:
        accepted: requests stored since the crawl began.
        leased: requests that workers hold.
        resident_b: memory of each worker.
        used_b: memory that the server uses.
    """

    accepted: int
    pending: int
    leased: int
    done: int
    resident_b: Sequence[int]
    used_b: int


def watch(
    server: RedisServer, pids: Sequence[int], is_over: Callable[[Sight | None], bool], within_s: float
) -> Sequence[Sight]:
    """Look at a frontier, and at the processes that work on it, until it is over; return what was seen.

    Args:
        is_over: called with the last sight.

    Raises:
        BenchmarkFailed: it takes longer than that.
    """
    sights: list[Sight] = []
    pause, deadline = threading.Event(), time.monotonic() + within_s
    with (
        FrontierClient(server.url, "links") as frontier,
        redis.Redis.from_url(server.url, socket_timeout=10) as client,
    ):
        while not is_over(sights[-1] if sights else None):
            if time.monotonic() > deadline:
                raise BenchmarkFailed(f"the crawl takes more than {within_s:g} s: {sights[-1:]}")
            depth = frontier.depth()
            if depth.accepted:
                used_b = int(client.info("memory")["used_memory"])
                resident_b = [resident_of(pid) for pid in pids]
                sights.append(Sight(depth.accepted, depth.pending, depth.leased, depth.done, resident_b, used_b))
            pause.wait(SAMPLE_S)
    return sights


def resident_of(pid: int) -> int:
    """Return the resident memory of a process in bytes, 0 if it has ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS:")), 0)


@dataclass(frozen=True, slots=True)
class Crawled:
    """What a crawl with water marks, or without, has come to.

    Args:
        high_water: 0 for no marks.
        most_pending: the most requests that were pending.
        most_leased: the most that were held by workers; each may be a listing that is being read.
    """

    name: str
    high_water: int
    urls: int
    pages: int
    most_pending: int
    most_leased: int
    wall_s: float
    sights: Sequence[Sight]

    def depth_row(self) -> Sequence[Cell]:
        """Return how deep it got, and whether it ended complete."""
        mark = self.high_water or "none"
        under_way = self.high_water + self.most_leased * LINKS if self.high_water else None
        return [self.name, mark, under_way, self.most_pending, self.urls, self.pages, round(self.wall_s)]

    def memory_rows(self) -> Sequence[Sequence[Cell]]:
        """Return the memory as the crawl went on."""
        rows: list[Sequence[Cell]] = []
        for share in SHOWN_AT:
            found = next((sight for sight in self.sights if sight.done >= share * self.urls), None)
            if found is not None:
                rows.append([f"{self.name}, {share:.0%} done", *_memory(found)])
        return rows


def _memory(sight: Sight) -> Sequence[Cell]:
    megabytes = [f"{value / MILLION:.1f}" for value in (*sight.resident_b, sight.used_b)]
    return [sight.pending, *megabytes]


def simulate(server: RedisServer, listings: int, high_water: int) -> Crawled:
    """Crawl the site with two simulated workers, each in its own process."""
    began_s = time.monotonic()
    with ExitStack() as stack:
        workers = [
            stack.enter_context(beside("listing_worker.py", server.url, f"worker-{number}", listings, high_water))
            for number in range(WORKERS)
        ]
        pids = [worker.pid for worker in workers]
        sights = watch(server, pids, lambda _: all(worker.poll() is not None for worker in workers), 3600)
        if any(worker.returncode for worker in workers):
            raise BenchmarkFailed("a simulated worker has failed")
        results = [json.loads(worker.communicate()[0]) for worker in workers]
    return Crawled(
        name=f"{WORKERS} × simulated" + ("" if high_water else ", no marks"),
        high_water=high_water,
        urls=urls_of(listings),
        pages=sum(result["pages"] for result in results),
        most_pending=max(result["most_pending"] for result in results),
        most_leased=max(result["most_leased"] for result in results),
        wall_s=time.monotonic() - began_s,
        sights=sights,
    )


SCRAPY_SETTINGS: Mapping[str, Any] = {
    "SCHEDULER": "scrapy_prioqueue.Scheduler",
    "PRIOQUEUE_TIER_RULES": [{"tier": "urgent", "url": IS_LISTING}],
    "PRIOQUEUE_DISCOVERY_TIERS": ["urgent"],
}


def crawl(server: RedisServer, listings: int, high_water: int, directory: Path) -> Crawled:
    """Crawl the site with Scrapy in two processes."""
    began_s = time.monotonic()
    settings = {**SCRAPY_SETTINGS, "PRIOQUEUE_REDIS_URL": server.url, "PRIOQUEUE_HIGH_WATER": high_water}
    with served("listings.py", listings) as port, ExitStack() as stack:
        site = f"http://{HOST}:{port}"
        crawls = [
            stack.enter_context(crawling(site + FRONT_PAGE, settings, directory / f"worker-{number}"))
            for number in range(WORKERS)
        ]
        pids = [one.pid for one in crawls]
        sights = watch(server, pids, lambda _: not any(one.is_running for one in crawls), CRAWL_WITHIN_S)
        for one in crawls:
            one.result()
        _, pages = visits_of(site)
    return Crawled(
        name=f"{WORKERS} × Scrapy",
        high_water=high_water,
        urls=urls_of(listings),
        pages=pages,
        most_pending=max(sight.pending for sight in sights),
        most_leased=max(sight.leased for sight in sights),
        wall_s=time.monotonic() - began_s,
        sights=sights,
    )


def read_starts(server: RedisServer, high_water: int, count: int, directory: Path) -> Sequence[Sequence[Cell]]:
    """Read a start() of ten million requests with Scrapy until so many are stored; return the memory meanwhile."""
    settings = {**SCRAPY_SETTINGS, "PRIOQUEUE_REDIS_URL": server.url, "PRIOQUEUE_HIGH_WATER": high_water}
    # Not far below, so that start() is read on soon; by default that is 80 %.
    settings |= {"PRIOQUEUE_LOW_WATER": high_water * 19 // 20, "CLOSESPIDER_TIMEOUT": 0}
    with (
        served("listings.py", 0) as port,
        crawling(f"http://{HOST}:{port}/page/0/", settings, directory, "--starts", str(STARTS)) as process,
    ):

        def is_over(last: Sight | None) -> bool:
            if not process.is_running:
                raise BenchmarkFailed(f"the crawl has ended\n{process.log}")
            return last is not None and last.accepted >= count

        sights = watch(server, [process.pid], is_over, 3600)
    found = [next(sight for sight in sights if sight.accepted >= share * count) for share in STARTS_SHOWN_AT]
    return [[sight.accepted, *_memory(sight)] for sight in found]


def pass_over_one_site(server: RedisServer, high_water: int, directory: Path) -> Sequence[Cell]:
    """Crawl with a start() that yields requests of a slot that waits for an hour, twice the mark, and then of others.

    Raises:
        BenchmarkFailed: the others are not all fetched.
    """
    began_s = time.monotonic()
    held, others = 2 * high_water, 4 * high_water
    settings = {
        **SCRAPY_SETTINGS,
        "PRIOQUEUE_REDIS_URL": server.url,
        "PRIOQUEUE_HIGH_WATER": high_water,
        "PRIOQUEUE_SLOTS": {"held": {"delay": 3600}},
    }
    options = ("--starts", str(held + others), "--held", str(held))
    with (
        served("listings.py", 0) as port,
        crawling(f"http://{HOST}:{port}/page/0/", settings, directory, *options) as process,
    ):
        # One of the slot that waits may start at once.
        sights = watch(server, [process.pid], lambda last: last is not None and last.done > others, CRAWL_WITHIN_S)
    most_pending = max(sight.pending for sight in sights)
    return [high_water, held, others, f"{time.monotonic() - began_s:.1f}", most_pending]


def run_crawls(place: Workplace, options: argparse.Namespace, kinds: Sequence[str]) -> Sequence[Crawled]:
    """Run the crawls of these kinds, each on an empty server.

    Raises:
        BenchmarkFailed: one has ended, but not every page was fetched, once at least.
    """
    server = place.server
    wanted: list[Callable[[], Crawled]] = []
    if "simulated" in kinds:
        wanted += (partial(simulate, server, options.listings, mark) for mark in (options.high_water, 0))
    if "scrapy" in kinds:
        wanted.append(partial(crawl, server, options.real_listings, options.real_high_water, place.directory / "crawl"))
    found = []
    for run in wanted:
        place.clear()
        found.append(done := run())
        print(" ".join(map(str, done.depth_row())), file=sys.stderr, flush=True)
        if done.pages < done.urls:
            raise BenchmarkFailed(f"{done.name}: {done.pages} of {done.urls} pages")
    return found


KINDS = ("simulated", "scrapy", "start", "held")

OPTIONS = (
    Option("--listings", 2000, "of the site that simulated workers crawl", quick=200),
    Option("--high-water", 50_000, "mark of that crawl", quick=5000),
    Option("--real-listings", 200, "of the site that Scrapy crawls", quick=50),
    Option("--real-high-water", 5000, "mark of that crawl", quick=1250),
    Option("--start-high-water", 150_000, "mark while start() is read", quick=15_000),
    Option("--start-count", 170_000, "requests of start() that are waited for", quick=17_000),
    Option("--held-high-water", 1000, "mark beside one site that waits", quick=100),
    Option("--only", [], "what is measured", choices=KINDS),
)


def run_benchmark(options: argparse.Namespace) -> None:
    """Run what is asked for and print the report."""
    kinds = options.only or KINDS
    with workplace() as place:
        report = Report.begin("backpressure", options, place.server)
        if crawls := run_crawls(place, options, kinds):
            columns = ["crawl", "high mark", f"mark and {LINKS} links of all leased", "most pending"]
            rows = [done.depth_row() for done in crawls]
            report.add(Table("Depth", [*columns, "pages of the site", "fetched", "seconds"], rows))
            memory = [row for done in crawls for row in done.memory_rows()]
            report.add(Table("Memory of crawls", ["MB", "pending", "worker 1", "worker 2", "Redis"], memory))
        if "start" in kinds:
            place.clear()
            high_water = options.start_high_water
            found = read_starts(place.server, high_water, options.start_count, place.directory / "starts")
            note = f"A start() of {STARTS} requests, high mark {high_water}."
            columns = ["read", "pending", "MB of the worker", "MB of Redis"]
            report.add(Table("Memory while start() is read", columns, found, note))
        if "held" in kinds:
            place.clear()
            row = pass_over_one_site(place.server, options.held_high_water, place.directory / "held")
            columns = ["high mark", "requests of a site that waits", "then of another", "seconds until these are done"]
            report.add(Table("One site that waits", [*columns, "most pending"], [row]))


if __name__ == "__main__":
    sys.exit(run_from_command_line(run_benchmark, __doc__, *OPTIONS))
