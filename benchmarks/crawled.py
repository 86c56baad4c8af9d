"""Crawls as processes: how one is started, and what it reports at its end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from processes import HERE, BenchmarkFailed
from website import VISITS

CRAWL_WITHIN_S = 300.0

COMMON_SETTINGS: Mapping[str, Any] = {
    "CONCURRENT_REQUESTS": 16,
    "CONCURRENT_REQUESTS_PER_DOMAIN": 16,
    "LOG_LEVEL": "WARNING",
    "ROBOTSTXT_OBEY": False,
    "TELNETCONSOLE_ENABLED": False,
    "CLOSESPIDER_TIMEOUT": CRAWL_WITHIN_S - 30,
}
"""Settings of all crawls; apart from them all have Scrapy's defaults."""


@dataclass(frozen=True, slots=True)
class CrawlResult:
    """What one crawl measured of itself.

    Args:
        reason: why the spider was closed; "finished" if all is well.
        pages: how many callbacks ran.
        wall_s: seconds from `spider_opened` to `spider_closed`.
        cpu_s: seconds of processor time in between, all threads.
        stats: Scrapy's stats as far as they are integers.
        timer: (monotonic time, seconds late) of each firing of the watched timer.
        process_s: seconds from the start of the process to its end.
    """

    reason: str
    pages: int
    wall_s: float
    cpu_s: float
    stats: Mapping[str, int]
    timer: Sequence[tuple[float, float]] = ()
    process_s: float = field(default=0.0)


class CrawlProcess:
    """A crawl that runs.

    Args:
        url: the front page, or what comes before the number of each of ``--starts``.
        settings: in addition to `COMMON_SETTINGS`.
        directory: for its log and its result.
        options: further arguments of the program.
        script: the program; its own first argument is in place of the URL.
    """

    def __init__(
        self, url: str, settings: Mapping[str, Any], directory: Path, *options: str, script: str = "spider.py"
    ) -> None:
        self._result = directory / "result.json"
        self._log = directory / "crawl.log"
        self._started_s = time.monotonic()
        words = json.dumps({**COMMON_SETTINGS, **settings})
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, HERE / script, url, self._result, "--settings", words, *options],
                env={**os.environ, "PYTHONHASHSEED": "0"},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C is for the benchmark, which then kills this
            )

    @property
    def is_running(self) -> bool:
        """Whether it has not ended."""
        return self._process.poll() is None

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def result(self) -> CrawlResult:
        """Wait for the end and return what was measured; see `figures`."""
        figures = self.figures()
        return CrawlResult(**{**figures, "process_s": time.monotonic() - self._started_s})

    def figures(self) -> dict[str, Any]:
        """Wait for the end and return what the program has written.

        Raises:
            BenchmarkFailed: it failed or takes too long; the message ends with its log.
        """
        try:
            code = self._process.wait(CRAWL_WITHIN_S)
        except subprocess.TimeoutExpired:
            raise BenchmarkFailed(f"the crawl takes more than {CRAWL_WITHIN_S:g} s\n{self.log}") from None
        if code or not self._result.exists():
            raise BenchmarkFailed(f"the crawl ended with code {code}\n{self.log}")
        figures: dict[str, Any] = json.loads(self._result.read_bytes())
        return figures

    @property
    def log(self) -> str:
        """What it has printed."""
        return self._log.read_text(errors="replace")

    def kill(self) -> None:
        """End it at once; nothing happens if it has ended."""
        self._process.kill()
        self._process.wait()


@contextmanager
def crawling(
    url: str, settings: Mapping[str, Any], directory: Path, *options: str, script: str = "spider.py"
) -> Iterator[CrawlProcess]:
    """Start a crawl, see `CrawlProcess`; it is killed if it still runs at the end of the ``with`` block."""
    directory.mkdir(parents=True)
    process = CrawlProcess(url, settings, directory, *options, script=script)
    try:
        yield process
    finally:
        process.kill()


def visits_of(url: str) -> tuple[int, int]:
    """Return how many requests the site at that address has answered, and how many different pages among them."""
    visits = _visits(url)
    return int(visits["fetched"]), int(visits["different"])


def site_cpu_s(url: str) -> float:
    """Return the seconds of processor time that the site at that address has taken so far."""
    return _visits(url)["cpu_s"]


def _visits(url: str) -> Mapping[str, float]:
    with urllib.request.urlopen(url + VISITS, timeout=10) as answer:
        found: Mapping[str, float] = json.load(answer)
    return found
