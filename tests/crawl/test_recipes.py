"""The code in the documentation about logs, metrics and signals, in a project as a user would have it."""

from __future__ import annotations

import json
import os
import re
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

from tests.docs.markdown import DOCS, REPOSITORY, python_blocks
from tests.support.crawls import WITHIN_S
from tests.support.processes import ChildProcess, StartProcess
from tests.support.servers import RedisServer
from tests.support.site import Page, Site
from tests.support.waiting import wait_until

SPIDER = """
import scrapy

class Books(scrapy.Spider):
    name = "books"
    start_urls = [{start!r}]

    def parse(self, response):
        raise ValueError("the callback of a test fails")
"""
SETTINGS = """
SPIDER_MODULES = ["books.spiders"]
SCHEDULER = "scrapy_prioqueue.Scheduler"
PRIOQUEUE_REDIS_URL = {url!r}
EXTENSIONS = {{"books.alerts.Alerts": 500}}
"""

StartCommand = Callable[..., ChildProcess]


@pytest.fixture
def start_command(
    tmp_path: Path, start_process: StartProcess, site: Site, redis_server: RedisServer, frontier_name: str
) -> StartCommand:
    """Starts a command of Scrapy in a project that has all of that code."""
    formatter, middleware, json_settings = python_blocks(DOCS / "reference" / "logs.md")
    (metrics_settings,) = python_blocks(DOCS / "monitoring.md")
    (alerts,) = python_blocks(DOCS / "reference" / "signals.md")
    # The handlers of the example do nothing.
    alerts, count = re.subn(r"(def (\w+)\(.*\):) \.\.\.", r"\1 print('alert:', '\2', detail, spider.name)", alerts)
    assert count == 2
    settings = SETTINGS.format(url=redis_server.url) + f"PRIOQUEUE_NAME = {frontier_name!r}\n"
    files = {
        "scrapy.cfg": "[settings]\ndefault = books.settings\n",
        "books/__init__.py": "",
        "books/settings.py": settings + json_settings + metrics_settings,
        "books/spiders.py": SPIDER.format(start=site.url("/")),
        "books/jsonlog.py": formatter + middleware,
        "books/alerts.py": alerts,
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    env = {"PYTHONPATH": f"{tmp_path}:{REPOSITORY}", "PATH": os.environ["PATH"], "PYTHONUNBUFFERED": "1"}
    return lambda *words: start_process([sys.executable, "-m", "scrapy", *words], env=env, cwd=tmp_path)


def read_json(text: str) -> list[dict[str, Any]]:
    """Return the records of a log, all of which are JSON from the first one about the crawl on."""
    lines = text.splitlines()
    first = next(number for number, line in enumerate(lines) if '"prioqueue_event": "joined"' in line)
    return [json.loads(line) for line in lines[first:] if not line.startswith("alert: ")]


@pytest.mark.parametrize("words", [["crawl", "books"], ["runspider", "books/spiders.py", "--logfile", "crawl.log"]])
def test_code_of_the_documentation_works_in_a_project(
    start_command: StartCommand, site: Site, tmp_path: Path, words: list[str]
) -> None:
    gate = threading.Event()
    site.pages = {"/": Page(gate=gate)}
    command = start_command(*words)
    log = tmp_path / "crawl.log" if "--logfile" in words else command.log_path

    wait_until(lambda: site.count("/"), what="the page is asked for", within=WITHIN_S)
    (address,) = re.findall(r"The metrics of this worker are at http://0\.0\.0\.0:(\d+)/metrics", log.read_text())
    with urlopen(f"http://127.0.0.1:{address}/metrics") as answer:
        assert b"prioqueue_worker_pages_total" in answer.read()
    gate.set()
    assert command.wait(within=WITHIN_S) == 0

    records = read_json(log.read_text())
    assert {record["spider"] for record in records} >= {"books"}
    (letter,) = [record for record in records if record.get("prioqueue_event") == "request_dead_lettered"]
    assert (letter["prioqueue_reason"], letter["prioqueue_url"]) == ("callback", site.url("/"))
    assert any("the callback of a test fails" in record.get("traceback", "") for record in records)
    assert records[-1]["message"] == "Spider closed (finished)"
    assert "alert: dead_lettered ValueError: the callback of a test fails books" in command.log
    assert "signal handler" not in log.read_text()


def test_every_block_of_the_pages_on_observability_is_run() -> None:
    """A block that is added needs a crawl here, or one with the package that it is about."""
    pages = ("reference/logs.md", "monitoring.md", "reference/signals.md", "integrations.md")

    # In integrations.md: two for spidermon, one each for scrapy-poet, scrapy-zyte-api and scrapy-splash.
    assert [len(python_blocks(DOCS / page)) for page in pages] == [3, 1, 1, 5]
