"""Whether there are so many requests that no more are to be discovered; numbers only."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf
from random import sample

from scrapy_prioqueue.frontier.memory.lanes import Lane
from scrapy_prioqueue.frontier.memory.limits import SlotLimits
from scrapy_prioqueue.frontier.policy import Policy

PATIENCE_MS = 1000
"""After so long without any change one more may go on: those that are out may be slow, or their workers lost."""

SOON_MS = 60_000
"""Marks count what can be served soon: of a slot as many requests as its rate lets start within this time."""

MOST_COUNTED = 200
"""With more places in line than that, the others are estimated."""

COUNT_LASTS_MS, COUNT_LASTS_AT_MARK_MS = 500, 50
"""So old a count may be while there is a flood, and where one would begin."""


class Flood:
    """A flood begins at the high mark and ends at the low one.

    Where nothing but discovery is left, one request at a time goes on; each that ends without bringing more than itself
    lets one more go on beside it, until one does.
    """

    def __init__(self) -> None:
        self.is_on = False
        self.is_at_limit = False
        """Nothing more is to be stored, whatever can be served."""
        self.held = 0
        """Pending requests that marks don't count, 0 below them."""
        self._counted: tuple[int, int] | None = None
        self._left = 0
        self._width = 1
        self._since_ms = 0

    def look(self, policy: Policy, pending: int, leased: int, now_ms: int, count_held: Callable[[], int]) -> int:
        """See how many are pending, and return how many discoveries may be served where nothing else can be.

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
    """Count the pending requests of slots that are closed, or too slow to serve them soon."""
    if limits is None:
        return 0
    places = [(lane, slot) for lane in lanes for slot, _, _ in lane.items()]
    total, held = len(places), 0
    if total > MOST_COUNTED:
        places = sample(places, MOST_COUNTED)
    for lane, slot in places:
        count = sum(len(each.of_slot(slot)) for each in lanes)
        excess = count - limits.may_start_within(slot, now_ms, SOON_MS)
        if excess > 0:
            held += len(lane.of_slot(slot)) * int(excess) // count
    return held * total // len(places) if places else 0
