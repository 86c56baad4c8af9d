"""Whether the frontier answers, and when to try again if it doesn't."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable

from scrapy_prioqueue.pump.timing import FIRST_RETRY_S, LAST_RETRY_S

logger = logging.getLogger(__name__)


class Outage:
    """Counts failures in a row; one warning at the first, one line when it is over.

    Args:
        clock: monotonic, in seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._failures = 0
        self.retry_at = clock()

    @property
    def is_on(self) -> bool:
        """The last try has failed."""
        return self._failures > 0

    def may_try(self) -> bool:
        """Tell whether it is time for a try."""
        return self.retry_at <= self._clock()

    def begin(self, error: BaseException) -> None:
        """A try has failed."""
        longest = min(LAST_RETRY_S, FIRST_RETRY_S * 2 ** min(self._failures, 10))
        self._failures += 1
        self.retry_at = self._clock() + longest * random.uniform(0.5, 1)
        if self._failures == 1:
            logger.warning("%s; the crawl goes on with the requests that are here, and tries again", error)

    def end(self, address: str) -> None:
        """A try has succeeded."""
        if self._failures:
            self._failures = 0
            logger.info("The frontier at %s answers again", address)
