"""Timers, and ways to run a frontier's coroutines under whatever loop Scrapy runs on."""

from __future__ import annotations

import asyncio
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, Protocol, TypeVar

from twisted.internet.defer import CancelledError, Deferred, fail, succeed
from twisted.python.failure import Failure

T = TypeVar("T")


class Timer(Protocol):
    """A call that will be made, unless cancelled; cancelling one that was made does nothing."""

    def cancel(self) -> object: ...


class _ReactorTimer:
    """A call of Twisted's reactor, which takes it for an error to cancel one that was made."""

    def __init__(self, call: Any) -> None:
        self._call = call

    def cancel(self) -> None:
        if self._call.active():
            self._call.cancel()


def call_later(delay_s: float, function: Callable[[], object]) -> Timer:
    """Call a function on the loop that Scrapy runs on, in that many seconds."""
    loop = _running_loop()
    if loop is not None:
        return loop.call_later(delay_s, function)
    from twisted.internet import reactor

    schedule: Callable[[float, Callable[[], object]], object] = reactor.callLater  # type: ignore[assignment]
    return _ReactorTimer(schedule(delay_s, function))


def pause(delay_s: float) -> Deferred[None]:
    """Return a Deferred that fires in that many seconds."""
    paused: Deferred[None] = Deferred(lambda _: _cancel(timer))
    timer = call_later(delay_s, lambda: paused.callback(None))
    return paused


def _cancel(timer: Timer) -> None:
    timer.cancel()


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


class Runner(ABC):
    """Runs coroutines that need asyncio; results arrive as Deferreds on Scrapy's own loop."""

    @abstractmethod
    def start(self, coroutine: Coroutine[Any, Any, T]) -> Deferred[T]:
        """Run a coroutine; cancelling the Deferred cancels it."""

    def on_scrapy_loop(self, function: Callable[[], object]) -> Callable[[], object]:
        """Return a function that may be called by a coroutine, and runs on Scrapy's loop."""
        return function

    def close(self) -> None:  # noqa: B027
        """Stop whatever this started for itself."""


class InlineRunner(Runner):
    """For coroutines that never suspend: the Deferred has fired when `start` returns."""

    def start(self, coroutine: Coroutine[Any, Any, T]) -> Deferred[T]:
        try:
            coroutine.send(None)
        except StopIteration as stop:
            return succeed(stop.value)
        except Exception:
            return fail()
        coroutine.close()
        raise RuntimeError("an in-process frontier must not suspend")


class AsyncioRunner(Runner):
    """For the asyncio reactor, and for Scrapy without a reactor: coroutines are tasks of the running loop."""

    def start(self, coroutine: Coroutine[Any, Any, T]) -> Deferred[T]:
        deferred = Deferred.fromFuture(asyncio.get_running_loop().create_task(coroutine))
        return deferred.addErrback(_as_cancelled)


class ThreadRunner(Runner):
    """For any other reactor: an asyncio loop of our own, in a thread."""

    def __init__(self) -> None:
        from twisted.internet import reactor

        self._call_from_thread: Callable[..., object] = reactor.callFromThread
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="prioqueue", daemon=True)
        self._thread.start()

    def start(self, coroutine: Coroutine[Any, Any, T]) -> Deferred[T]:
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        deferred: Deferred[T] = Deferred(lambda _: None if future.cancel() else None)
        future.add_done_callback(lambda done: self._call_from_thread(_settle, deferred, done))
        return deferred

    def on_scrapy_loop(self, function: Callable[[], object]) -> Callable[[], object]:
        return lambda: self._call_from_thread(function)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


def _as_cancelled(failure: Failure) -> Failure:
    """Make of asyncio's cancellation, which is no `Exception`, that of Twisted."""
    if isinstance(failure.value, asyncio.CancelledError):
        raise CancelledError
    return failure


def _settle(deferred: Deferred[T], done: Future[T]) -> None:
    if deferred.called or done.cancelled():
        return
    error = done.exception()
    if error is None:
        deferred.callback(done.result())
    else:
        deferred.errback(error)


def suitable_runner(*, is_local: bool) -> Runner:
    """Return the runner for a frontier, in process or not, under the loop that runs now."""
    if is_local:
        return InlineRunner()
    return ThreadRunner() if _running_loop() is None else AsyncioRunner()


class Alarm:
    """Calls a function once, at the earliest time that it was set to.

    Args:
        clock: monotonic, in seconds.
        on_time: what is called; the alarm may be set again from there.
    """

    def __init__(self, clock: Callable[[], float], on_time: Callable[[], object]) -> None:
        self._clock = clock
        self._on_time = on_time
        self._timer: Timer | None = None
        self._at = 0.0

    @property
    def is_set(self) -> bool:
        """It will go off."""
        return self._timer is not None

    def set(self, at: float) -> None:
        """Go off at that time, unless it goes off earlier anyway."""
        if self._timer is not None and self._at <= at:
            return
        self.cancel()
        self._at = at
        self._timer = call_later(max(0, at - self._clock()), self._go_off)

    def cancel(self) -> None:
        """Don't go off."""
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()

    def _go_off(self) -> None:
        self._timer = None
        self._on_time()
