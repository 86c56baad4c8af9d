"""Log lines about floods: one at the beginning and one at the end, and not every few seconds."""

from __future__ import annotations

import logging

from scrapy import Spider

from scrapy_prioqueue.frontier.policy import Policy
from scrapy_prioqueue.runtime import Timer, call_later

logger = logging.getLogger(__name__)

QUIET_S = 60.0
"""Seconds between two lines about floods."""


class Floods:
    """Tells when the frontier is flooded, and when it no longer is.

    A `start()` of millions fills the frontier again each time that it has fallen to the low mark, which is as it should
    be; so floods that follow soon upon one that was told are only counted, unless they last.
    """

    def __init__(self, policy: Policy, spider: Spider | None) -> None:
        self._policy = policy
        self._spider = spider
        self._is_on = False
        self._is_told = False
        self._times = 0
        self._pending = 0
        self._quiet: Timer | None = None

    def change(self, *, is_on: bool, pending: int) -> None:
        """Tell that a flood begins or ends.

        Args:
            pending: requests that wait in the frontier.
        """
        self._is_on, self._pending = is_on, pending
        self._times += is_on
        if is_on and self._quiet is None:
            self._begin()
        elif not is_on and self._is_told:
            self._end()

    def close(self) -> None:
        """Tell nothing more."""
        if self._quiet is not None:
            self._quiet.cancel()

    def _look(self) -> None:
        self._quiet = None
        if self._is_on and not self._is_told:
            self._begin()

    def _begin(self) -> None:
        policy = self._policy
        if 0 < policy.pending_limit <= self._pending:
            why = f"{self._pending} requests wait (PRIOQUEUE_PENDING_LIMIT = {policy.pending_limit})"
            end = "fewer do"
        elif policy.high_water and self._pending > policy.low_water:
            why = f"{self._pending} requests wait (PRIOQUEUE_HIGH_WATER = {policy.high_water})"
            end = f"{policy.low_water} are left (PRIOQUEUE_LOW_WATER)"
        else:
            part = f" = {policy.memory_high_water:g}" if policy.memory_high_water else ""
            why, end = (
                f"the server's memory is used up to PRIOQUEUE_MEMORY_HIGH_WATER{part}",
                "some of it is free again",
            )
        logger.info(
            "The frontier is flooded: %s. Until %s, start() and seeds are not read, and no requests of"
            " PRIOQUEUE_DISCOVERY_TIERS are served while others can be%s",
            why,
            end,
            f" ({self._times - 1} more floods since the last line of this kind)" if self._times > 1 else "",
            extra={"spider": self._spider},
        )
        self._is_told, self._times = True, 0
        self._quiet = call_later(QUIET_S, self._look)

    def _end(self) -> None:
        low_water = self._policy.low_water
        low = f" (PRIOQUEUE_LOW_WATER = {low_water})" if self._policy.high_water else ""
        if low and self._pending > low_water:
            low = f", and at most {low_water} of them can be served soon (PRIOQUEUE_LOW_WATER)"
        logger.info(
            "The frontier is no longer flooded: %d requests wait%s. start() and seeds are read, and all tiers are"
            " served again",
            self._pending,
            low,
            extra={"spider": self._spider},
        )
        self._is_told = False
