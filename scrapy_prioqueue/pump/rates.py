"""What a worker may start of slots with limits while the server is away: its share of each rate."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import ceil
from typing import Any

from scrapy_prioqueue.frontier.base import Frontier
from scrapy_prioqueue.frontier.kept import Kept
from scrapy_prioqueue.frontier.memory.limits import MOST_LEARNT, PartLimits
from scrapy_prioqueue.frontier.policy import Closing, CrawlDelay, LimitsInForce, Note, joined_limits
from scrapy_prioqueue.pump.alarm import Alarm
from scrapy_prioqueue.pump.possession import Possession
from scrapy_prioqueue.pump.shares import Shares

LOOK_S = 5.0
"""Seconds after which a worker asks again which limits are in force."""


class OwnRates:
    """Divides what slots are limited to among the workers that lived when the outage began.

    Of n workers each keeps n times the delay of a slot, and begins at another time. Of the requests that a slot may
    have at a time each has as many; what can't be divided goes to those that come first for this slot.

    Args:
        frontier: what limits there are, as far as is known here.
        shares: who lived when the outage began.
        clock: monotonic, in seconds.
        on_open: called when a slot opens for which a request has waited.
    """

    def __init__(
        self,
        frontier: Frontier,
        shares: Shares,
        possession: Possession[Any],
        clock: Callable[[], float],
        on_open: Callable[[], object],
    ) -> None:
        self._frontier = frontier
        self._shares = shares
        self._possession = possession
        self._clock = clock
        self._alarm = Alarm(clock, on_open)
        self.are_known = False
        """This worker knows which limits are in force, so that it can keep its share of them."""
        self._closed: dict[str, float] = {}
        self._crawl_delays: dict[str, int] = {}
        self._looked_at = float("-inf")
        self._limits: PartLimits | None = None
        self._began: set[str] = set()

    # What is known before an outage

    @property
    def must_look(self) -> bool:
        """It is time to ask which limits are in force."""
        return self._clock() - self._looked_at >= LOOK_S

    def note_in_force(self, limits: LimitsInForce) -> None:
        """These limits are in force."""
        self._looked_at = now = self._clock()
        self.are_known = limits.are_known
        self._closed = {slot: at for slot, at in self._closed.items() if at > now}
        for slot, wait_ms in limits.closed_ms.items():
            self.note(Closing(slot, wait_ms))

    def note(self, note: Note) -> None:
        """Take account of what this worker has learnt of a slot."""
        if isinstance(note, Closing):
            self._closed[note.slot] = max(self._closed.get(note.slot, 0.0), self._clock() + note.wait_ms / 1000)
        elif isinstance(note, CrawlDelay):
            self._crawl_delays.pop(note.slot, None)
            self._crawl_delays[note.slot] = note.delay_ms
            if len(self._crawl_delays) > MOST_LEARNT:
                del self._crawl_delays[next(iter(self._crawl_delays))]
        if self._limits is not None and not isinstance(note, Kept):
            self._limits.note(note, self._now_ms())

    # In an outage

    def begin(self) -> None:
        """The server is away."""
        if self._limits is not None:
            return
        policy, now = self._frontier.config.policy, self._clock()
        self._limits, self._began = PartLimits(self._shares.part_of), set()
        self._limits.adopt(replace(policy, slots=joined_limits(self._frontier.said_limits(), policy.slots)))
        for slot, delay_ms in self._crawl_delays.items():
            self._limits.note(CrawlDelay(slot, delay_ms), self._now_ms())
        for slot, at in self._closed.items():
            if at > now:
                self._limits.note(Closing(slot, ceil((at - now) * 1000)), self._now_ms())

    def end(self) -> None:
        """The server answers."""
        self._limits = None
        self._alarm.cancel()

    def may_start(self, slot: str) -> bool:
        """Tell whether one more request of a slot may be started here; if only later, the host is woken then."""
        limits, now_ms = self._limits, self._now_ms()
        if limits is None:
            return True
        if slot not in self._began:
            self._began.add(slot)
            limits.begin(slot, now_ms)
        limits.count_running(hold.lease.slot for hold in self._possession.held.values())
        if limits.is_full(slot):
            return False
        opens_ms = limits.opens_ms(slot)
        if opens_ms > now_ms:
            self._alarm.set(opens_ms / 1000)
        return opens_ms <= now_ms

    def note_start(self, slot: str) -> None:
        """A request of a slot is started."""
        if self._limits is not None:
            self._limits.charge(slot, self._now_ms())
            self._limits.changed.clear()

    def _now_ms(self) -> int:
        return int(self._clock() * 1000)
