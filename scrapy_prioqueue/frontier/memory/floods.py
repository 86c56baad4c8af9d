"""Whether there are so many requests that no more are to be discovered; numbers only."""

from __future__ import annotations

from scrapy_prioqueue.frontier.policy import Policy

PATIENCE_MS = 1000
"""After so long without any change one more may go on: those that are out may be slow, or their workers lost."""


class Flood:
    """A flood begins at the high mark and ends at the low one.

    Where nothing but discovery is left, one request at a time goes on; each that ends without bringing more than itself
    lets one more go on beside it, until one does.
    """

    def __init__(self) -> None:
        self.is_on = False
        self._left = 0
        self._width = 1
        self._since_ms = 0

    def look(self, policy: Policy, pending: int, leased: int, now_ms: int) -> int:
        """See how many are pending, and return how many discoveries may be served where nothing else can be."""
        was_on, left = self.is_on, pending + leased
        self.is_on = policy.high_water > 0 and (pending > policy.low_water if was_on else pending >= policy.high_water)
        is_stuck = was_on and left == self._left and now_ms - self._since_ms >= PATIENCE_MS
        if not was_on or left > self._left:
            self._width = 1
        else:
            self._width += self._left - left + is_stuck
        if not was_on or left != self._left or is_stuck:
            self._left, self._since_ms = left, now_ms
        return max(0, self._width - leased)
