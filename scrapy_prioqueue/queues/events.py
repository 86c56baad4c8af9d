"""Sends the signals of this package, when the queue has finished what it was doing at the time of the event."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from time import monotonic
from typing import Any

from pydispatch.dispatcher import getAllReceivers, liveReceivers
from scrapy import Request
from scrapy.crawler import Crawler
from scrapy.utils.defer import deferred_from_coro
from twisted.internet.defer import Deferred, succeed

from scrapy_prioqueue.logs import CrawlLog
from scrapy_prioqueue.runtime import call_later
from scrapy_prioqueue.signals import request_dead_lettered

logger = logging.getLogger(__name__)


LASTING_S = 2.0
"""Seconds after which handlers that are still running are reported to the frontier."""


class Events:
    """Sends signals in the next turn of the loop, so that a handler may call anything, and waits for their handlers.

    Args:
        on_handled: called when all handlers are done.
        clock: seconds that never go back.
    """

    def __init__(
        self, crawler: Crawler, on_handled: Callable[[], object], clock: Callable[[], float] = monotonic
    ) -> None:
        self._clock = clock
        self._signals = crawler.signals
        self._spider = crawler.spider
        self._log = CrawlLog(logger, crawler.spider)
        self._on_handled = on_handled
        self._unsent: list[tuple[object, dict[str, Any]]] = []
        self._running = 0
        self._since_s = 0.0
        self._closed: Deferred[None] | None = None

    @property
    def are_handled(self) -> bool:
        """Whether all signals are sent and all handlers are done; until then the handlers may add requests."""
        return not (self._unsent or self._running)

    @property
    def are_lasting(self) -> bool:
        """Whether handlers have been running for so long that operators should know."""
        return not self.are_handled and self._clock() - self._since_s >= LASTING_S

    def send(self, signal: object, **arguments: Any) -> None:
        """Send a signal, with the spider as a further argument."""
        if not any(True for _ in liveReceivers(getAllReceivers(self._signals.sender, signal))):
            return
        if self.are_handled:
            self._since_s = self._clock()
        self._unsent.append((signal, arguments))
        if len(self._unsent) == 1:
            call_later(0, self._send_all)

    def dead_lettered(
        self, request: Request | None, reason: str, detail: str, *, traceback: str = "", letter_id: int | None = None
    ) -> None:
        """Send `request_dead_lettered`; without a request if it can't be decoded, without an id if it has none yet."""
        arguments = {"reason": reason, "detail": detail, "traceback": traceback, "letter_id": letter_id}
        self.send(request_dead_lettered, request=request, **arguments)

    def _send_all(self) -> None:
        unsent, self._unsent = self._unsent, []
        self._running += len(unsent)
        for signal, arguments in unsent:
            self._sent(signal, **arguments, spider=self._spider).addBoth(self._note_handled)

    def _sent(self, signal: object, **arguments: Any) -> Deferred[Any]:
        send = getattr(self._signals, "send_catch_log_async", None)  # since Scrapy 2.14
        if send is None:
            return self._signals.send_catch_log_deferred(signal, **arguments)
        return deferred_from_coro(send(signal, **arguments))

    def _note_handled(self, _: object) -> None:
        self._running -= 1
        if not self.are_handled:
            return
        self._on_handled()
        if self._closed is not None and not self._closed.called:
            self._closed.callback(None)

    def close(self, timeout_s: float) -> Deferred[None]:
        """Wait until all handlers are done, but no longer than this."""
        if self.are_handled:
            return succeed(None)
        self._closed = Deferred()
        timer = call_later(timeout_s, partial(self._give_up, self._closed))
        return self._closed.addBoth(lambda _: timer.cancel())

    def _give_up(self, closed: Deferred[None]) -> None:
        self._log.warning("Closed while handlers of signals were still running (PRIOQUEUE_CLOSE_TIMEOUT)")
        closed.callback(None)
