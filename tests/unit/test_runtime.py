"""Timers and coroutines under each kind of event loop: results as Deferreds, errors, cancelling."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest
from twisted.internet.defer import CancelledError, Deferred
from twisted.python.failure import Failure

from scrapy_prioqueue.runtime import AsyncioRunner, InlineRunner, call_later, suitable_runner
from tests.support.processes import StartProcess
from tests.unit.virtual_time import pass_time, run_in_virtual_time, until

REPOSITORY = Path(__file__).resolve().parents[2]


async def answer() -> int:
    return 42


async def suspended_answer() -> int:
    await asyncio.sleep(1)
    return 42


async def failing() -> None:
    raise KeyError("reason")


def outcome(deferred: Deferred[Any]) -> list[Any]:
    found: list[Any] = []
    deferred.addBoth(found.append)
    return found


# In process


def test_inline_result_is_there_at_once() -> None:
    assert outcome(InlineRunner().start(answer())) == [42]


def test_inline_error_is_a_failure() -> None:
    (failure,) = outcome(InlineRunner().start(failing()))

    assert isinstance(failure, Failure)
    assert isinstance(failure.value, KeyError)


def test_inline_coroutine_must_not_suspend() -> None:
    async def suspends() -> None:
        await asyncio.sleep(0)

    with pytest.raises(RuntimeError, match="must not suspend"):
        InlineRunner().start(suspends())


def test_frontier_in_process_gets_the_inline_runner_under_any_loop() -> None:
    assert isinstance(suitable_runner(is_local=True), InlineRunner)


# On an asyncio loop


def test_asyncio_result_and_error_arrive_as_deferreds() -> None:
    async def test() -> None:
        runner = suitable_runner(is_local=False)
        assert isinstance(runner, AsyncioRunner)

        found, failed = outcome(runner.start(suspended_answer())), outcome(runner.start(failing()))
        await until(lambda: found and failed, what="both results")

        assert found == [42]
        assert isinstance(failed[0], Failure)
        assert isinstance(failed[0].value, KeyError)
        runner.close()

    run_in_virtual_time(test())


def test_asyncio_coroutine_is_cancelled_with_its_deferred() -> None:
    async def test() -> None:
        ends: list[str] = []

        async def watched() -> None:
            try:
                await asyncio.sleep(1000)
            except asyncio.CancelledError:
                ends.append("cancelled")
                raise

        deferred = AsyncioRunner().start(watched())
        found = outcome(deferred)
        await pass_time(1)
        deferred.cancel()
        await until(lambda: found and ends, what="the end")

        assert ends == ["cancelled"]
        assert isinstance(found[0], Failure)
        assert isinstance(found[0].value, (asyncio.CancelledError, CancelledError))

    run_in_virtual_time(test())


def test_function_that_rings_is_called_as_it_is_on_scrapys_own_loop() -> None:
    def ring() -> None: ...

    assert AsyncioRunner().on_scrapy_loop(ring) is ring
    assert InlineRunner().on_scrapy_loop(ring) is ring


def test_timer_fires_once_and_not_when_cancelled() -> None:
    async def test() -> None:
        fired: list[str] = []
        call_later(5, lambda: fired.append("kept"))
        call_later(5, lambda: fired.append("cancelled")).cancel()

        await pass_time(4.9)
        assert fired == []
        await pass_time(100)
        assert fired == ["kept"]

    run_in_virtual_time(test())


def test_timer_that_has_fired_may_be_cancelled() -> None:
    async def test() -> None:
        timer = call_later(5, lambda: None)
        await pass_time(6)
        timer.cancel()

    run_in_virtual_time(test())


# On a reactor of another kind

ON_SELECT_REACTOR = """
import asyncio, threading
from twisted.internet import selectreactor
selectreactor.install()
from twisted.internet import reactor
from twisted.internet.defer import CancelledError, inlineCallbacks
from scrapy_prioqueue.runtime import ThreadRunner, call_later, suitable_runner

here = threading.current_thread()
ended = threading.Event()
facts = []

async def answer():
    await asyncio.sleep(0.01)
    return threading.current_thread() is not here

async def failing():
    raise KeyError("reason")

async def endless(started):
    started()
    try:
        await asyncio.sleep(1000)
    except asyncio.CancelledError:
        ended.set()
        raise

@inlineCallbacks
def main():
    runner = suitable_runner(is_local=False)
    assert isinstance(runner, ThreadRunner)
    facts.append(("elsewhere", (yield runner.start(answer()))))
    facts.append(("back here", threading.current_thread() is here))
    try:
        yield runner.start(failing())
    except KeyError as error:
        facts.append(("error", error.args))
    yield cancelled(runner)
    runner.close()
    facts.append(("threads", [thread.name for thread in threading.enumerate() if thread.name == "prioqueue"]))
    call_later(0.01, lambda: facts.append("fired in vain")).cancel()
    timer = call_later(0.01, lambda: call_later(0, stop))
    def stop():
        timer.cancel()
        timer.cancel()
        facts.append("cancelled when it had fired")
        reactor.stop()

@inlineCallbacks
def cancelled(runner):
    def begun():
        facts.append(("rung here", threading.current_thread() is here))
        deferred.cancel()
    deferred = runner.start(endless(runner.on_scrapy_loop(begun)))
    try:
        yield deferred
    except CancelledError:
        facts.append("deferred cancelled")
    facts.append(("coroutine cancelled", ended.wait(10)))

def run():
    main().addErrback(lambda failure: (facts.append(failure.getTraceback()), reactor.stop()))

reactor.callWhenRunning(run)
reactor.run()
for fact in facts:
    print(fact)
"""


def test_on_another_reactor_only_coroutines_run_in_a_thread(start_process: StartProcess) -> None:
    process = start_process([sys.executable, "-c", ON_SELECT_REACTOR], cwd=REPOSITORY)

    assert process.wait(within=30) == 0
    assert process.log.splitlines() == [
        "('elsewhere', True)",
        "('back here', True)",
        "('error', ('reason',))",
        "('rung here', True)",
        "deferred cancelled",
        "('coroutine cancelled', True)",
        "('threads', [])",
        "cancelled when it had fired",
    ]
