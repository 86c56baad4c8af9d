"""The example shop in fault tests: site and workers as processes, and checks from outside."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any

from ledger import Ledger
from shop_chaos.crawl import TROUBLE
from shop_chaos.fleet import CLOSED
from shop_chaos.view import FrontierView, Lease
from shop_site.records import Visit
from summary import NO_KILL, Crawl, Tally, judge

from tests.support.forks import Fork, Program, StartFork
from tests.support.processes import ChildProcess, StartProcess
from tests.support.scrapy_command import PROJECT, main
from tests.support.servers import RedisServer
from tests.support.waiting import wait_until

WITHIN_S = 60.0
"""Seconds that a crawl, or what is left of one, may take on a busy machine."""

CONCURRENT_REQUESTS = 16

REPOSITORY = Path(__file__).resolve().parents[2]


class Worker:
    """A process of ``scrapy crawl``.

    Args:
        name: its worker id.
        process: made for it.
    """

    def __init__(self, name: str, process: Fork) -> None:
        self.name = name
        self.process = process

    def send(self, number: signal.Signals) -> None:
        """Send a signal."""
        self.process.send(number)

    def has_logged(self, text: str) -> bool:
        """Return whether its log contains a text."""
        return text in self.process.log

    def wait_for(self, text: str) -> None:
        """Wait until its log holds a text."""
        wait_until(lambda: self.has_logged(text), what=f"{self.name} logs {text!r}", within=WITHIN_S)

    @property
    def reason(self) -> str | None:
        """Why its spider was closed; None if it was not."""
        found = CLOSED.search(self.process.log)
        return found and found[1]

    def stat(self, name: str) -> int:
        """Return one of the numbers that Scrapy logs at the end."""
        found = re.search(rf"'{re.escape(name)}': (\d+)", self.process.log)
        return int(found[1]) if found else 0

    def ends(self, reason: str = "finished", *, expects: str = "") -> None:
        """Wait for its end, for that reason and without an error in its log.

        Args:
            reason: why its spider is closed.
            expects: text of an error that may be there.
        """
        exit_code = self.process.wait(within=WITHIN_S)
        lines = self.process.log.splitlines()
        troubles = [line for line in lines if TROUBLE.search(line) and not (expects and expects in line)]
        assert (troubles, exit_code, self.reason) == ([], 0, reason), self.name


class Shop:
    """A shop that is open, and the crawl of it; the site's log and the pipelines' files are the ledger.

    Args:
        directory: for its log and the items.
        start_process: starts the site.
        start_fork: starts workers.
        server: holds the frontier.
        frontier_name: of this test.
        options: of ``python -m shop_site``.
    """

    def __init__(
        self,
        directory: Path,
        start_process: StartProcess,
        start_fork: StartFork,
        server: RedisServer,
        frontier_name: str,
        **options: float | str,
    ) -> None:
        self.server = server
        self._ledger = Ledger(directory)
        self.frontier = FrontierView(server.client(), frontier_name)
        self._frontier_name = frontier_name
        self._directory = directory
        self._orders = count(1)
        self._start_process, self._start_fork = start_process, start_fork
        self._lost: set[Lease] = set()
        self._open(**options)
        self.page_list = self._ledger.page_list
        self.pages = self._ledger.pages

    def start(
        self,
        worker: str,
        settings: Mapping[str, Any] | None = None,
        *,
        spider: str = "shop",
        program: Program = main,
    ) -> Worker:
        """Start a worker.

        Args:
            worker: its id.
            settings: above those that all workers have.
            spider: what it runs; see `tests.faults.components`.
            program: runs the command.
        """
        options = {
            "SHOP_URL": self.pages[0].url,
            "SHOP_ITEMS": self._ledger.items_directory,
            "SPIDER_MODULES": "shop.spiders,tests.faults.components",
            "CONCURRENT_REQUESTS": CONCURRENT_REQUESTS,
            "CONCURRENT_REQUESTS_PER_DOMAIN": CONCURRENT_REQUESTS,
            "CONCURRENT_ITEMS": 4,
            "DOWNLOAD_DELAY": 0,
            "PRIOQUEUE_NAME": self._frontier_name,
            "PRIOQUEUE_REDIS_URL": self.server.url,
            "PRIOQUEUE_FALLBACK": "error",
            "PRIOQUEUE_WORKER_ID": worker,
            "PRIOQUEUE_CRAWL_ID": "the crawl",  # one that comes when all is done must not begin again
            "PRIOQUEUE_LEASE_TTL": 30,
            **(settings or {}),
        }
        words = [word for name, value in options.items() for word in ("-s", f"{name}={value}")]
        order = self._directory / f"order-{next(self._orders)}.json"
        order.write_text(json.dumps(["crawl", spider, *words]))
        return Worker(worker, self._start_fork(program, order))

    def kill(self, worker: Worker) -> set[Lease]:
        """End a worker with SIGKILL and return what it held; no more than that may be fetched again."""
        worker.process.kill()
        held = self.frontier.leases(worker.name)
        self._lost |= held
        return held

    @property
    def fetched(self) -> int:
        """How many pages have been answered to the end."""
        return self._ledger.fetched

    def wait_until_fetched(self, pages: float) -> None:
        """Wait for a number of pages, or a share of them if it is below 1."""
        wanted = pages * len(self.pages) if pages < 1 else pages
        wait_until(lambda: self.fetched >= wanted, what=f"{wanted:.0f} pages are fetched", within=WITHIN_S)

    @property
    def visits(self) -> Sequence[Visit]:
        """What the site has seen, without the questions for robots.txt."""
        return [visit for visit in self._ledger.visits if visit.path != "/robots.txt"]

    def judge(self) -> Tally:
        """Compare the ledger with the site's list of its pages."""
        return judge(Crawl(self.pages, self.visits, self._ledger.items, NO_KILL, started_s=0, ended_s=0))

    def check_complete(self, *, repeated_at_most: int | None = None) -> None:
        """Check that nothing is missing, and that no more was repeated than what the killed workers held.

        Args:
            repeated_at_most: pages that may have been fetched again instead.
        """
        tally, bound = self.judge(), len(self._lost) if repeated_at_most is None else repeated_at_most
        repeated = sum(tally.repeated.values())
        print(f"{len(self.pages)} pages, {repeated} fetched again, at most {bound} expected")
        assert (tally.lost, tally.strays, tally.without_item) == ([], [], [])
        assert repeated <= bound, tally.repeated

    def _open(self, **options: float | str) -> None:
        self._run(*self._ledger.site_command(**options))
        wait_until(self._ledger.page_list.exists, what="the shop is open", within=WITHIN_S)

    def _run(self, *words: str) -> ChildProcess:
        path = os.pathsep.join(filter(None, (str(REPOSITORY), os.environ.get("PYTHONPATH"))))
        command = [sys.executable, *words]
        return self._start_process(command, env={**os.environ, "PYTHONPATH": path}, cwd=PROJECT)


def let_pass(seconds: float) -> None:
    """Wait for a moment that nothing marks, such as one drawn by lot."""
    end = time.monotonic() + seconds
    wait_until(lambda: time.monotonic() >= end, what=f"{seconds} s have passed", within=seconds + 10)
