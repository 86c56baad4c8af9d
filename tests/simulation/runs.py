"""Runs many schedules; a failure is reported with its seed and the command that replays it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from tests.simulation.ledger import Violation
from tests.simulation.schedule import Options, Schedule, run_schedule
from tests.simulation.server import RealServer

T = TypeVar("T")

REAL_DEADLINE_S = 300.0


def first_failure(seeds: Iterable[int], real: RealServer, options: Options | None = None) -> str | None:
    """Run the schedules of these seeds until one fails; return what to say about it, None if all pass."""
    for seed in seeds:
        try:
            run_schedule(seed, real, options)
        except Violation as violation:
            return told(seed, violation)
    return None


def told(seed: int, violation: Violation) -> str:
    """Return a failure's description."""
    return f"seed {seed}: {violation}\nreplay it: PYTHONPATH=example_project python -m tests.simulation --replay {seed}"


def trace_of(seed: int, real: RealServer, options: Options | None = None) -> tuple[list[str], str | None]:
    """Return all that happened in the schedule of a seed, and why it failed if it did."""
    try:
        schedule = run_schedule(seed, real, options)
        failure = None
    except Violation as violation:
        assert isinstance(violation.schedule, Schedule)
        schedule = violation.schedule
        failure = str(violation)
    lines = [" ".join([f"{at:10.4f}", *map(str, event)]) for at, *event in schedule.server.trace]
    return lines, failure


def in_a_thread(run: Callable[[], T]) -> T:
    """Run in another thread, since the tests' own runs the reactor's loop."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(run).result(REAL_DEADLINE_S)
