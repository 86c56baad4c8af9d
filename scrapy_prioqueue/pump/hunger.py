"""Whether the frontier had nothing for this worker, and when to ask again."""

from __future__ import annotations

from scrapy_prioqueue.frontier.base import Demand, Exchanged
from scrapy_prioqueue.pump.timing import (
    DRY_FLUSH_S,
    FLUSH_S,
    LAST_SLOT_POLL_S,
    POLL_S,
    POLL_WITHOUT_BELL_S,
    SLOT_POLL_S,
)


class Hunger:
    """Follows the answers and the bell.

    Args:
        now: monotonic time in seconds.
        is_local: whether the frontier is in process, and is asked for each request when it is due.
    """

    def __init__(self, now: float, *, is_local: bool = False) -> None:
        self.is_dry = False
        self.poll_at = now
        self.awaits_slot = False
        """There are limits or budgets, and the frontier has said when to ask again."""
        self.awaits_time = False
        """Requests are there that time alone makes due."""
        self._is_local = is_local
        self._longest_pause_s = SLOT_POLL_S if is_local else LAST_SLOT_POLL_S
        self._pause_s = SLOT_POLL_S
        self._asked_at = now
        self._has_rung = False
        self._has_later = False

    @property
    def flush_s(self) -> float:
        """Seconds after which something in the outbox makes an exchange due."""
        return DRY_FLUSH_S if self.is_dry and not self._has_later else FLUSH_S

    def note_ring(self, *, is_asking: bool) -> None:
        """The bell was rung; an answer that is under way may have been given before."""
        self._has_rung = is_asking
        self.is_dry = False

    def note_answer(self, answer: Exchanged, demand: Demand, now: float, *, has_food: bool, hears_bell: bool) -> None:
        """Take note of what was demanded, and whether there was something to start now among what was given."""
        self.is_dry = demand.limit > 0 and not has_food and not self._has_rung
        self._has_rung = False
        self._has_later = bool(answer.leases) and not has_food
        self.awaits_slot = answer.must_ask and answer.next_due_s is not None
        self.awaits_time = answer.depth.delayed > 0 or (self.awaits_slot and answer.depth.pending > 0)
        wait_s = POLL_S if hears_bell else POLL_WITHOUT_BELL_S
        if answer.next_due_s is not None:
            wait_s = min(wait_s, answer.next_due_s + DRY_FLUSH_S)
        self.poll_at = now + wait_s
        if answer.over_budget and answer.next_due_s == 0:
            # More is to be given up than one call does, and there may be something else behind it.
            self.poll_at = now + (DRY_FLUSH_S if self._is_local else 0)
        elif answer.must_ask:
            self._note_asked(answer, demand, now)
            self.poll_at = max(self.poll_at, self._asked_at + self._pause_s)

    def _note_asked(self, answer: Exchanged, demand: Demand, now: float) -> None:
        if demand.limit or demand.later_limit:
            self._asked_at = now
            self._pause_s = SLOT_POLL_S if answer.leases else min(2 * self._pause_s, self._longest_pause_s)
