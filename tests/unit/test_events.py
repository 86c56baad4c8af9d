"""Signals are sent after the event, in order, and their handlers are waited for."""

from __future__ import annotations

import asyncio
import logging
from time import monotonic
from typing import Any
from unittest.mock import Mock

import pytest
from scrapy import Spider
from scrapy.crawler import Crawler
from scrapy.utils.test import get_crawler

from scrapy_prioqueue.frontier.waits import Waits
from scrapy_prioqueue.queues.events import LASTING_S, Events
from scrapy_prioqueue.queues.idle import WAIT_S, IdleReasons
from scrapy_prioqueue.signals import frontier_degraded, lease_lost
from tests.support.clocks import Clock
from tests.unit.pumping import finished
from tests.unit.virtual_time import in_virtual_time, pass_time


class Bench:
    """Events of a crawler, and what their handlers were called with."""

    def __init__(self) -> None:
        self.crawler: Crawler = get_crawler(Spider)
        self.crawler.spider = Spider("events")
        self.handled = 0
        self.clock = Clock()
        self.events = Events(self.crawler, self.note_handled, self.clock)
        self.calls: list[Any] = []
        self.gate = asyncio.Event()

    def note_handled(self) -> None:
        self.handled += 1

    def connect(self, *handlers: Any) -> None:
        for handler in handlers:
            self.crawler.signals.connect(handler, frontier_degraded)

    def note(self, cause: str, detail: str, spider: Spider) -> None:
        """Handle a signal."""
        self.calls.append((cause, detail, spider.name))

    async def wait(self, cause: str) -> None:
        """Handle a signal until the gate opens."""
        self.calls.append(f"{cause} begins")
        await self.gate.wait()
        self.calls.append(f"{cause} ends")

    def fail(self) -> None:
        """Handle a signal badly."""
        raise LookupError("a handler that fails")

    def send(self, cause: str = "outage") -> None:
        self.events.send(frontier_degraded, cause=cause, detail="why")


@in_virtual_time
async def test_signals_are_sent_in_order_after_what_is_running_now() -> None:
    bench = Bench()
    bench.connect(bench.note)

    bench.send("outage")
    bench.send("full")
    assert not bench.calls
    assert not bench.events.are_handled
    await pass_time(0.1)

    assert bench.calls == [("outage", "why", "events"), ("full", "why", "events")]
    assert bench.events.are_handled
    assert bench.handled == 1


@in_virtual_time
async def test_a_signal_that_a_handler_causes_is_sent_after_the_others() -> None:
    bench = Bench()

    def cause_another(cause: str) -> None:
        if cause == "outage":
            bench.send("caused")

    bench.connect(bench.note, cause_another)
    bench.send("outage")
    bench.send("full")
    await pass_time(0.1)

    assert [cause for cause, *_ in bench.calls] == ["outage", "full", "caused"]


@in_virtual_time
async def test_a_handler_that_raises_is_logged_and_keeps_no_other_from_being_called(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bench = Bench()
    bench.connect(bench.fail, bench.note)

    bench.send()
    await pass_time(0.1)

    assert len(bench.calls) == 1
    assert "LookupError: a handler that fails" in caplog.text
    assert bench.events.are_handled


@in_virtual_time
async def test_without_a_handler_nothing_is_sent() -> None:
    bench = Bench()

    bench.send()
    bench.events.send(lease_lost, request=None, is_started=True)

    assert bench.events.are_handled


@in_virtual_time
async def test_a_close_waits_for_handlers() -> None:
    bench = Bench()
    bench.connect(bench.wait)
    bench.send()

    closed = bench.events.close(10)
    await pass_time(5)
    assert bench.calls == ["outage begins"]
    assert not closed.called
    bench.gate.set()
    await finished(closed)

    assert bench.calls[1:] == ["outage ends"]


@in_virtual_time
async def test_a_close_does_not_wait_for_ever(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench()
    bench.connect(bench.wait)
    bench.send()

    await finished(bench.events.close(10))
    bench.gate.set()
    await pass_time(0.1)

    assert "still running (PRIOQUEUE_CLOSE_TIMEOUT)" in caplog.text


@in_virtual_time
async def test_a_worker_that_waits_for_handlers_only_says_so(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    bench = Bench()
    bench.connect(bench.wait)
    bench.send()
    engine, pump = Mock(is_closing=False, is_paused=False, reads_start=False), Mock(is_away=False, is_full=False)
    pump.ask = lambda call, on_answer: on_answer(Waits())
    assert bench.crawler.spider is not None
    reasons = IdleReasons(bench.crawler.spider, engine, pump, Mock(__len__=lambda _: 0), bench.events, ())

    reasons.look(monotonic() - 2 * WAIT_S)
    assert not bench.events.are_lasting
    bench.clock.advance(LASTING_S)
    assert bench.events.are_lasting
    bench.gate.set()
    await pass_time(0.1)

    assert not bench.events.are_lasting
    assert "waiting for handlers of this package's signals" in caplog.text
