"""`scrapy frontier top`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from io import StringIO
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from scrapy_prioqueue.commands.verbs.top import Meter, View
from scrapy_prioqueue.errors import FrontierUnavailable
from scrapy_prioqueue.frontier.redis.link import Link
from scrapy_prioqueue.frontier.redis.operators.inspector import Inspector
from tests.commands.conftest import Run
from tests.contract.backends import RedisBackend, push
from tests.support.servers import RedisServer, StartServer


def sample(now_ms: int, done: int, accepted: int = 0, epoch: str = "1") -> Any:
    return SimpleNamespace(
        now_ms=now_ms, counts={"done": done, "accepted": accepted}, state=SimpleNamespace(epoch=epoch)
    )


def test_top_repeats_the_summary(run: Run, backend: RedisBackend) -> None:
    backend.join("w1").commit(push("1"))

    shown = run("top", "--count", "3", "--interval", "0.01", columns=80)
    lines = run("top", "--count", "2", "--interval", "0.01", "--json").out.splitlines()

    assert shown.code == 0
    assert shown.out.count("1 in 1 slot") == 3
    assert max(map(len, shown.out.splitlines())) <= 80
    assert [json.loads(line)["counts"]["pending"] for line in lines] == [1, 1]


def test_interval_and_count_are_checked(run: Run) -> None:
    assert run("top", "--interval", "0").code == 2
    assert run("top", "--count", "none").code == 2


def test_rates_are_those_of_the_last_ten_seconds() -> None:
    meter = Meter()
    for second in range(30):
        meter.add(sample(second * 1000, done=second * (2 if second < 15 else 4), accepted=second))

    assert meter.rates() == (4, 1)


def test_rates_are_not_known_at_first_nor_across_crawls() -> None:
    meter = Meter()
    meter.add(sample(0, done=5))
    assert meter.rates() == (None, None)

    meter.add(sample(1000, done=0, epoch="2"))

    assert meter.rates() == (None, None)


def test_server_that_goes_away_is_waited_for(
    run: Run, redis_server_factory: StartServer, frontier_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = redis_server_factory()
    backend = RedisBackend(frontier_name, server.url)
    backend.join("w1")
    backend.close()
    real, calls = Inspector.status, []

    def status(inspector: Inspector, seeds_keys: Sequence[str]) -> Any:
        calls.append(inspector)
        if len(calls) == 2:
            raise FrontierUnavailable("redis://there", "it is away")
        return real(inspector, seeds_keys)

    monkeypatch.setattr(Inspector, "status", status)

    options = ("top", "--url", server.url, "--count", "3", "--interval", "0.01")
    lines = [json.loads(line) for line in run(*options, "--json").out.splitlines()]
    calls.clear()
    shown = run(*options).out

    assert ["error" in line for line in lines] == [False, True, False]
    assert shown.count("it is away; trying again") == 1
    assert shown.count("pending  0 in 0 slots") == 3


@pytest.mark.parametrize(("height", "least"), [(24, 3), (16, 1), (70, 30)])
def test_workers_are_shown_on_low_terminals(
    backend: RedisBackend, redis_server: RedisServer, frontier_name: str, height: int, least: int
) -> None:
    names = [f"host-a:{4711 + number}:9f3c1d" for number in range(30)]
    workers = [backend.join(name, tiers=("urgent", "high", "normal", "low")) for name in names]
    workers[0].commit(*(push(str(number)) for number in range(5)))
    link = Link(redis_server.url)
    status = Inspector(link, frontier_name).status()
    link.close()
    assert status is not None
    console = Console(width=80, height=height, file=StringIO(), markup=False, force_terminal=True, color_system=None)

    with console.capture() as shown:
        console.print(View(status, 1.0, 1.0, 1.0))

    lines = shown.get().splitlines()
    count = sum("host-a:" in line for line in lines)
    assert len(lines) <= height
    assert count >= least
    assert count == 30 or f"… and {30 - count} more: scrapy frontier workers" in shown.get()
