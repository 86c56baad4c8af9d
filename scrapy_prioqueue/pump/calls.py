"""Calls of the frontier, one at a time and with time-outs; and the bell that wakes idle workers."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from scrapy.utils.log import failure_to_exc_info
from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from scrapy_prioqueue.errors import FrontierUnavailable, NotPermitted
from scrapy_prioqueue.frontier.base import Frontier
from scrapy_prioqueue.logs import CrawlLog
from scrapy_prioqueue.pump.timing import ANSWER_CHECK_S, BELL_RETRY_S, SLOW_S
from scrapy_prioqueue.runtime import Alarm, Runner, Timer, call_later

if TYPE_CHECKING:
    from scrapy import Spider

logger = logging.getLogger(__name__)

T = TypeVar("T")


class Caller(Protocol):
    """The interface that `Calls` needs from its owner."""

    def on_answer(self) -> None:
        """Called when a call has succeeded, before its result is passed on."""

    def on_slow(self) -> None:
        """Called when a call has had no answer for `SLOW_S`, although the loop could have read one."""

    def on_failure(self, error: BaseException | None, *, was_sent: bool) -> None:
        """Called when a call has failed; if it was sent, the server may have executed any part of it."""

    def on_not_permitted(self, why: NotPermitted) -> None:
        """Called when this worker may not take part in the crawl any more."""

    def on_free(self) -> None:
        """Called when the next call may be made."""


class Calls:
    """Runs the frontier's coroutines, one at a time.

    Args:
        clock: monotonic, in seconds.
        spider: for log records.
    """

    def __init__(
        self, runner: Runner, caller: Caller, clock: Callable[[], float], spider: Spider | None = None
    ) -> None:
        self._log = CrawlLog(logger, spider)
        self._runner = runner
        self._caller = caller
        self._clock = clock
        self._check = Alarm(clock, self._on_check)
        self._checks_left = 0
        self.running: Deferred[None] | None = None

    @property
    def is_busy(self) -> bool:
        """Whether a call is in progress."""
        return self.running is not None

    def call(self, coroutine: Coroutine[Any, Any, T], on_result: Callable[[T], None]) -> None:
        """Run a coroutine; no call may be in progress."""
        running: Deferred[Any] = self._runner.start(coroutine)
        done: Deferred[None] = Deferred()
        self.running = done
        if not running.called:
            self._checks_left = round(SLOW_S / ANSWER_CHECK_S)
            self._check.set(self._clock() + ANSWER_CHECK_S)
        running.addCallback(self._succeeded, on_result)
        running.addErrback(self._failed)
        running.addErrback(self._on_bug)
        running.addCallback(lambda _: self._ended(done))

    def _on_check(self) -> None:
        # A timer that fires late, because of blocking code, other processes or a stop, still counts as one check. So
        # the time in which the loop couldn't read an answer hardly counts as silence of the server.
        self._checks_left -= 1
        if self._checks_left > 0:
            self._check.set(self._clock() + ANSWER_CHECK_S)
        else:
            self._caller.on_slow()

    def close(self) -> None:
        """Stop waiting for an answer."""
        self._check.cancel()

    def _succeeded(self, result: T, on_result: Callable[[T], None]) -> None:
        self._caller.on_answer()
        on_result(result)

    def _failed(self, failure: Failure) -> None:
        error = failure.value
        if isinstance(error, NotPermitted):
            self._caller.on_not_permitted(error)
        elif isinstance(error, FrontierUnavailable):
            self._caller.on_failure(error, was_sent=error.was_sent)
        else:
            failure.raiseException()

    def _on_bug(self, failure: Failure) -> None:
        self._caller.on_failure(failure.value, was_sent=True)
        self._log.error("Unexpected error in the exchange with the frontier", exc_info=failure_to_exc_info(failure))

    def _ended(self, done: Deferred[None]) -> None:
        self.running = None
        self._check.cancel()
        done.callback(None)
        self._caller.on_free()


class Bell:
    """Subscribes to the bell; while there is no connection, the worker has to poll.

    Args:
        on_ring: called on Scrapy's loop.
        spider: for log records.
    """

    def __init__(
        self, frontier: Frontier, runner: Runner, on_ring: Callable[[], None], spider: Spider | None = None
    ) -> None:
        self._log = CrawlLog(logger, spider)
        self._frontier = frontier
        self._runner = runner
        self._on_ring = on_ring
        self._listening: Deferred[Any] | None = None
        self._again: Timer | None = None
        self._is_closed = False

    @property
    def is_heard(self) -> bool:
        """Whether the bell would be heard now, as far as is known."""
        return self._listening is not None

    def listen(self) -> None:
        """Begin to listen; does nothing if it listens already."""
        if self._frontier.is_local or self._listening is not None or self._is_closed:
            return
        self._listening = self._runner.start(self._frontier.listen(self._runner.on_scrapy_loop(self._on_ring)))
        self._listening.addBoth(self._on_end)

    def close(self) -> None:
        """Stop listening."""
        self._is_closed = True
        if self._again is not None:
            self._again.cancel()
            self._again = None
        if self._listening is not None:
            self._listening.cancel()

    def _on_end(self, result: object) -> None:
        self._listening = None
        if isinstance(result, Failure) and not self._is_closed:
            self._log.debug("Can't subscribe to the frontier's channel, polling instead: %s", result.value)
            if self._again is None:
                self._again = call_later(BELL_RETRY_S * random.uniform(0.5, 1), self._listen_again)

    def _listen_again(self) -> None:
        self._again = None
        self.listen()
