"""Crawl the shop while everything goes wrong: workers and Redis are killed, stopped, filled, cut off, over and over.

Each kind of fault has a crawl of its own, and in further crawls all kinds happen together, until the time is up. Every
crawl is judged from outside, by the site's log and the items on disk, and Redis must hold nothing afterwards.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

from processes import BenchmarkFailed
from program import run_as_program
from results import markdown
from shop_chaos.crawl import ChaosCrawl, Outcome, Plan
from shop_chaos.faults import FAULTS, LEASE_TTL_S

SHOWN_AT_MOST = 20


def plans(options: argparse.Namespace) -> Iterator[tuple[str, Plan]]:
    """Yield a crawl for each kind of fault, then crawls with all of them until the time is up, at least one."""
    ends_at = time.monotonic() + options.seconds
    if not options.mixed:
        for name in options.faults:
            yield name, plan(options, name, [name])
    number = 1
    while number == 1 or time.monotonic() < ends_at:
        yield f"together, {number}", plan(options, f"together-{number}", options.faults)
        number += 1


def plan(options: argparse.Namespace, name: str, faults: Sequence[str]) -> Plan:
    """Return what is to happen to one crawl; the seed of the program and the name decide what is drawn."""
    return Plan(
        faults=faults,
        seed=f"{options.seed}/{name}",
        storm_s=options.storm,
        workers=options.workers,
        products=options.products,
        appendfsync=options.appendfsync,
    )


def report(outcomes: Sequence[tuple[str, Outcome]]) -> str:
    """Return the table."""
    rows = [_row(name, [outcome]) for name, outcome in outcomes]
    rows.append(_row("all crawls", [outcome for _, outcome in outcomes]))
    columns = [
        "faults",
        "how often",
        "pages",
        "lost",
        "repeated",
        "left",
        "kills",
        "taken back, s",
        "leased again, s",
        "s",
    ]
    return markdown(columns, rows)


def _row(name: str, outcomes: Sequence[Outcome]) -> Sequence[str]:
    deaths = [death for outcome in outcomes for death in outcome.deaths if death.held]
    lost = sum(len(outcome.tally.lost) + len(outcome.tally.without_item) for outcome in outcomes)
    return [
        name,
        str(sum(outcome.faults.total() for outcome in outcomes)),
        str(sum(outcome.pages for outcome in outcomes)),
        str(lost),
        str(sum(sum(outcome.tally.repeated.values()) for outcome in outcomes)),
        str(sum(len(outcome.left) for outcome in outcomes)),
        str(len(deaths)),
        _longest([death.back_s for death in deaths]),
        _longest([death.again_s for death in deaths]),
        f"{sum(outcome.seconds for outcome in outcomes):.0f}",
    ]


def _longest(times: Sequence[float | None]) -> str:
    known = [seconds for seconds in times if seconds is not None]
    return f"{max(known):.1f}" if known else "-"


def parse_options() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--seconds", type=float, default=300, help="no further crawl is begun after so long")
    parser.add_argument("--storm", type=float, default=40, help="seconds after which nothing goes wrong in a crawl")
    parser.add_argument("--seed", type=int, default=random.randrange(10_000), help="draws the faults and their moments")
    parser.add_argument("--faults", default=",".join(FAULTS), help="those that happen")
    parser.add_argument("--mixed", action="store_true", help="only crawls with all these faults together")
    parser.add_argument("--workers", type=int, default=4, help="how many at a time")
    parser.add_argument("--products", type=int, default=800, help="size of the shop")
    parser.add_argument(
        "--appendfsync",
        choices=("everysec", "always"),
        default="everysec",
        help="how Redis writes; with everysec a killed server has forgotten its last second",
    )
    parser.add_argument("--keep", type=Path, help="new directory for all logs, else they are thrown away")
    options = parser.parse_args()
    options.faults = options.faults.split(",")
    unknown = set(options.faults) - set(FAULTS)
    if unknown:
        parser.error(f"no such fault: {', '.join(sorted(unknown))}")
    if options.keep and options.keep.exists():
        parser.error(f"{options.keep} exists, and may hold the logs of another run")
    return options


def run_benchmark(options: argparse.Namespace) -> None:
    """Run all crawls and print the table.

    Raises:
        BenchmarkFailed: something is not as it should be.
    """
    print(f"seed {options.seed}, {options.workers} workers, appendfsync {options.appendfsync}", flush=True)
    outcomes: list[tuple[str, Outcome]] = []
    with ExitStack() as stack:
        directory = options.keep or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="prioqueue-chaos-")))
        for name, each in plans(options):
            outcome = ChaosCrawl(directory.resolve() / each.seed.replace("/", "-"), each).run()
            outcomes.append((name, outcome))
            print(f"{name}: {_verdict(outcome)}", file=sys.stderr, flush=True)
    print(f"\n{report(outcomes)}\n")
    print(f"Times are the longest; PRIOQUEUE_LEASE_TTL is {LEASE_TTL_S:g} s.")
    replaced = sum(outcome.replaced for _, outcome in outcomes)
    print(f"{replaced} workers found no way to Redis at their start, and were started again.")
    if any(outcome.complaints for _, outcome in outcomes):
        raise BenchmarkFailed(f"seed {options.seed}: this is not how it should be")


def _verdict(outcome: Outcome) -> str:
    complaints = outcome.complaints
    if not complaints:
        return f"well after {outcome.seconds:.0f} s"
    more = [f"and {len(complaints) - SHOWN_AT_MOST} more"] if len(complaints) > SHOWN_AT_MOST else []
    return "\n  ".join(["not as it should be", *complaints[:SHOWN_AT_MOST], *more])


if __name__ == "__main__":
    sys.exit(run_as_program(lambda: run_benchmark(parse_options())))
