"""Compare what schedulers cost a worker, driven without downloading: processor time and memory per request.

The runs take turns, one of each kind per round, each in a process of its own (`driven.py`) and on an empty Redis.
What is compared is compared inside a round, so that a machine that gets slower or faster does no harm.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence

from contenders import MEMORY, Contender, contenders
from crawled import crawling
from program import Option, Workplace, run_from_command_line, workplace
from results import Cell, Measured, Report, Table

PARTS = {"time": ("new", "known", "dequeue"), "memory": ("fingerprint", "pending")}

TIME_TITLE = "Processor time of the worker per request, in microseconds"
RATIO_TITLE = "Processor time against Scrapy's memory scheduler"
MEMORY_TITLE = "Resident memory of the worker, in bytes"

Figures = dict[str, dict[str, list[float]]]
"""By scheduler and measure, one figure per round."""


def measure_once(place: Workplace, part: str, contender: Contender, options: argparse.Namespace) -> Mapping[str, float]:
    """Measure one scheduler once."""
    place.clear()
    directory = place.new_folder()
    settings = {**contender.settings_in(directory), "LOGSTATS_INTERVAL": 0}
    words = ("--requests", str(options.requests), "--hosts", str(options.hosts))
    with crawling(part, settings, directory, *words, script="driven.py") as process:
        return process.figures()


def measure(place: Workplace, schedulers: Sequence[Contender], options: argparse.Namespace) -> Figures:
    """Run the rounds and return all figures."""
    found: Figures = {one.name: {} for one in schedulers}
    rounds = {"time": options.rounds, "memory": 0 if options.quick else max(1, options.rounds // 3)}
    for part, measures in PARTS.items():
        for number in range(rounds[part]):
            for scheduler in schedulers:
                figures = measure_once(place, part, scheduler, options)
                words = ", ".join(f"{measure} {figures[measure]:.1f}" for measure in measures)
                print(f"{part} {number + 1}  {scheduler.name:22}  {words}", file=sys.stderr, flush=True)
                for measure in measures:
                    found[scheduler.name].setdefault(measure, []).append(figures[measure])
    return found


def tables_of(found: Figures, options: argparse.Namespace) -> Sequence[Table]:
    """Return the tables: times, their ratios, and memory but in the short form, whose few requests are lost in it."""
    base = found[MEMORY]
    times: list[list[Cell]] = []
    ratios: list[list[Cell]] = []
    memory: list[list[Cell]] = []
    for name, figures in found.items():
        times.append([name, *(Measured(figures[measure], 1) for measure in PARTS["time"])])
        ratios.append([name, *(Measured(_ratios(figures[one], base[one])) for one in PARTS["time"])])
        if not options.quick:
            memory.append([name, *(Measured(figures[measure], 0) for measure in PARTS["memory"])])
    columns = ["scheduler", "enqueue, new", "enqueue, known here", "dequeue and done"]
    what = f"{options.requests:,} requests on {options.hosts} hosts, as one page of 20 links after the other."
    note = (
        "Known here: the same request again, in another object."
        " Dequeue and done: from asking for a request until it is acknowledged, 16 at a time."
    )
    tables = [
        Table(TIME_TITLE, columns, times, f"{what} {note}"),
        Table(RATIO_TITLE, columns, ratios, "Ratios are to Scrapy's scheduler in memory in the same round."),
    ]
    if memory:
        note = (
            "Growth of resident memory. Fingerprint: memory that stays when a request is done, including local caches."
        )
        tables.append(Table(MEMORY_TITLE, ["scheduler", "fingerprint", "pending request"], memory, note))
    return tables


def _ratios(values: Sequence[float], base: Sequence[float]) -> Sequence[float]:
    return [value / other for value, other in zip(values, base, strict=True)]


OPTIONS = (
    Option("--requests", 40_000, "of each run", quick=10_000),
    Option("--hosts", 1, "that the requests go to in turn"),
    Option("--rounds", 7, "how often each is run; for memory fewer, or not at all if quick", quick=3),
    Option("--only", [], "those with this in their name"),
)


def run_benchmark(options: argparse.Namespace) -> None:
    """Start what it takes, run the rounds and print the report."""
    with workplace() as place:
        report = Report.begin("scheduler", options, place.server)
        # The far ones are left out: waiting costs no processor time.
        near = [one for one in contenders(place.server.url, "", "far") if "far" not in one.name]
        wanted = [one for one in near if one.is_wanted(options.only)]
        report.add(*tables_of(measure(place, wanted, options), options))


if __name__ == "__main__":
    sys.exit(run_from_command_line(run_benchmark, __doc__, *OPTIONS))
