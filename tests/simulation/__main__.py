"""The simulation from the command line: a soak over many seeds, or the replay of one.

::

    python -m tests.simulation --seeds 1000000 --first 150     stops at the first seed that fails
    python -m tests.simulation --replay 4711                   prints all that happens in one schedule

`example_project` has to be on the path (``PYTHONPATH=example_project``); `make soak` sees to it.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait

from tests.simulation.runs import first_failure, trace_of
from tests.simulation.schedule import Options
from tests.simulation.servers import real_server

SEEDS_PER_PIECE = 500


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what the arguments say; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=1000, help="how many schedules to run (default 1000)")
    parser.add_argument("--first", type=int, default=0, help="seed of the first one (default 0)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes, each with its own server")
    parser.add_argument("--replay", type=int, metavar="SEED", help="run one schedule and print its trace")
    chosen = parser.parse_args(arguments)
    options = Options()
    if chosen.replay is not None:
        return replay(chosen.replay, options)
    return soak(range(chosen.first, chosen.first + chosen.seeds), options, chosen.jobs)


def replay(seed: int, options: Options) -> int:
    """Print the trace of a schedule."""
    with real_server() as real:
        lines, failure = trace_of(seed, real, options)
    print(*lines, sep="\n")
    print(f"seed {seed}: {failure or 'passed'}")
    return failure is not None


def soak(seeds: range, options: Options, jobs: int) -> int:
    """Run the schedules of these seeds, pieces of them side by side, until one fails."""
    pieces = [seeds[at : at + SEEDS_PER_PIECE] for at in range(0, len(seeds), SEEDS_PER_PIECE)]
    started = time.monotonic()
    passed = 0
    with ProcessPoolExecutor(jobs) as pool:
        running: dict[Future[str | None], range] = {}
        while pieces or running:
            while pieces and len(running) < jobs:
                piece = pieces.pop(0)
                running[pool.submit(run_piece, piece, options)] = piece
            done, _ = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                failure = future.result()
                passed += len(running.pop(future))
                if failure is not None:
                    print(failure)
                    return 1
            print(f"{passed} of {len(seeds)} schedules passed in {time.monotonic() - started:.0f} s", flush=True)
    return 0


def run_piece(seeds: range, options: Options) -> str | None:
    """Run some schedules on a server of their own; return what to say of the first that fails."""
    with real_server() as real:
        return first_failure(seeds, real, options)


if __name__ == "__main__":
    sys.exit(main())
