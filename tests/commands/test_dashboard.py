"""`scrapy frontier dashboard`."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest

from scrapy_prioqueue.commands.verbs import dashboard
from tests.commands.conftest import Run
from tests.contract.backends import RedisBackend, push
from tests.support.processes import StartProcess
from tests.support.servers import RedisServer
from tests.support.waiting import wait_until


@pytest.mark.slow
def test_page_is_served_live_until_it_is_interrupted(
    start_process: StartProcess, backend: RedisBackend, redis_server: RedisServer, frontier_name: str, tmp_path: Path
) -> None:
    worker = backend.join("w1")
    worker.commit(push("1"))
    options = ("--url", redis_server.url, "--name", frontier_name, "--port", "0")
    child = start_process([sys.executable, "-m", "scrapy", "frontier", "dashboard", *options], cwd=tmp_path)
    wait_until(lambda: "token:" in child.log or not child.is_running, what="the address is printed", within=30)
    found = re.search(r"at\shttp://127.0.0.1:(\d+)/\nChanges need this token: \S{32}\n", child.log)
    assert found, child.log

    connection = HTTPConnection("127.0.0.1", int(found[1]), timeout=30)
    connection.request("GET", "/events?view=overview")
    answer: Any = connection.getresponse()
    first = json.loads(answer.readline().removeprefix(b"data: "))
    worker.commit(push("2"))
    while b"<b>2</b>" not in answer.readline():
        pass
    child.send(signal.SIGINT)

    assert child.wait(within=20) == 0
    assert "<b>1</b>" in first["live-view"]
    assert "Traceback" not in child.log and "rror" not in child.log
    answer.close()
    connection.close()


def test_missing_packages_are_named(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dashboard, "NEEDED", ("jinja2", "no-such-package"))

    ran = run("dashboard")

    assert ran.code == 2
    assert 'it needs no-such-package: pip install "scrapy-prioqueue[dashboard]"' in ran.err


def test_other_commands_load_none_of_them(start_process: StartProcess) -> None:
    program = (
        "import sys; from scrapy_prioqueue.commands.verbs import VERBS;"
        "assert not {'jinja2', 'starlette', 'uvicorn'} & sys.modules.keys()"
    )

    assert start_process([sys.executable, "-c", program], env=dict(os.environ)).wait(within=30) == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--host", "0.0.0.0"), "a dashboard on 0.0.0.0 needs a token"),
        (("--token", "short"), "at least 16 characters"),
        (("--host", "192.0.2.1", "--token", "x" * 20, "--port", "0"), "can't listen on port 0 of 192.0.2.1"),
    ],
)
def test_pages_that_would_be_unsafe_are_refused(run: Run, options: tuple[str, ...], message: str) -> None:
    ran = run("dashboard", *options)

    assert ran.code == 2
    assert message in ran.err


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--port", "65536", "'65536' is not a port from 0 to 65535"),
        ("--port", "web", "'web' is not a port from 0 to 65535"),
        ("--host", "crawl.example", "'crawl.example' must be an IP address of this machine"),
    ],
)
def test_port_and_host_are_checked(run: Run, option: str, value: str, message: str) -> None:
    ran = run("dashboard", option, value)

    assert ran.code == 2
    assert message in ran.err
