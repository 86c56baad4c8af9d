"""Stop the Redis server with SIGSTOP in the middle of a crawl, and see how late a 10 ms timer on the loop gets.

Beside it, in turns, the same crawl undisturbed, and one with Scrapy's own scheduler: what is late there, too, is late
because of the pages that are parsed, or of a busy machine.
"""

from __future__ import annotations

import argparse
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

from contenders import MEMORY, NEAR, Contender, contenders
from crawled import CRAWL_WITHIN_S, CrawlProcess, CrawlResult, crawling, visits_of
from processes import HOST, BenchmarkFailed, served, wait_until
from program import Option, Workplace, run_from_command_line, workplace
from redis_server import RedisServer
from results import Cell, Report, Table

STOP_AFTER = 1 / 3
"""Share of the pages that are fetched when the server is stopped."""

QUANTILES = {"median": 0.5, "99 %": 0.99, "99.9 %": 0.999, "worst": 1.0}


@dataclass(frozen=True, slots=True)
class Stop:
    """When the server stood still, on the machine's monotonic clock."""

    began_s: float
    ended_s: float

    def covers(self, time_s: float) -> bool:
        """Return whether a moment lies within."""
        return self.began_s <= time_s <= self.ended_s


Lateness = dict[str, list[float]]
"""How many seconds each firing of the timer was late, over all rounds."""


def quantile(late_s: Sequence[float], share: float) -> str | None:
    """Return the milliseconds that this share of all firings stayed below or met; None if it is all of so few."""
    ordered = sorted(late_s)
    if share < 1 and (1 - share) * len(ordered) < 1:
        return None
    return f"{ordered[max(0, min(len(ordered), round(share * len(ordered))) - 1)] * 1000:.1f}" if ordered else None


def run_once(
    place: Workplace, contender: Contender, options: argparse.Namespace, *, stops: bool
) -> tuple[CrawlResult, Stop | None]:
    """Crawl once; return what the crawl measured, and when the server was stopped.

    Raises:
        BenchmarkFailed: not every page was fetched.
    """
    pages, directory = options.pages, place.new_folder()
    settings = {**contender.settings, "CONCURRENT_REQUESTS": options.concurrency}
    with served("website.py", pages) as port:
        url = f"http://{HOST}:{port}"
        with crawling(f"{url}/", settings, directory, "--watch-timer") as process:
            stop = _stop_in_the_middle(place.server, process, url, options) if stops else None
            result = process.result()
        fetched, different = visits_of(url)
    if different != pages or result.reason != "finished":
        raise BenchmarkFailed(f"{different} of {pages} pages fetched, {result.reason!r}\n{process.log}")
    stopped = f", Redis stopped for {options.stop_s:g} s" if stops else ""
    outcome = f"{different} pages, {fetched - different} fetched twice, in {result.wall_s:.1f} s"
    print(f"{contender.name}{stopped}: {outcome}", file=sys.stderr, flush=True)
    return result, stop


def _stop_in_the_middle(server: RedisServer, process: CrawlProcess, url: str, options: argparse.Namespace) -> Stop:
    def is_in_the_middle() -> bool:
        if not process.is_running:
            raise BenchmarkFailed(f"the crawl ended before Redis was stopped\n{process.log}")
        return bool(visits_of(url)[1] >= options.pages * STOP_AFTER)

    wait_until(is_in_the_middle, what="the middle of the crawl", within_s=CRAWL_WITHIN_S)
    began_s = time.monotonic()
    server.freeze()
    threading.Event().wait(options.stop_s)
    server.thaw()
    return Stop(began_s, time.monotonic())


def note(lateness: Lateness, name: str, result: CrawlResult, stop: Stop | None) -> None:
    """Add how late the timer of a crawl was, by what the server did meanwhile."""
    for time_s, late_s in result.timer:
        when = ""
        if stop is not None:
            when = ", while Redis is stopped" if stop.covers(time_s) else ", before and after a stop"
        lateness.setdefault(name + when, []).append(late_s)


def late_table(lateness: Lateness, rounds: int, stop_s: float) -> Table:
    """Return the table of how late the timer was."""
    rows: list[Sequence[Cell]] = [
        [name, *(quantile(late_s, share) for share in QUANTILES.values()), len(late_s)]
        for name, late_s in lateness.items()
    ]
    note = f"Redis is stopped for {stop_s:g} s; {rounds} crawls of each kind; - means that there were too few firings."
    return Table("How late a 10 ms timer is", ["ms late", *QUANTILES, "firings"], rows, note)


OPTIONS = (
    Option("--pages", 1500, "size of the site", quick=300),
    Option("--rounds", 3, "how often each is run", quick=1),
    Option("--concurrency", 4, "so many pages may be parsed in one turn of the loop, timers waiting"),
    Option("--stop-s", 10.0, "seconds that Redis is stopped", quick=2.0),
)


def run_benchmark(options: argparse.Namespace) -> None:
    """Start a server, run the rounds and print the report."""
    lateness: Lateness = {}
    with workplace() as place:
        report = Report.begin("reactor", options, place.server)
        near = {one.name: one for one in contenders(place.server.url, place.server.url, "")}
        for _ in range(options.rounds):
            for name, stops in ((MEMORY, False), (NEAR, False), (NEAR, True)):
                note(lateness, name, *run_once(place, near[name], options, stops=stops))
        report.add(late_table(lateness, options.rounds, options.stop_s))


if __name__ == "__main__":
    sys.exit(run_from_command_line(run_benchmark, __doc__, *OPTIONS))
