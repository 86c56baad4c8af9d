#!/usr/bin/env python3
"""Run Scrapy's own tests with our scheduler and filter as the defaults, without a server and on one.

Usage: scripts/run_scrapy_tests.py CHECKOUT [--modes scrapy memory redis] [pytest argument]...

Run it with a Python that has scrapy-prioqueue and what Scrapy's tests need (`test-requirements` in Scrapy's tox.ini).
CHECKOUT is a folder with Scrapy's source and its `tests`, such as its unpacked sdist; that Scrapy is tested.
A test that fails with our scheduler, and is not in scrapy_tests/expected_failures.txt, makes the script fail.
Tests that also fail with Scrapy's own scheduler, such as those that need the internet, are not counted.
A test that fails is run once more, since many have short time limits.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "example_project"))

from redis_server import RedisServer  # noqa: E402 - found by the line above

EXPECTED = HERE / "scrapy_tests" / "expected_failures.txt"
URL_VARIABLE = "PRIOQUEUE_SCRAPY_TESTS_URL"

MODES = {
    "scrapy": "Scrapy's own scheduler",
    "memory": "ours, without a server",
    "redis": "ours, on a server",
}

PATTERNS = (
    "test_addons.py",
    "test_closespider.py",
    "test_cmdline*",
    "test_command*.py",
    "test_contracts.py",
    "test_core_*.py",
    "test_crawl*.py",
    "test_downloadermiddleware*.py",
    "test_downloaderslotssettings.py",
    "test_dupefilters.py",
    "test_engine*.py",
    "test_extension_*.py",
    "test_feedexport*.py",
    "test_logformatter.py",
    "test_logstats.py",
    "test_pipeline_crawl.py",
    "test_pipelines.py",
    "test_poet.py",
    "test_request_*.py",
    "test_scheduler*.py",
    "test_signal*.py",
    "test_spider*",
    "test_stats.py",
)
"""Tests of crawls, the engine, schedulers, spiders, signals, middlewares and commands."""


def main() -> int:
    """Run the tests in each mode; return 1 if one fails that should not."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", type=Path)
    parser.add_argument("--modes", nargs="+", choices=MODES, default=list(MODES))
    options, arguments = parser.parse_known_args()
    found: dict[str, dict[str, str | None]] = {}
    for mode in options.modes:
        print(f"== {MODES[mode]}", flush=True)
        with tempfile.TemporaryDirectory() as folder, server(mode, Path(folder)) as url:
            found[mode] = run(options.checkout, mode, url, Path(folder) / "results.xml", arguments)
    expected = read_expected()
    baseline = {test for test, why in found.get("scrapy", {}).items() if why is not None}
    unexpected = sum(report(mode, tests, baseline, expected.get(mode, {})) for mode, tests in found.items())
    return 1 if unexpected else 0


@contextmanager
def server(mode: str, folder: Path) -> Iterator[str | None]:
    """Start a server where the mode has one, and give its URL."""
    if mode != "redis":
        yield None
        return
    with RedisServer(folder / "redis", appendonly=True, appendfsync="no") as redis:
        yield redis.url


def run(checkout: Path, mode: str, url: str | None, results: Path, arguments: list[str]) -> dict[str, str | None]:
    """Run the tests in one mode; return all, with the message of each that failed."""
    environment = {name: value for name, value in os.environ.items() if name != URL_VARIABLE}
    paths = [str(checkout.resolve()), environment.get("PYTHONPATH", "")]
    if mode != "scrapy":
        paths.insert(0, str(HERE / "scrapy_tests"))
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    if url is not None:
        environment[URL_VARIABLE] = url
    tests = [argument for argument in arguments if argument.startswith("tests/")]
    if not tests:
        arguments = [*chosen(checkout), *arguments]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--no-header", "--tb=short"]
    command += [f"--junitxml={results}", "-o", "junit_family=xunit1", "--reruns=1", *arguments]
    subprocess.run(command, cwd=checkout, env=environment, check=False)
    return messages(results)


def chosen(checkout: Path) -> list[str]:
    """Return the test files that matter to a scheduler."""
    tests = checkout / "tests"
    found = {path for pattern in PATTERNS for path in tests.glob(pattern) if path.suffix == ".py" or path.is_dir()}
    return sorted(str(path.relative_to(checkout)) for path in found)


def messages(results: Path) -> dict[str, str | None]:
    """Return the tests of a JUnit file, with the first line of the message of each that failed."""
    found: dict[str, str | None] = {}
    for case in ElementTree.parse(results).getroot().iter("testcase"):
        problem = case.find("failure")
        if problem is None:
            problem = case.find("error")
        message = None if problem is None else (problem.get("message") or "").strip()
        found[test_id(case)] = message and message.splitlines()[0]
    return found


def test_id(case: ElementTree.Element) -> str:
    """Return the name of a test as pytest takes it."""
    file, names = case.get("file", ""), case.get("classname", "").split(".")
    classes = names[len(Path(file).with_suffix("").parts) :]
    return "::".join([file, *classes, case.get("name", "")])


def read_expected() -> dict[str, dict[str, str]]:
    """Return by mode the tests that can't pass, each with its reason."""
    expected: dict[str, dict[str, str]] = {"memory": {}, "redis": {}}
    for line in EXPECTED.read_text().splitlines():
        if not line or line.startswith("#"):
            continue
        where, test, reason = line.split(maxsplit=2)
        for mode in expected if where == "both" else (where,):
            expected[mode][test] = reason
    return expected


def report(mode: str, tests: dict[str, str | None], baseline: set[str], expected: dict[str, str]) -> int:
    """Print what failed in a mode; return how many tests should not have."""
    failed = {test: why for test, why in tests.items() if why is not None}
    is_own = mode == "scrapy"
    known = failed if is_own else {test: expected[test] for test in failed if test in expected}
    unexpected = {test: why for test, why in failed.items() if test not in {*known, *baseline}}
    print(f"\n== {MODES[mode]}: {len(tests)} tests, {len(failed)} failed, {len(unexpected)} of them unexpected")
    for test, why in sorted(unexpected.items()):
        print(f"UNEXPECTED: {test}: {why}")
    for test, why in sorted(known.items()):
        print(f"{'not counted' if is_own else 'expected'}: {test}: {why}")
    for test in sorted(expected.keys() & tests.keys() - failed.keys()):
        print(f"passes now, take it out of {EXPECTED.name}: {test}")
    return len(unexpected)


if __name__ == "__main__":
    sys.exit(main())
