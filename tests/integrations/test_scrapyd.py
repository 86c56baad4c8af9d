"""scrapyd: each job of a deployed project is a worker."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from urllib.request import urlopen

import pytest
from shop_chaos.view import FrontierView

from tests.integrations.bookshop import WITHIN_S, Bookshop, check_nothing_is_lost, wait_until_both_are_busy
from tests.support.crawls import TROUBLE
from tests.support.processes import StartProcess
from tests.support.servers import RedisServer
from tests.support.waiting import wait_until

PROJECT = Path(__file__).parent / "deployed"
CONFIGURATION = """
[scrapyd]
http_port = {port}
max_proc = 2
poll_interval = 0.1
items_dir = items
"""
TARGET = """
[settings]
default = books.settings

[deploy]
url = {url}
project = books
"""


class Scrapyd:
    """A scrapyd with the project deployed.

    Args:
        folder: for its files.
        start_process: starts it.
    """

    def __init__(self, folder: Path, start_process: StartProcess) -> None:
        self._folder = folder / "scrapyd"
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        self._url = f"http://127.0.0.1:{port}/"
        self._folder.mkdir()
        (self._folder / "scrapyd.conf").write_text(CONFIGURATION.format(port=port))
        start_process([sys.executable, "-m", "scrapyd"], cwd=self._folder)
        wait_until(self._answers, what="scrapyd answers", within=WITHIN_S)
        project = shutil.copytree(PROJECT, folder / "project")
        (project / "scrapy.cfg").write_text(TARGET.format(url=self._url))
        subprocess.run([Path(sys.executable).with_name("scrapyd-deploy")], cwd=project, check=True)

    def schedule(self, spider: str, settings: dict[str, Any], **arguments: str) -> str:
        """Start a job and return its id."""
        pairs = [("setting", f"{name}={value}") for name, value in settings.items()]
        order = [("project", "books"), ("spider", spider), *pairs, *arguments.items()]
        return str(self._ask("schedule.json", urlencode(order).encode())["jobid"])

    def jobs(self, state: str) -> dict[str, Any]:
        """Return the jobs in that state, by id."""
        return {job["id"]: job for job in self._ask("listjobs.json")[state]}

    def read(self, kind: str, job: str) -> str:
        """Return the log ("logs") or the items of a job; the file of items is made with the first one."""
        return "".join(path.read_text() for path in self._folder.glob(f"{kind}/books/books/{job}.*"))

    def _answers(self) -> bool:
        try:
            return bool(self._ask("daemonstatus.json"))
        except OSError:
            return False

    def _ask(self, service: str, data: bytes | None = None) -> Any:
        with urlopen(self._url + service, data, timeout=WITHIN_S) as answer:
            return json.load(answer)


@pytest.fixture
def scrapyd(tmp_path: Path, start_process: StartProcess) -> Scrapyd:
    """A scrapyd with the project deployed."""
    return Scrapyd(tmp_path, start_process)


def test_jobs_share_a_crawl_that_survives_a_kill(
    scrapyd: Scrapyd, shop: Bookshop, redis_server: RedisServer, frontier_name: str
) -> None:
    settings = {"PRIOQUEUE_REDIS_URL": redis_server.url, "PRIOQUEUE_NAME": frontier_name}
    victim, other = (scrapyd.schedule("books", settings, site=shop.site.url()) for _ in range(2))
    wait_until_both_are_busy(shop)

    os.kill(scrapyd.jobs("running")[victim]["pid"], signal.SIGKILL)
    shop.gate.set()
    wait_until(lambda: {victim, other} <= set(scrapyd.jobs("finished")), what="both jobs end", within=WITHIN_S)

    items = [json.loads(line) for job in (victim, other) for line in scrapyd.read("items", job).splitlines()]
    check_nothing_is_lost(shop, items, FrontierView(redis_server.client(), frontier_name))
    assert not TROUBLE.search(scrapyd.read("logs", other))
