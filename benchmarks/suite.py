"""Run the benchmarks one after the other, keep their results, and write the pages and drawings from them.

The full form keeps results in ``benchmarks/results/`` and writes ``docs/``; what is not run keeps its last results. The
short form keeps and writes everything in ``build/benchmarks/``, since its numbers are too rough to be quoted.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from drawings import DRAWINGS
from page import PLOTS, REPOSITORY, RESULTS, Library, Parts, write_pages
from plots import can_draw, draw_all
from processes import HERE, BenchmarkFailed
from program import run_as_program
from results import markdown
from sizing import SIZING

PARTS = Parts(SIZING, {plot.name: plot.source for plot in DRAWINGS})
"""Of the pages."""

WITHIN_S = 3600.0
"""Seconds after which a benchmark is stopped."""

QUICK_FOLDER = REPOSITORY / "build" / "benchmarks"


@dataclass(frozen=True, slots=True)
class Benchmark:
    """A program of this folder.

    Args:
        name: of the program, without ``.py``, and of its results.
        quick: further arguments of the short form.
    """

    name: str
    quick: Sequence[str] = ()


SUITE = (
    Benchmark("crawl", quick=("--only", "near", "--only", "disk")),
    Benchmark("workers"),
    Benchmark("scheduler", quick=("--rounds", "1", "--only", "near")),
    Benchmark("frontier"),
    Benchmark("fleet"),
    Benchmark("reconnects"),
    Benchmark("traffic"),
    Benchmark("flat", quick=("--sizes", "10000/500", "100000/500", "--no-verbs")),
    Benchmark("seen"),
    Benchmark("pending", quick=("--requests", "5000", "--rounds", "1")),
    Benchmark("reactor"),
    Benchmark("politeness", quick=("--seconds", "5", "--real", "0")),
    Benchmark("fairness", quick=("--urgent", "30")),
    Benchmark("backpressure", quick=("--only", "simulated")),
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a benchmark went.

    Args:
        code: of its exit, None if it took too long.
    """

    name: str
    code: int | None
    seconds: float

    @property
    def in_words(self) -> str:
        """What is printed of it."""
        return "took too long" if self.code is None else f"failed with code {self.code}" if self.code else "done"


def chosen(names: Sequence[str]) -> Sequence[Benchmark]:
    """Return the benchmarks of these names, all of them for none.

    Raises:
        BenchmarkFailed: a name is not known.
    """
    known = {one.name: one for one in SUITE}
    unknown = [name for name in names if name not in known]
    if unknown:
        raise BenchmarkFailed(f"no benchmark {', '.join(unknown)}; there are {', '.join(known)}")
    return [one for one in known.values() if not names or one.name in names]


def run_one(benchmark: Benchmark, results: Path, *, is_quick: bool) -> Outcome:
    """Run a benchmark in a process of its own; what it prints is shown."""
    words = ["--json", str(results / f"{benchmark.name}.json"), *(["--quick", *benchmark.quick] if is_quick else [])]
    print(f"\n## {benchmark.name}\n", flush=True)
    began_s = time.monotonic()
    process = subprocess.Popen([sys.executable, HERE / f"{benchmark.name}.py", *words], stdin=subprocess.DEVNULL)
    try:
        code: int | None = process.wait(WITHIN_S)
    except subprocess.TimeoutExpired:
        code = None
    finally:
        if process.poll() is None:
            # It stops what it has started; Ctrl-C has reached it already, as part of this program's group.
            process.terminate()
            process.wait()
    return Outcome(benchmark.name, code, time.monotonic() - began_s)


def write(results: Path, docs: Path) -> None:
    """Write pages and drawings from all results that there are."""
    library = Library.read(results)
    docs.mkdir(parents=True, exist_ok=True)
    write_pages(library, docs, PARTS)
    if not can_draw():
        print("matplotlib is not installed (pip install 'scrapy-prioqueue[bench]'), so nothing was drawn.")
        return
    for path in draw_all(DRAWINGS, library, docs / PLOTS):
        print(f"{path.relative_to(REPOSITORY)}: {path.stat().st_size / 1000:.0f} kB")


def parse_options() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("only", nargs="*", help="those to run, all if none is given")
    parser.add_argument("--quick", action="store_true", help="a short form, under three minutes in all")
    parser.add_argument("--write", action="store_true", help="run nothing, write from the results there are")
    return parser.parse_args()


def run_suite(options: argparse.Namespace) -> None:
    """Run what is asked for and write the pages.

    Raises:
        BenchmarkFailed: a benchmark did not succeed; the others were run.
    """
    results = QUICK_FOLDER / "results" if options.quick else RESULTS
    docs = QUICK_FOLDER if options.quick else REPOSITORY / "docs"
    wanted = [] if options.write else chosen(options.only)
    outcomes = [run_one(one, results, is_quick=options.quick) for one in wanted]
    write(results, docs)
    if outcomes:
        rows = [[one.name, f"{one.seconds:.0f}", one.in_words] for one in outcomes]
        print(f"\n{markdown(['benchmark', 'seconds', ''], rows)}")
    failed = [one.name for one in outcomes if one.code != 0]
    if failed:
        raise BenchmarkFailed(f"\nnot measured: {', '.join(failed)}")


if __name__ == "__main__":
    sys.exit(run_as_program(lambda: run_suite(parse_options())))
