"""Timers, and runners of a frontier's coroutines under any loop that Scrapy uses."""

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
    """A scheduled call; cancelling it after it was made does nothing."""

    def cancel(self) -> None: ...


class _ReactorTimer:
    """A call scheduled with Twisted's reactor, which raises an error if a call is cancelled after it was made."""

    def __init__(self, call: Any) -> None:
        self._call = call

    def cancel(self) -> None:
        if self._call.active():
            self._call.cancel()


def call_later(delay_s: float, function: Callable[[], object]) -> Timer:
    """Call a function on Scrapy's loop in that many seconds."""
    loop = _running_loop()
    if loop is not None:
        return loop.call_later(delay_s, function)
    from twisted.internet import reactor

    schedule: Callable[[float, Callable[[], object]], object] = reactor.callLater  # type: ignore[assignment]
    return _ReactorTimer(schedule(delay_s, function))


def pause(delay_s: float) -> Deferred[None]:
    """Return a Deferred that fires in that many seconds."""
    paused: Deferred[None] = Deferred(lambda _: timer.cancel())
    timer = call_later(delay_s, lambda: paused.callback(None))
    return paused


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


class Runner(ABC):
    """Runs coroutines that need asyncio; their results arrive as Deferreds on Scrapy's loop."""

    @abstractmethod
    def start(self, coroutine: Coroutine[Any, Any, T]) -> Deferred[T]:
        """Run a coroutine; cancelling the Deferred cancels it."""

    def on_scrapy_loop(self, function: Callable[[], object]) -> Callable[[], object]:
        """Wrap a function that runs on Scrapy's loop, so that a coroutine may call it."""
        return function

    def close(self) -> None:  # noqa: B027
        """Stop the loop and thread of this runner, if it has them."""


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
    """For any other reactor: an asyncio loop in a thread."""

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
    """Convert asyncio's cancellation, which is not an `Exception`, to Twisted's."""
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
    """Return the runner for a frontier, local or not, under the loop that is running."""
    if is_local:
        return InlineRunner()
    return ThreadRunner() if _running_loop() is None else AsyncioRunner()


class Alarm:
    """Calls a function once, at the earliest time that was set.

    Args:
        clock: monotonic, in seconds.
        on_time: the function; it may set the alarm again.
    """

    def __init__(self, clock: Callable[[], float], on_time: Callable[[], object]) -> None:
        self._clock = clock
        self._on_time = on_time
        self._timer: Timer | None = None
        self._at = 0.0

    @property
    def is_set(self) -> bool:
        """Whether a call is scheduled."""
        return self._timer is not None

    def set(self, at: float) -> None:
        """Schedule the call for that time, unless it is scheduled for an earlier one."""
        if self._timer is not None and self._at <= at:
            return
        self.cancel()
        self._at = at
        self._timer = call_later(max(0, at - self._clock()), self._go_off)

    def cancel(self) -> None:
        """Cancel the scheduled call."""
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()

    def _go_off(self) -> None:
        self._timer = None
        self._on_time()
