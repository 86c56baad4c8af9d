"""Whether there are so many requests that no more are to be discovered; numbers only."""

from __future__ import annotations

from scrapy_prioqueue.frontier.policy import Policy


class Flood:
    """A flood begins at the high mark and ends at the low one; `mark` is the lowest count since it began."""

    def __init__(self) -> None:
        self.is_on = False
        self._mark = 0

    def look(self, policy: Policy, pending: int, leased: int) -> int | None:
        """See how many are pending, and return how many discoveries may be served where nothing else can be.

        As long as there are fewer and fewer requests, discovery does no harm; else it goes on one at a time.

        Returns:
            None for any number.
        """
        if self.is_on:
            self.is_on = pending > policy.low_water and policy.high_water > 0
            falls = pending <= self._mark
            self._mark = min(self._mark, pending)
        else:
            self.is_on = 0 < policy.high_water <= pending
            falls, self._mark = True, pending
        if falls or not self.is_on:
            return None
        return 1 if leased == 0 else 0
