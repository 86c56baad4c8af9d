"""Compare schedulers by crawling the same site: pages per second, processor time, round trips to Redis.

The runs take turns, one of each kind per round, each in a process of its own and with a fresh site and an empty Redis.
What is compared is compared inside a round, so that a machine that gets slower or faster does no harm.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import redis
from contenders import MEMORY, Contender, contenders, has_scrapy_redis, with_policies
from crawled import CrawlResult, crawling, visits_of
from processes import HOST, BenchmarkFailed, served
from program import Option, Workplace, run_from_command_line, workplace
from results import Cell, Measured, Report, Table

SLOW_ROUNDS = 1
"""Rounds that slow contenders take part in, the warm-up aside."""


SPEED = "Crawls"
WORK = "What Redis has to do"
POLICIES = "Crawls with policies that don't bind"

EXCHANGES = "exchanges"
COSTS = ("round trips", EXCHANGES, "script calls", "Redis ms")
"""What Redis has to do for a page.

Round trips are counted at the server, as reads from its sockets: a pipeline counts once.
Exchanges are our scheduler's own count; joining, leases renewed and leaving come on top.
"""


@dataclass(frozen=True, slots=True)
class Run:
    """One crawl, seen from all sides.

    Args:
        crawl: what it measured of itself.
        fetched: requests that the site answered.
        different: pages among them.
        costs: `COSTS` per page, as far as they apply.
    """

    crawl: CrawlResult
    fetched: int
    different: int
    costs: Mapping[str, float]

    @property
    def pages_per_s(self) -> float:
        """Speed, from `spider_opened` to `spider_closed`."""
        return self.crawl.pages / self.crawl.wall_s

    @property
    def cpu_s_per_page(self) -> float:
        """Processor time of the crawling process."""
        return self.crawl.cpu_s / self.crawl.pages


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of site, and how it is crawled.

    Args:
        options: of ``website.py``.
        settings: Scrapy's.
    """

    options: Sequence[object] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)


QUICK_HOST = Kind()
SLOW_LINKS, SLOW_PLACES = 10, 8
DELAYS_MS = {"Crawls of one slow host": 40, "Crawls of one slower host": 100}
"""How long slow hosts take for each answer. Their slot is full all the time, and any gap between two requests shows.

With the longer time the slot sets the pace on a slow machine, too, where else the processor does.
"""


def slow_host(delay_ms: int) -> Kind:
    """Return the kind of a host that takes so long for each answer."""
    options = ("--links", SLOW_LINKS, "--delay-ms", delay_ms)
    return Kind(options, {"CONCURRENT_REQUESTS_PER_DOMAIN": SLOW_PLACES})


def run_once(place: Workplace, contender: Contender, pages: int, kind: Kind = QUICK_HOST) -> Run:
    """Crawl a fresh site once, with an empty Redis.

    Args:
        pages: size of the site.

    Raises:
        BenchmarkFailed: not every page was fetched.
    """
    place.clear()
    directory = place.new_folder()
    settings = {**contender.settings_in(directory), **kind.settings}
    with (
        redis.Redis.from_url(place.server.url, socket_timeout=10) as client,
        served("website.py", pages, *kind.options) as port,
    ):
        before, url = _redis_work(client), f"http://{HOST}:{port}"
        with crawling(f"{url}/", settings, directory) as process:
            crawl = process.result()
        fetched, different = visits_of(url)
        after = _redis_work(client)
    if different != pages or crawl.reason != "finished":
        outcome = f"{different} of {pages} pages fetched, closed as {crawl.reason!r}"
        raise BenchmarkFailed(f"{contender.name}: {outcome}\n{process.log}")
    costs: dict[str, float] = {}
    if contender.uses_redis:
        costs = {name: (value - before[name]) / crawl.pages for name, value in after.items()}
        if "prioqueue/exchange/count" in crawl.stats:
            costs[EXCHANGES] = crawl.stats["prioqueue/exchange/count"] / crawl.pages
    return Run(crawl, fetched, different, costs)


def _redis_work(client: redis.Redis) -> Mapping[str, float]:
    info: Mapping[str, Any] = client.info("everything")
    return {
        "round trips": info["total_reads_processed"],
        "script calls": info.get("cmdstat_evalsha", {}).get("calls", 0),
        "Redis ms": (info["used_cpu_user"] + info["used_cpu_sys"]) * 1000,
    }


def round_trip_ms(url: str) -> float:
    """Return how long a PING takes, as a median."""
    times = []
    with redis.Redis.from_url(url, socket_timeout=10) as client:
        for _ in range(100):
            started_s = time.perf_counter()
            client.ping()
            times.append(time.perf_counter() - started_s)
    return statistics.median(times[1:]) * 1000


def measure(
    run_once: Callable[[Contender], Run], everyone: Sequence[Contender], options: argparse.Namespace
) -> Mapping[str, Mapping[int, Run]]:
    """Run the rounds, after one to warm up, and return their runs by contender and round."""
    warm_up = 0 if options.quick else 1
    runs: dict[str, dict[int, Run]] = {contender.name: {} for contender in everyone}
    for number in range(1 - warm_up, options.rounds + 1):
        for contender in everyone:
            if contender.is_slow and not 1 <= number <= SLOW_ROUNDS:
                continue
            run = run_once(contender)
            label = f"round {number}" if number else "warm-up"
            print(f"{label:8}  {contender.name:28}  {run.pages_per_s:7.1f} pages/s", file=sys.stderr, flush=True)
            if number:
                runs[contender.name][number] = run
    return runs


def tables(runs: Mapping[str, Mapping[int, Run]], site: str) -> Sequence[Table]:
    """Return the tables: how fast and at what cost to the crawler, then what Redis has to do."""
    speeds: list[Sequence[Cell]] = []
    costs: list[Sequence[Cell]] = []
    for name, by_round in runs.items():
        pairs = [(run, runs[MEMORY][number]) for number, run in by_round.items()]
        speeds.append([name, *_speeds(pairs)])
        costs.append([name, *_costs([run for run, _ in pairs])])
    columns = ["scheduler", "speed", "processor time", "pages/s", "ms per page", "whole process, s"]
    note = f"Speed and processor time are ratios to Scrapy's scheduler in memory, in the same round. {site}"
    work = "Per page, except for the last three columns."
    return [
        Table(SPEED, columns, speeds, note),
        Table(WORK, ["scheduler", *COSTS, "pages", "fetched twice", "runs"], costs, work),
    ]


def slow_table(runs: Mapping[str, Mapping[int, Run]], title: str) -> Table:
    """Return the table of crawls of a slow host."""
    columns = ["scheduler", "speed", "processor time", "pages/s"]
    rows: list[Sequence[Cell]] = []
    for name, by_round in runs.items():
        pairs = [(run, runs[MEMORY][number]) for number, run in by_round.items()]
        rows.append([name, *_speeds(pairs)[:3]])
    places = f"{SLOW_PLACES} requests at a time as CONCURRENT_REQUESTS_PER_DOMAIN"
    note = f"{SLOW_LINKS} links per page, {DELAYS_MS[title]} ms for each answer, {places}."
    return Table(title, columns, rows, note)


def policy_table(runs: Mapping[str, Mapping[int, Run]], groups: Mapping[str, Sequence[Contender]]) -> Table:
    """Return the table of crawls with policies, each as ratios to the first contender of its group."""
    rows: list[Sequence[Cell]] = []
    for group in groups.values():
        bases = runs[group[0].name]
        for contender in group[1:]:
            pairs = [(run, bases[number]) for number, run in runs[contender.name].items()]
            rows.append([contender.name, *_speeds(pairs)[:3]])
    columns = ["scheduler", "speed", "processor time", "pages/s"]
    note = "Ratios to the same scheduler without a policy, in the same round. Policies are so loose that nothing waits."
    return Table(POLICIES, columns, rows, note)


def _speeds(pairs: Sequence[tuple[Run, Run]]) -> Sequence[Cell]:
    runs = [run for run, _ in pairs]
    return [
        Measured([run.pages_per_s / base.pages_per_s for run, base in pairs]),
        Measured([run.cpu_s_per_page / base.cpu_s_per_page for run, base in pairs]),
        Measured([run.pages_per_s for run in runs], 0),
        Measured([run.cpu_s_per_page * 1000 for run in runs]),
        Measured([run.crawl.process_s for run in runs], 1),
    ]


def _costs(runs: Sequence[Run]) -> Sequence[Cell]:
    return [
        *(Measured([run.costs[name] for run in runs if name in run.costs], 3) for name in COSTS),
        "/".join(sorted({str(run.different) for run in runs})),
        sum(run.fetched - run.different for run in runs),
        len(runs),
    ]


OPTIONS = (
    Option("--pages", 1000, "size of the site", quick=400),
    Option("--slow-pages", 600, "size of the site of the slow host", quick=200),
    Option("--rounds", 5, "how often each is run, after one round to warm up", quick=1),
    Option("--round-trip-ms", 4.0, "what the proxy adds to each round trip"),
    Option("--only", [], "those with this in their name"),
)


def run_benchmark(options: argparse.Namespace) -> None:
    """Start what it takes, run the rounds and print the report."""
    with (
        workplace() as place,
        served("proxy.py", place.server.port, "--round-trip-ms", options.round_trip_ms) as proxy_port,
    ):
        far_url = f"redis://{HOST}:{proxy_port}/0"
        near_url = place.server.url
        report = Report.begin("crawl", options, place.server)
        near_ms, far_ms = round_trip_ms(near_url), round_trip_ms(far_url)
        site = f"Round trip: near {near_ms:.2f} ms, far {far_ms:.2f} ms. Site: {options.pages} pages, 20 links each."
        everyone = contenders(near_url, far_url, f"+{options.round_trip_ms:g} ms")
        wanted = [one for one in everyone if one.is_wanted(options.only)]
        crawl = partial(run_once, place, pages=options.pages)
        report.add(*tables(measure(crawl, wanted, options), site))
        ours = [one for one in wanted if not (one.is_slow or one.has_job)]
        for title, delay_ms in DELAYS_MS.items():
            slow_crawl = partial(run_once, place, pages=options.slow_pages, kind=slow_host(delay_ms))
            report.add(slow_table(measure(slow_crawl, ours, options), title))
        groups = with_policies(near_url)
        policies = [contender for group in groups.values() for contender in group]
        report.add(policy_table(measure(crawl, policies, options), groups))
        if not has_scrapy_redis():
            print("scrapy-redis is not installed (pip install 'scrapy-prioqueue[bench]') and so not in the tables.")


if __name__ == "__main__":
    sys.exit(run_from_command_line(run_benchmark, __doc__, *OPTIONS))
