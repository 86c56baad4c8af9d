"""The frontier's bell: tells a worker that went away empty-handed when to ask again."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from typing import Any

from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from scrapy_prioqueue.frontier.base import Frontier
from scrapy_prioqueue.pump.timing import BELL_RETRY_S
from scrapy_prioqueue.runtime import Runner, Timer, call_later

logger = logging.getLogger(__name__)


class Bell:
    """Listens as long as the connection holds; who can't hear has to poll.

    Args:
        on_ring: called on Scrapy's loop.
    """

    def __init__(self, frontier: Frontier, runner: Runner, on_ring: Callable[[], None]) -> None:
        self._frontier = frontier
        self._runner = runner
        self._on_ring = on_ring
        self._listening: Deferred[Any] | None = None
        self._again: Timer | None = None
        self._is_closed = False

    @property
    def is_heard(self) -> bool:
        """A ring would be heard now, as far as is known."""
        return self._listening is not None

    def listen(self) -> None:
        """Begin to listen, unless that is so already."""
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
            logger.debug("Can't subscribe to the frontier's channel, polling instead: %s", result.value)
            if self._again is None:
                self._again = call_later(BELL_RETRY_S * random.uniform(0.5, 1), self._listen_again)

    def _listen_again(self) -> None:
        self._again = None
        self.listen()
