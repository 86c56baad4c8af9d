"""This worker's share of the requests found in an outage, and of each slot's limits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from hashlib import blake2b
from math import ceil
from typing import Any

from scrapy_prioqueue.frontier.base import Frontier, Push
from scrapy_prioqueue.frontier.kept import Kept
from scrapy_prioqueue.frontier.memory.limits import MOST_LEARNT, Part, PartLimits
from scrapy_prioqueue.frontier.policy import Closing, CrawlDelay, LimitsInForce, Note, merged_by_name
from scrapy_prioqueue.pump.leases import Leases
from scrapy_prioqueue.runtime import Alarm

LIST_AGAIN_S, LIST_SOONEST_S = 60.0, 5.0
"""Seconds after which the living workers are listed again, and the minimum if their number has changed."""

_MASK, _GOLDEN = 2**64 - 1, 0x9E3779B97F4A7C15


class Shares:
    """Shares the requests found in an outage among the workers that were alive when it began.

    Workers find the same links. Rendezvous hashing assigns each link to one worker without communication.

    Args:
        worker: id of this worker.
        clock: monotonic, in seconds.
    """

    def __init__(self, worker: str, clock: Callable[[], float]) -> None:
        self._own = _number(worker.encode())
        self._clock = clock
        self._others: Sequence[int] = ()
        self._count = self._listed = 1
        self._listed_at = float("-inf")

    @property
    def must_list(self) -> bool:
        """Whether the living workers must be listed."""
        if self._count <= 1:
            return False
        age_s = self._clock() - self._listed_at
        return age_s >= (LIST_AGAIN_S if self._count == self._listed else LIST_SOONEST_S)

    def note_alive(self, count: int) -> None:
        """Set the number of living workers."""
        self._count = count
        if count <= 1:
            self._others, self._listed = (), 1

    def note_workers(self, names: Sequence[str]) -> None:
        """Set the ids of the living workers."""
        self._listed_at, self._listed = self._clock(), len(names)
        self._others = [other for name in names if (other := _number(name.encode())) != self._own]

    def is_mine(self, push: Push) -> bool:
        """Return whether a request that others may find, too, is this worker's to start."""
        key = push.fingerprint or push.start_mark
        if key is None or not self._others:
            # A request that is never a duplicate is found by this worker only.
            return True
        number = _number(key)
        own = _mixed(number, self._own)
        return all(own > _mixed(number, other) for other in self._others)

    def part_of(self, slot: str) -> Part:
        """Return this worker's position among those that divide the limit of a slot."""
        number = _number(slot.encode("utf-8", "surrogatepass"))
        own = _mixed(number, self._own)
        index = sum(_mixed(number, other) > own for other in self._others)
        return Part(max(self._count, len(self._others) + 1), index)


def _number(text: bytes) -> int:
    return int.from_bytes(blake2b(text, digest_size=8).digest(), "big")


def _mixed(number: int, other: int) -> int:
    return ((number ^ other) * _GOLDEN) & _MASK


LIMITS_REFRESH_S = 5.0
"""Seconds after which a worker asks again for the limits in force."""


class LimitShares:
    """Divides the limits of slots among the workers that were alive when the outage began.

    Each of n workers uses n times the delay of a slot, and starts at a different time. The concurrency is divided by n;
    the first workers in the slot's order get the remainder.

    Args:
        frontier: has the limits, as far as they are known here.
        shares: the workers that were alive when the outage began.
        clock: monotonic, in seconds.
        on_open: called when a slot opens for which a request has waited.
    """

    def __init__(
        self,
        frontier: Frontier,
        shares: Shares,
        leases: Leases[Any],
        clock: Callable[[], float],
        on_open: Callable[[], object],
    ) -> None:
        self._frontier = frontier
        self._shares = shares
        self._leases = leases
        self._clock = clock
        self._alarm = Alarm(clock, on_open)
        self.are_known = False
        """This worker knows the limits in force, so it can apply its share of them."""
        self._closed: dict[str, float] = {}
        self._crawl_delays: dict[str, int] = {}
        self._looked_at = float("-inf")
        self._limits: PartLimits | None = None
        self._began: set[str] = set()

    # Before an outage

    @property
    def must_look(self) -> bool:
        """Whether to ask for the limits in force now."""
        return self._clock() - self._looked_at >= LIMITS_REFRESH_S

    def note_in_force(self, limits: LimitsInForce) -> None:
        """Store the limits in force."""
        self._looked_at = now = self._clock()
        self.are_known = limits.are_known
        self._closed = {slot: at for slot, at in self._closed.items() if at > now}
        for slot, wait_ms in limits.closed_ms.items():
            self.note(Closing(slot, wait_ms))

    def note(self, note: Note) -> None:
        """Apply what this worker has learned about a slot."""
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
        """Begin to divide the limits, in an outage."""
        if self._limits is not None:
            return
        policy, now = self._frontier.config.policy, self._clock()
        self._limits, self._began = PartLimits(self._shares.part_of), set()
        self._limits.adopt(replace(policy, slots=merged_by_name(self._frontier.operators_limits(), policy.slots)))
        for slot, delay_ms in self._crawl_delays.items():
            self._limits.note(CrawlDelay(slot, delay_ms), self._now_ms())
        for slot, at in self._closed.items():
            if at > now:
                self._limits.note(Closing(slot, ceil((at - now) * 1000)), self._now_ms())

    def end(self) -> None:
        """Stop dividing the limits."""
        self._limits = None
        self._alarm.cancel()

    def may_start(self, slot: str) -> bool:
        """Return whether one more request of a slot may start here; if only later, the delegate is woken then."""
        limits, now_ms = self._limits, self._now_ms()
        if limits is None:
            return True
        if slot not in self._began:
            self._began.add(slot)
            limits.begin(slot, now_ms)
        limits.count_running(held.lease.slot for held in self._leases.held.values())
        if limits.is_full(slot):
            return False
        opens_ms = limits.opens_ms(slot)
        if opens_ms > now_ms:
            self._alarm.set(opens_ms / 1000)
        return opens_ms <= now_ms

    def note_start(self, slot: str) -> None:
        """Count the start of a request."""
        if self._limits is not None:
            self._limits.charge(slot, self._now_ms())
            self._limits.changed.clear()

    def _now_ms(self) -> int:
        return int(self._clock() * 1000)
