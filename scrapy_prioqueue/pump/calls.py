"""The line to the frontier: one call at a time, and what a call that takes long, fails or is refused means."""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine
from typing import Any, Protocol, TypeVar

from scrapy.utils.log import failure_to_exc_info
from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from scrapy_prioqueue.errors import FrontierUnavailable, NotPermitted
from scrapy_prioqueue.pump.timing import LOOK_S, SLOW_S
from scrapy_prioqueue.runtime import Alarm, Runner

logger = logging.getLogger(__name__)

T = TypeVar("T")


class Caller(Protocol):
    """Who makes the calls."""

    def line_answers(self) -> None:
        """A call has succeeded; its result is handed over next."""

    def line_is_slow(self) -> None:
        """A call has had no answer for `SLOW_S`, in which the loop could have read one."""

    def line_failed(self, error: BaseException | None, *, was_sent: bool) -> None:
        """A call has failed; nothing is known of what was carried out, if it was sent at all."""

    def line_refused(self, why: NotPermitted) -> None:
        """This worker has no place in the crawl any more."""

    def line_is_free(self) -> None:
        """The next call may be made."""


class Line:
    """Runs the frontier's coroutines, one at a time.

    Args:
        clock: monotonic, in seconds.
    """

    def __init__(self, runner: Runner, caller: Caller, clock: Callable[[], float]) -> None:
        self._runner = runner
        self._caller = caller
        self._clock = clock
        self._look = Alarm(clock, self._on_look)
        self._looks_left = 0
        self.running: Deferred[None] | None = None

    @property
    def is_busy(self) -> bool:
        """A call is under way."""
        return self.running is not None

    def call(self, coroutine: Coroutine[Any, Any, T], on_result: Callable[[T], None]) -> None:
        """Run a coroutine; none may be under way."""
        running: Deferred[Any] = self._runner.start(coroutine)
        done: Deferred[None] = Deferred()
        self.running = done
        if not running.called:
            self._looks_left = round(SLOW_S / LOOK_S)
            self._look.set(self._clock() + LOOK_S)
        running.addCallback(self._succeeded, on_result)
        running.addErrback(self._failed)
        running.addErrback(self._on_bug)
        running.addCallback(lambda _: self._ended(done))

    def _on_look(self) -> None:
        # Where blocking code, other processes or a stop hold the loop up, a look counts no more than one that is on
        # time: that is no silence of the server's, whose answer takes several turns of the loop to be read.
        self._looks_left -= 1
        if self._looks_left > 0:
            self._look.set(self._clock() + LOOK_S)
        else:
            self._caller.line_is_slow()

    def close(self) -> None:
        """Expect no answer any more."""
        self._look.cancel()

    def _succeeded(self, result: T, on_result: Callable[[T], None]) -> None:
        self._caller.line_answers()
        on_result(result)

    def _failed(self, failure: Failure) -> None:
        error = failure.value
        if isinstance(error, NotPermitted):
            self._caller.line_refused(error)
        elif isinstance(error, FrontierUnavailable):
            self._caller.line_failed(error, was_sent=error.was_sent)
        else:
            failure.raiseException()

    def _on_bug(self, failure: Failure) -> None:
        self._caller.line_failed(failure.value, was_sent=True)
        logger.error("Unexpected error in the exchange with the frontier", exc_info=failure_to_exc_info(failure))

    def _ended(self, done: Deferred[None]) -> None:
        self.running = None
        self._look.cancel()
        done.callback(None)
        self._caller.line_is_free()
