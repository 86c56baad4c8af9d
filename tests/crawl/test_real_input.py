"""Two workers crawl real pages and fetch the same pages as Scrapy's own scheduler."""

from __future__ import annotations

import os
import re
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.crawl import reader
from tests.support.documentation import find_documentation
from tests.support.processes import ChildProcess, StartProcess
from tests.support.servers import RedisServer
from tests.support.waiting import wait_until

WITHIN_S = 100.0
WORKERS = 2
PAGES = 150
"""About so many of a large site are fetched."""

SETTINGS = {"ROBOTSTXT_OBEY": False, "TELNETCONSOLE_ENABLED": False, "LOG_LEVEL": "INFO", "DOWNLOAD_DELAY": 0,
            "CONCURRENT_REQUESTS_PER_DOMAIN": 16, "CONCURRENT_ITEMS": 4}  # fmt: skip


class Site:
    """A folder that Python's own server serves; its log is the ledger.

    Args:
        folder: of the pages.
        start_process: starts the server and the crawls.
    """

    def __init__(self, folder: Path, start_process: StartProcess) -> None:
        self._start_process = start_process
        self._one_in = max(1, len(list(folder.rglob("*.html"))) // PAGES)
        command: list[str | Path] = [
            sys.executable,
            "-u",
            "-m",
            "http.server",
            "--bind",
            "127.0.0.1",
            "--directory",
            folder,
            "0",
        ]
        self._server = start_process(command)
        serving = re.compile(r"\((http://.*?/)\)")
        self._root = wait_until(lambda: serving.findall(self._server.log), what="the site is open", within=WITHIN_S)[0]

    def start_crawl(self, folder: Path, **settings: Any) -> ChildProcess:
        """Start a process that crawls the site."""
        options = [word for name, value in {**SETTINGS, **settings}.items() for word in ("-s", f"{name}={value}")]
        arguments = ["-a", f"root={self._root}", "-a", f"one_in={self._one_in}"]
        command = [sys.executable, "-m", "scrapy", "runspider", reader.__file__, *arguments, *options]
        path = os.pathsep.join(filter(None, (str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH"))))
        return self._start_process(command, env={**os.environ, "PYTHONPATH": path}, cwd=folder)

    @property
    def fetched(self) -> Counter[str]:
        """How often each path was asked for."""
        return Counter(re.findall(r'"GET (\S+) HTTP', self._server.log))


@pytest.fixture
def documentation_cache(request: pytest.FixtureRequest) -> Path:
    """A folder that stays for the next run, beside what pytest itself remembers."""
    return request.config.cache.mkdir("documentation")


@pytest.mark.timeout(300)
def test_two_workers_fetch_what_scrapys_scheduler_fetches_of_a_real_site(
    documentation_cache: Path,
    redis_server: RedisServer,
    start_process: StartProcess,
    frontier_name: str,
    tmp_path: Path,
) -> None:
    documentation = find_documentation(documentation_cache)
    theirs, ours = (Site(documentation, start_process) for _ in range(2))

    alone = theirs.start_crawl(tmp_path)
    assert alone.wait(within=WITHIN_S) == 0
    settings = {
        "SCHEDULER": "scrapy_prioqueue.Scheduler",
        "PRIOQUEUE_REDIS_URL": redis_server.url,
        "PRIOQUEUE_FALLBACK": "error",
        "PRIOQUEUE_NAME": frontier_name,
        "PRIOQUEUE_CRAWL_ID": "the crawl",
    }
    workers = [ours.start_crawl(tmp_path, **settings) for _ in range(WORKERS)]
    for worker in workers:
        assert worker.wait(within=WITHIN_S) == 0
        assert "Spider closed (finished)" in worker.log

    print(f"{documentation}: {len(theirs.fetched)} pages")
    assert len(theirs.fetched) > 20
    assert ours.fetched == theirs.fetched
