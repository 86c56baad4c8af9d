"""Measure what sites see of rate limits: 20 simulated workers, and two crawls by Scrapy against a site that logs.

Simulated workers download nothing, so the time is measured when a request starts; all of them share one clock.
Then small fleets whose places are full of slow pages: how many of the starts that its limit allows a host gets.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from arrivals import Seen, seen_table
from crawled import crawling
from logging_site import ARRIVALS
from processes import HOST, BenchmarkFailed, served
from program import Option, Workplace, run_from_command_line, workplace
from results import Cell, Measured, Report, Table
from simulated import Page, fleet, until

from scrapy_prioqueue.frontier.base import Lease, Push
from scrapy_prioqueue.frontier.policy import EVERY, Policy, SlotLimit
from scrapy_prioqueue.rank import rank_of

PAGE_S = (0.025, 0.075)
"""How long a simulated page takes."""

SPARE_S = 60.0
"""A case that takes so much longer than it should has failed."""


SLOW_PAGE_S, SLOW_HOSTS = (1.5, 4.5), 3
"""What takes all places of the small fleets: so many seconds for each page of that many hosts."""

LIMITED, LIMITED_DELAY_S = "limited.test", 0.5
"""The host of a better tier beside them, and its delay."""

SMALL_FLEETS = ((2, 4), (2, 8), (2, 16), (3, 8))
"""Workers, and places of each."""


@dataclass(frozen=True, slots=True)
class Case:
    """A limit, and how many domains have it.

    Args:
        rate: requests per second of each domain.
        domains: how many.
        seconds: for which there are requests.
    """

    rate: int
    domains: int
    seconds: int

    @property
    def pages(self) -> int:
        """Requests of each domain."""
        return self.rate * self.seconds

    @property
    def name(self) -> str:
        """As it is printed."""
        return f"{self.rate}/s"


async def simulate(url: str, case: Case, workers: int) -> Mapping[str, Sequence[float]]:
    """Fetch all pages with simulated workers; return when requests started, by domain."""
    arrivals: dict[str, list[float]] = {}

    def fetch(lease: Lease) -> Page:
        arrivals.setdefault(lease.slot, []).append(time.monotonic())
        return Page(random.uniform(*PAGE_S))

    policy = Policy(slots={EVERY: SlotLimit(delay=1 / case.rate)})
    async with fleet(url, fetch, policy, workers=workers) as members:
        for number in range(case.pages):
            for domain in range(case.domains):
                members[0].push(Push(0, f"site-{domain + 1}.test", b"page %d" % number))
        members[0].wake()
        await until(
            lambda: sum(map(len, arrivals.values())) >= case.pages * case.domains,
            what="all pages fetched",
            within_s=case.seconds + SPARE_S,
        )
    return arrivals


async def starts_beside_slow_pages(url: str, workers: int, places: int, seconds: int) -> int:
    """Return how many requests of a limited host start while slow pages of a worse tier take all places."""
    started: list[str] = []

    def fetch(lease: Lease) -> Page:
        started.append(lease.slot)
        return Page(random.uniform(*(PAGE_S if lease.slot == LIMITED else SLOW_PAGE_S)))

    policy = Policy(slots={LIMITED: SlotLimit(delay=LIMITED_DELAY_S)})
    async with fleet(url, fetch, policy, workers=workers, tiers=("high", "normal"), concurrency=places) as members:
        for number in range(workers * places * seconds):
            members[0].push(Push(rank_of(1, 0), f"slow-{number % SLOW_HOSTS}.test", b"page %d" % number))
        await until(lambda: len(started) >= workers * places, what="all places taken", within_s=SPARE_S)
        for number in range(2 * round(seconds / LIMITED_DELAY_S)):
            members[0].push(Push(rank_of(0, 0), LIMITED, b"page %d" % number))
        await until(lambda: LIMITED in started, what="the limited host is served", within_s=SPARE_S)
        await asyncio.sleep(seconds)
        return started.count(LIMITED)


def crawl(url: str, case: Case, workers: int, directory: Path) -> Mapping[str, Sequence[float]]:
    """Fetch all pages with Scrapy in that many processes; return when they arrived at the site, by domain."""
    settings = {
        "SCHEDULER": "scrapy_prioqueue.Scheduler",
        "PRIOQUEUE_REDIS_URL": url,
        "PRIOQUEUE_SLOT_DELAY": 1 / case.rate,
    }
    with served("logging_site.py", case.domains, case.pages) as port, ExitStack() as stack:
        site = f"http://{HOST}:{port}"
        crawls = [
            stack.enter_context(crawling(f"{site}/", settings, directory / f"worker-{number}"))
            for number in range(workers)
        ]
        results = [process.result() for process in crawls]
        pages = sum(result.pages for result in results)
        if pages != case.pages * case.domains + 1:
            raise BenchmarkFailed(f"{pages} pages were fetched\n" + "\n".join(process.log for process in crawls))
        with urllib.request.urlopen(site + ARRIVALS, timeout=10) as answer:
            found: Mapping[str, Sequence[float]] = json.load(answer)
        return found


def run_case(
    place: Workplace, case: Case, url: str, distance: str, options: argparse.Namespace
) -> Iterator[tuple[str, Mapping[str, Seen]]]:
    """Run a case with both kinds of workers over one link, each on an empty server; yield what sites have seen."""
    for kind, workers in (("simulated", options.simulated), ("Scrapy", options.real)):
        if not workers:
            continue
        place.clear()
        if kind == "simulated":
            arrivals = asyncio.run(simulate(url, case, workers))
        else:
            arrivals = crawl(url, case, workers, place.new_folder())
        name = f"{workers} × {kind}, Redis {distance}, {case.name}"
        seen = {domain: Seen(case.rate, times) for domain, times in arrivals.items()}
        print(seen_table({name: seen}), file=sys.stderr, flush=True)
        yield name, seen


def beside_table(place: Workplace, options: argparse.Namespace) -> Table:
    """Run the small fleets and return what a limited host gets beside slow pages."""
    rows: list[Sequence[Cell]] = []
    allowed = 1 + int(options.beside_seconds / LIMITED_DELAY_S)
    for workers, places in SMALL_FLEETS:
        started = []
        for _ in range(options.rounds):
            place.clear()
            starts = starts_beside_slow_pages(place.server.url, workers, places, options.beside_seconds)
            started.append(asyncio.run(starts))
        shares = Measured([100 * count / allowed for count in started], 0)
        rows.append([f"{workers} × {places} places", allowed, Measured(started, 0), shares])
    note = (
        f"Simulated workers whose places are taken by pages of {SLOW_PAGE_S[0]:g} to {SLOW_PAGE_S[1]:g} s of"
        f" {SLOW_HOSTS} hosts; the limited host has a better tier and a delay of {LIMITED_DELAY_S:g} s."
        f" Counted for {options.beside_seconds} s from its first start."
    )
    return Table("A limited host beside slow pages", ["fleet", "allowed", "started", "% of the limit"], rows, note)


OPTIONS = (
    Option("--seconds", 60, "length of each case", quick=10),
    Option("--simulated", 20, "simulated workers"),
    Option("--real", 2, "processes of Scrapy"),
    Option("--round-trip-ms", 20.0, "added to the far link to Redis"),
    Option("--jitter-ms", 10.0, "by how much that varies, up or down"),
    Option("--rate", [5, 50], "requests per second of each domain", quick=[50]),
    Option("--beside-seconds", 15, "length of the cases beside slow pages", quick=5),
    Option("--rounds", 3, "how often each of these is run", quick=1),
)


def cases(options: argparse.Namespace) -> Iterator[Case]:
    """Yield what is asked for."""
    for rate, domains in ((5, 4), (50, 2)):
        if rate in options.rate:
            yield Case(rate, domains, options.seconds)


def run_benchmark(options: argparse.Namespace) -> None:
    """Start what it takes, run the cases and print the report."""
    distance = f"+{options.round_trip_ms:g} ± {options.jitter_ms:g} ms"
    words = ("--round-trip-ms", options.round_trip_ms, "--jitter-ms", options.jitter_ms)
    with workplace() as place, served("proxy.py", place.server.port, *words) as proxy_port:
        report = Report.begin("politeness", options, place.server)
        seen: dict[str, Mapping[str, Seen]] = {}
        for case in cases(options):
            seen.update(run_case(place, case, place.server.url, "near", options))
            if not options.quick:
                seen.update(run_case(place, case, f"redis://{HOST}:{proxy_port}/0", distance, options))
        note = f"Arrivals during {options.seconds} s with a limit per domain; each row shows the worst of its domains."
        report.add(seen_table(seen, note), beside_table(place, options))


if __name__ == "__main__":
    sys.exit(run_from_command_line(run_benchmark, __doc__, *OPTIONS))
