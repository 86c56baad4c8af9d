"""Floods: whether there are too many requests to discover more."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf
from random import sample

from scrapy_prioqueue.frontier.memory.lanes import Lane
from scrapy_prioqueue.frontier.memory.limits import SlotLimits
from scrapy_prioqueue.frontier.policy import Policy

PATIENCE_MS = 1000
"""Time without change after which one more discovery may be served: those leased may be slow, or lost."""

SOON_MS = 60_000
"""Water marks count requests that can be served soon: those that a slot's rate allows to start within this time."""

MOST_COUNTED = 200
"""Number of slots that are counted; with more the total is estimated from a sample."""

COUNT_LASTS_MS, COUNT_LASTS_AT_MARK_MS = 500, 50
"""Maximum age of the count in general, and when it decides whether a flood begins."""


class Flood:
    """A flood begins at the high mark and ends at the low one.

    If only discovery is left, one request at a time is served. Each that ends without bringing more requests than
    itself allows one more at the same time, until one brings more.
    """

    def __init__(self) -> None:
        self.is_on = False
        self.is_at_limit = False
        """Whether the pending limit is reached, so that nothing is discovered even if nothing can be served."""
        self.held = 0
        """Pending requests that the marks don't count; 0 below the marks."""
        self._counted: tuple[int, int] | None = None
        self._left = 0
        self._width = 1
        self._since_ms = 0

    def look(self, policy: Policy, pending: int, leased: int, now_ms: int, count_held: Callable[[], int]) -> int:
        """Update the flood; return how many discoveries may be served if nothing else can be.

        Args:
            count_held: counts the pending requests that can't be served soon.
        """
        was_on, left, high_water = self.is_on, pending + leased, policy.high_water
        self.is_at_limit = 0 < policy.pending_limit <= pending
        least = inf if not high_water else policy.low_water + 1 if was_on else high_water
        self.held = self._held(pending, high_water, now_ms, count_held) if pending >= least else 0
        self.is_on = self.is_at_limit or pending - self.held >= least
        is_stuck = was_on and left == self._left and now_ms - self._since_ms >= PATIENCE_MS
        if not was_on or left > self._left:
            self._width = 1
        else:
            self._width += self._left - left + is_stuck
        if not was_on or left != self._left or is_stuck:
            self._left, self._since_ms = left, now_ms
        return max(0, self._width - leased)

    def _held(self, pending: int, high_water: int, now_ms: int, count_held: Callable[[], int]) -> int:
        if self._counted is not None:
            held, at_ms = self._counted
            is_below = self.is_on or pending - held < high_water
            if now_ms - at_ms < (COUNT_LASTS_MS if is_below else COUNT_LASTS_AT_MARK_MS):
                return held
        self._counted = count_held(), now_ms
        return self._counted[0]


def held_back(lanes: Sequence[Lane], limits: SlotLimits | None, now_ms: int) -> int:
    """Count pending requests of slots that are closed, or too slow to serve them soon."""
    if limits is None:
        return 0
    positions = [(lane, slot) for lane in lanes for slot, _, _ in lane.items()]
    total, held = len(positions), 0
    if total > MOST_COUNTED:
        positions = sample(positions, MOST_COUNTED)
    for lane, slot in positions:
        count = sum(len(each.of_slot(slot)) for each in lanes)
        excess = count - limits.may_start_within(slot, now_ms, SOON_MS)
        if excess > 0:
            held += len(lane.of_slot(slot)) * int(excess) // count
    return held * total // len(positions) if positions else 0
