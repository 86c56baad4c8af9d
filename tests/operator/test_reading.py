"""One reading of a frontier for any number of viewers."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from scrapy_prioqueue.frontier.redis.link import Link
from scrapy_prioqueue.frontier.redis.operators.findings import Status
from scrapy_prioqueue.frontier.redis.operators.inspector import Inspector
from scrapy_prioqueue.monitoring.reading import BUSY, FrontierReading, Reading
from tests.contract.backends import RedisBackend, push
from tests.support.clocks import Clock
from tests.support.servers import RedisServer, StartServer

BURN = "for _ = 1, 2000000 do end"
"""A script that takes milliseconds."""


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def inspector(redis_server: RedisServer, frontier_name: str) -> Iterator[Inspector]:
    inspector = Inspector(Link(redis_server.url), frontier_name)
    yield inspector
    inspector.link.close()


def calls_of(client: Any, command: str) -> int:
    found = client.info("commandstats").get(f"cmdstat_{command}", {"calls": 0})
    return int(found["calls"])


def status_of(reading: FrontierReading) -> Reading[Status]:
    return reading.get("status", Inspector.status)


def test_status_and_slots_are_those_of_the_inspector(inspector: Inspector, backend: RedisBackend) -> None:
    backend.join("w1").commit(push("1"), push("2"))
    reading = FrontierReading(inspector)

    status, slots = status_of(reading), reading.get("slots", lambda inspector: inspector.slots(5))

    assert status.value is not None and status.value.counts["pending"] == 2
    assert slots.value is not None and slots.value.slots[0].pending == 2
    assert status.age_s is not None and not status.trouble


def test_missing_frontier_is_no_trouble(inspector: Inspector) -> None:
    found = status_of(FrontierReading(inspector))

    assert (found.value, found.trouble) == (None, "")
    assert found.age_s is not None


def test_viewers_share_a_reading(inspector: Inspector, backend: RedisBackend, client: Any, clock: Clock) -> None:
    backend.join("w1").commit(push("1"))
    reading = FrontierReading(inspector, clock=clock)
    before = calls_of(client, "info")
    with ThreadPoolExecutor(20) as viewers:
        found = list(viewers.map(lambda _: status_of(reading), range(100)))

    assert len({id(each.value) for each in found}) == 1
    # Two for the processor time, two for the status.
    assert calls_of(client, "info") - before == 5

    clock.now += 1.0
    assert status_of(reading).value is not found[0].value


def test_value_rests_as_long_as_its_cost_requires(inspector: Inspector, clock: Clock) -> None:
    reading = FrontierReading(inspector, share=0.0001, clock=clock)

    def burn(inspector: Inspector) -> float:
        inspector.link.ask(lambda client: client.eval(BURN, 0))
        clock.now += 1
        return clock.now

    first = reading.get("burn", burn)
    # The server's time costs ten thousand times as much, less what was saved.
    clock.now += 2
    assert reading.get("burn", burn).value == first.value
    clock.now += 30
    assert reading.get("burn", burn).value != first.value


def test_value_that_waits_longest_is_read_first(inspector: Inspector, clock: Clock) -> None:
    reading = FrontierReading(inspector, share=0.0001, clock=clock)
    order: list[str] = []

    def question(name: str) -> Any:
        def ask(inspector: Inspector) -> str:
            inspector.link.ask(lambda client: client.eval(BURN, 0))
            clock.now += 1
            order.append(name)
            return name

        return ask

    reading.get("first", question("first"))
    clock.now += 40
    reading.get("second", question("second"))
    clock.now += 2
    reading.get("first", question("first"))
    clock.now += 1
    reading.get("second", question("second"))
    clock.now += 40
    assert reading.get("second", question("second")).age_s == 44

    assert order == ["first", "second", "first"]


def test_new_values_wait_only_for_a_while(inspector: Inspector, clock: Clock) -> None:
    reading = FrontierReading(inspector, share=0.0001, first_wait_s=0.0, clock=clock)

    def burn(inspector: Inspector) -> int:
        clock.now += 1
        inspector.link.ask(lambda client: client.eval(BURN, 0))
        return 1

    reading.get("burn", burn)

    found = reading.get("other", burn)
    assert (found.value, found.age_s, found.trouble) == (None, None, BUSY)


def test_viewers_do_not_wait_for_one_that_reads(inspector: Inspector, clock: Clock) -> None:
    reading, begun, may_end = FrontierReading(inspector, clock=clock), threading.Event(), threading.Event()

    def slow(_: Inspector) -> int:
        if begun.is_set():
            return 1
        begun.set()
        assert may_end.wait(20)
        return 2

    begun.set()
    reading.get("slow", slow)
    begun.clear()
    clock.now += 10.0
    with ThreadPoolExecutor(1) as other:
        found = other.submit(reading.get, "slow", slow)
        assert begun.wait(20)
        assert reading.get("slow", slow).value == 1
        may_end.set()
        assert found.result().value == 2


def test_server_that_is_away_leaves_the_last_values(
    redis_server_factory: StartServer, frontier_name: str, clock: Clock
) -> None:
    server = redis_server_factory(appendonly=True)
    backend = RedisBackend(frontier_name, server.url)
    backend.join("w1").commit(push("1"))
    backend.close()
    reading = FrontierReading(Inspector(Link(server.url, timeout_s=5), frontier_name), clock=clock)
    before = status_of(reading)
    reading.get("other", lambda _: 1)

    server.stop()
    clock.now += 5.0
    away, other = status_of(reading), reading.get("other", lambda _: 1)

    assert away.value is before.value and away.age_s == 5.0
    assert server.url.removeprefix("redis://").partition("/")[0] in away.trouble
    assert (other.value, other.trouble) == (1, away.trouble)

    server.start()
    clock.now += 2.0
    back = status_of(reading)
    assert back.age_s == 0 and not back.trouble
    assert back.value is not None and back.value.counts["pending"] == 1
    reading.inspector.link.close()


def test_value_that_cannot_be_read_is_no_trouble_for_others(inspector: Inspector, clock: Clock) -> None:
    reading = FrontierReading(inspector, clock=clock)

    def fails(_: Inspector) -> int:
        raise ValueError("nonsense")

    assert "nonsense" in reading.get("bad", fails).trouble
    assert reading.get("good", lambda _: 1).trouble == ""
