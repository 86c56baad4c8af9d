"""Whether the frontier answers, when to try again if it doesn't, and what was done meanwhile."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable

from scrapy_prioqueue.errors import FrontierRefused
from scrapy_prioqueue.pump.timing import FIRST_RETRY_S, LAST_RETRY_S, RENEWALS_PER_TTL, SLOW_S, SPREAD_PER_WORKER_S

logger = logging.getLogger(__name__)

MOST_TOLD = 5
"""Different errors of one outage that are logged, so that the first doesn't hide the last."""


class Outage:
    """Counts failures in a row; one line at the first and at each of another kind, one when it is over.

    It begins when an answer is overdue.

    Args:
        clock: monotonic, in seconds.
        goes_on: whether requests are started meanwhile.
        lease_ttl_s: seconds in which a lease expires here; one more try must fit in before.
        grace_s: seconds in which only what is leased is started.
    """

    def __init__(
        self, clock: Callable[[], float], *, goes_on: bool, lease_ttl_s: float = 60.0, grace_s: float = 0.0
    ) -> None:
        self._clock = clock
        self._goes_on = goes_on
        self._grace_s = grace_s
        self._longest_s = min(LAST_RETRY_S, lease_ttl_s / RENEWALS_PER_TTL)
        self._failures = 0
        self._is_slow = False
        self._was_refused = False
        self._told: set[str] = set()
        self._since = self.retry_at = clock()
        self._started = self._found = 0

    @property
    def is_on(self) -> bool:
        """The last try has failed."""
        return self._failures > 0

    @property
    def keeps_from_starting(self) -> bool:
        """Nothing is to be started now."""
        return self.is_on and not self._goes_on

    @property
    def since(self) -> float:
        """When it began."""
        return self._since

    @property
    def found_from(self) -> float:
        """When requests that were found here may be started, if it is not over by then."""
        return self._since + self._grace_s

    def may_try(self) -> bool:
        """Tell whether it is time for a try."""
        return self.retry_at <= self._clock()

    def note_started(self) -> None:
        """A request is started."""
        self._started += self.is_on or self._is_slow

    def note_found(self) -> None:
        """A request was found."""
        self._found += self.is_on or self._is_slow

    def note_slow(self, address: str) -> None:
        """An answer is overdue by `SLOW_S`."""
        if self.is_on or self._is_slow:
            return
        self._is_slow = True
        self._reset(SLOW_S)
        logger.info(
            "No answer from the frontier at %s for %g s; this worker continues with its leased requests",
            address,
            SLOW_S,
        )

    def _reset(self, ago_s: float) -> None:
        self._since = self._clock() - ago_s
        self._started = self._found = 0

    def begin(
        self, error: BaseException, *, only_leased: bool = False, has_limits: bool = False, workers: int = 1
    ) -> None:
        """A try has failed.

        Args:
            only_leased: nothing is started but what the frontier has handed out.
            has_limits: slots have limits.
            workers: how many will try again, as far as is known.
        """
        longest = min(self._longest_s, FIRST_RETRY_S * 2 ** min(self._failures, 10))
        self._failures += 1
        spread = min(self._longest_s, workers * SPREAD_PER_WORKER_S)
        self.retry_at = self._clock() + longest * random.uniform(0.5, 1) + random.uniform(0, spread)
        is_first, is_refused = self._failures == 1, isinstance(error, FrontierRefused)
        if is_first:
            self._was_refused = False
            if not self._is_slow:
                self._reset(0)
        # What waiting won't mend is told also where the connection was only lost at first.
        if not is_first and (self._was_refused or not is_refused):
            logger.log(self._level_of(error), "The frontier is still unavailable: %s", error)
            return
        self._was_refused = is_refused
        self._told.add(str(error))
        does = f"continues with leased requests, and after {self._grace_s:g} s with its share of those that it finds"
        if has_limits:
            does += " and of the limits of slots"
        if not self._goes_on:
            does = "starts no new requests until then"
        elif only_leased:
            does = "starts only leased requests until then, since there are budgets, or limits of other workers"
        logger.log(
            logging.ERROR if is_refused else logging.WARNING,
            "%s; this worker keeps trying to reconnect and %s",
            error,
            does,
        )

    def _level_of(self, error: BaseException) -> int:
        """Return how loudly to tell a further failure: as a warning where it is another one than those before."""
        text = str(error)
        if text in self._told or len(self._told) >= MOST_TOLD:
            return logging.DEBUG
        self._told.add(text)
        return logging.WARNING

    def end(self, address: str) -> bool:
        """A try has succeeded; return whether the last one had failed."""
        was_on = self.is_on
        if was_on or self._is_slow:
            self._failures, self._is_slow = 0, False
            self._told.clear()
            logger.info(
                "The frontier at %s is available again after %.1f s; meanwhile %d requests were started and %d"
                " were found here",
                address,
                self._clock() - self._since,
                self._started,
                self._found,
            )
        return was_on
