"""`scrapy frontier exporter`."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Callable
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from scrapy_prioqueue.commands.verbs import exporter
from scrapy_prioqueue.frontier.redis.troubles import ACL_RULES
from scrapy_prioqueue.monitoring import serving
from tests.commands.conftest import Run
from tests.contract.backends import RedisBackend, push
from tests.support.metrics import metrics_at
from tests.support.servers import RedisServer


def while_it_serves(monkeypatch: pytest.MonkeyPatch, look: Callable[[], object]) -> None:
    """Make the verb call a function while it serves, and then interrupt it as Ctrl-C does."""

    class Interrupted:
        def wait(self) -> None:
            look()
            raise KeyboardInterrupt

    monkeypatch.setattr(exporter, "Event", Interrupted)


@pytest.mark.parametrize("is_named", [True, False])
def test_metrics_are_served_until_an_interrupt_with_the_rights_of_a_worker(
    *,
    run: Run,
    backend: RedisBackend,
    redis_server: RedisServer,
    client: Any,
    frontier_name: str,
    monkeypatch: pytest.MonkeyPatch,
    is_named: bool,
    capsys: pytest.CaptureFixture[str],
) -> None:
    backend.join("w1").commit(push("1"))
    user = f"user-{frontier_name[-8:]}"
    client.execute_command("ACL", "SETUSER", user, "on", ">secret", *ACL_RULES.split())
    found: dict[tuple[str, ...], float] = {}

    def look() -> None:
        found.update(metrics_at(json.loads(capsys.readouterr().out)["url"]))

    while_it_serves(monkeypatch, look)
    url = redis_server.url.replace("//", f"//{user}:secret@")
    ran = run("exporter", *([frontier_name] if is_named else []), "--port", "0", "--json", "--url", url)
    client.execute_command("ACL", "DELUSER", user)

    assert (ran.code, ran.err) == (0, "")
    assert found["prioqueue_requests", frontier_name, "pending"] == 1
    assert found["prioqueue_redis_eviction_policy", "noeviction"] == 1


def test_address_is_printed_for_people(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    while_it_serves(monkeypatch, lambda: None)

    ran = run("exporter", "--all", "--port", "0")

    assert re.fullmatch(r"Metrics of all frontiers at redis://\S+: http://127\.0\.0\.1:\d+/metrics\n", ran.out)


def test_port_that_is_taken_is_an_error(run: Run) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        ran = run("exporter", "--port", str(taken.getsockname()[1]))

    assert ran.code == 2
    assert "Address already in use" in ran.err


@pytest.mark.parametrize("options", [("--port", "70000"), ("--host", "metrics.example")])
def test_bad_options_are_refused(run: Run, options: tuple[str, ...]) -> None:
    assert run("exporter", *options).code == 2


def test_without_the_package_it_says_what_to_install(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "find_spec", lambda _: None)

    ran = run("exporter")

    assert ran.code == 2
    assert 'pip install "scrapy-prioqueue[metrics]"' in ran.err


def test_it_says_how_many_workers_are_useful_for_each_frontier(
    run: Run,
    backend: RedisBackend,
    frontier_name: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    backend.join("w1", clock=None).commit(push("1"))
    found: dict[str, Any] = {}

    def look() -> None:
        address = json.loads(capsys.readouterr().out)["url"].replace("/metrics", "/api/v1/scale")
        for name in (frontier_name, "none", "other", ""):
            try:
                with urlopen(f"{address}?name={name}") as answer:
                    found[name] = json.load(answer)
            except HTTPError as error:
                found[name] = json.load(error)

    while_it_serves(monkeypatch, look)
    run("exporter", frontier_name, "none", "--port", "0", "--json")

    assert found[frontier_name]["workers"] == 1
    assert found["none"]["error"].startswith("there is no frontier 'none' at redis://")
    assert "which frontier?" in found["other"]["error"]
    assert found[""] == found["other"]
