"""Compare two real Scrapy workers on one crawl with one, and with Scrapy's own schedulers: speed and processor time.

Speed is taken from the middle of a crawl, when all workers have started and there is enough to do for all of them. The
site and Redis need the processor as well, so what they took of it is printed too.
"""

from __future__ import annotations

import argparse
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import redis
from contenders import DISK, MEMORY, NEAR, Contender, contenders
from crawled import CRAWL_WITHIN_S, CrawlProcess, crawling, site_cpu_s, visits_of
from processes import HOST, BenchmarkFailed, served
from program import Option, Workplace, processor_s, run_from_command_line, workplace
from results import Cell, Measured, Report, Table

MIDDLE = (0.25, 0.8)
"""Shares of all pages between which speed is measured."""

SITE_POLL_S = 0.2
"""Time between two looks at the site, which answers them, too, and takes longer for one than for a page."""

CORES = 2
"""Of the machine that speed by processor time is said for."""

SPEED = "Two workers and one"


@dataclass(frozen=True, slots=True)
class Run:
    """One crawl by one worker or more.

    Args:
        pages: fetched, each once or more.
        per_s: pages per second in the middle of the crawl.
        cpu_s: of all workers, from `spider_opened` to `spider_closed`.
        site_s: processor time of the site.
        redis_s: of the server.
    """

    pages: int
    per_s: float
    cpu_s: float
    site_s: float
    redis_s: float

    @property
    def cpu_ms(self) -> float:
        """Milliseconds of the workers per page."""
        return self.cpu_s / self.pages * 1000

    def possible_per_s(self, workers: int) -> float:
        """Return the pages per second that so many workers could fetch by what was taken of the processor.

        A worker has one core; all of them, the site and Redis have `CORES`.
        """
        return min(workers / self.cpu_s, CORES / (self.cpu_s + self.site_s + self.redis_s)) * self.pages


def run_once(place: Workplace, contender: Contender, workers: int, pages: int) -> Run:
    """Crawl a fresh site once, with an empty Redis.

    Args:
        pages: size of the site.

    Raises:
        BenchmarkFailed: not every page was fetched.
    """
    place.clear()
    with (
        redis.Redis.from_url(place.server.url, socket_timeout=10) as client,
        served("website.py", pages) as port,
        ExitStack() as stack,
    ):
        url = f"http://{HOST}:{port}"
        before_s, began_site_s = processor_s(client), site_cpu_s(url)
        crawls = []
        for _ in range(workers):
            folder = place.new_folder()
            crawls.append(stack.enter_context(crawling(f"{url}/", contender.settings_in(folder), folder)))
        per_s = _in_the_middle(url, crawls, pages)
        results = [one.result() for one in crawls]
        fetched, different = visits_of(url)
        site_s, redis_s = site_cpu_s(url) - began_site_s, processor_s(client) - before_s
    if different != pages or any(one.reason != "finished" for one in results):
        logs = "\n".join(one.log for one in crawls)
        raise BenchmarkFailed(f"{contender.name}: {different} of {pages} pages fetched\n{logs}")
    return Run(fetched, per_s, sum(one.cpu_s for one in results), site_s, redis_s)


def _in_the_middle(url: str, crawls: Sequence[CrawlProcess], pages: int) -> float:
    """Return how many pages per second are fetched between the shares of `MIDDLE`."""
    pause, deadline = threading.Event(), time.monotonic() + CRAWL_WITHIN_S
    moments: list[tuple[float, int]] = []
    for share in MIDDLE:
        while (fetched := visits_of(url)[0]) < share * pages:
            if time.monotonic() > deadline or not any(one.is_running for one in crawls):
                raise BenchmarkFailed(f"only {fetched} pages fetched\n" + "\n".join(one.log for one in crawls))
            pause.wait(SITE_POLL_S)
        moments.append((time.monotonic(), fetched))
    (began_s, first), (ended_s, last) = moments
    return (last - first) / (ended_s - began_s)


def speed_table(runs: Mapping[tuple[str, int], Sequence[Run]], pages: int) -> Table:
    """Return speed and processor time, as ratios to one worker and to Scrapy's scheduler of the same round."""
    columns = ["scheduler", "workers", "pages/s", "to one worker", "by processor time", "worker ms"]
    columns += ["to Scrapy's, in memory", "site ms", "Redis ms"]
    rows: list[Sequence[Cell]] = []
    for (name, workers), found in runs.items():
        one = list(zip(found, runs[name, 1], strict=True))
        memory = zip(found, runs[MEMORY, 1], strict=True)
        rows.append(
            [
                name,
                workers,
                Measured([run.per_s for run in found], 0),
                Measured([run.per_s / base.per_s for run, base in one]),
                Measured([run.possible_per_s(workers) / base.possible_per_s(1) for run, base in one]),
                Measured([run.cpu_ms for run in found]),
                Measured([run.cpu_ms / base.cpu_ms for run, base in memory]),
                Measured([run.site_s / run.pages * 1000 for run in found]),
                Measured([run.redis_s / run.pages * 1000 for run in found]),
            ]
        )
    note = (
        f"A site of {pages} pages; pages/s are measured from {MIDDLE[0]:.0%} to {MIDDLE[1]:.0%} of it."
        " Worker, site and Redis ms are processor time per page of the whole crawl."
        f" By processor time is how much faster two workers could be on {CORES} cores that run only the workers, the"
        " site and Redis; on a machine with more cores it is two."
    )
    return Table(SPEED, columns, rows, note)


OPTIONS = (
    Option("--pages", 3000, "size of the site", quick=800),
    Option("--rounds", 5, "how often each is run", quick=1),
)


def run_benchmark(options: argparse.Namespace) -> None:
    """Run the rounds and print the report."""
    with workplace() as place:
        report = Report.begin("workers", options, place.server)
        near = {one.name: one for one in contenders(place.server.url, place.server.url, "")}
        kinds = [(MEMORY, 1), (DISK, 1), (NEAR, 1), (NEAR, 2)]
        runs: dict[tuple[str, int], list[Run]] = {kind: [] for kind in kinds}
        for number in range(1, options.rounds + 1):
            for name, workers in kinds:
                run = run_once(place, near[name], workers, options.pages)
                runs[name, workers].append(run)
                text = f"round {number}  {workers} × {name:22}  {run.per_s:6.1f} pages/s  {run.cpu_ms:5.2f} ms"
                print(text, file=sys.stderr, flush=True)
        report.add(speed_table(runs, options.pages))


if __name__ == "__main__":
    sys.exit(run_from_command_line(run_benchmark, __doc__, *OPTIONS))
