"""Whether the frontier had nothing for this worker, and when to ask again."""

from __future__ import annotations

from scrapy_prioqueue.frontier.base import Demand, Exchanged
from scrapy_prioqueue.pump.timing import DRY_FLUSH_S, FLUSH_S, POLL_S, POLL_WITHOUT_BELL_S


class Hunger:
    """Follows the answers and the bell.

    Args:
        now: monotonic time in seconds.
    """

    def __init__(self, now: float) -> None:
        self.is_dry = False
        self.poll_at = now
        self._has_rung = False

    @property
    def flush_s(self) -> float:
        """Seconds after which something in the outbox makes an exchange due."""
        return DRY_FLUSH_S if self.is_dry else FLUSH_S

    def note_ring(self, *, is_asking: bool) -> None:
        """The bell was rung; an answer that is under way may have been given before."""
        self._has_rung = is_asking
        self.is_dry = False

    def note_answer(self, answer: Exchanged, demand: Demand, now: float, *, has_food: bool, hears_bell: bool) -> None:
        """Take note of what was demanded, and whether there was something to start among what was given."""
        self.is_dry = demand.limit > 0 and not has_food and not self._has_rung
        self._has_rung = False
        wait_s = POLL_S if hears_bell else POLL_WITHOUT_BELL_S
        if answer.next_due_s is not None:
            wait_s = min(wait_s, answer.next_due_s + DRY_FLUSH_S)
        self.poll_at = now + wait_s
