"""Limits of slots: their values, running requests and next start times."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from math import ceil, floor, inf
from typing import NamedTuple

from scrapy_prioqueue.frontier.policy import (
    CATCH_UP_MS,
    LATE_MS,
    LINGER_MS,
    STRETCH,
    Closing,
    CrawlDelay,
    HeldUp,
    Latency,
    LimitInForce,
    Policy,
    SlotLimit,
    SlotNote,
    Throttle,
    limit_of,
)

_MOST_RESOLVED = 10_000
"""Number of slots whose limits are cached; computing them again takes a few microseconds."""


MOST_LEARNT, LOOKED_AT, IDLE_MS = 20_000, 8, 70_000
"""With values for more slots than the first, each note checks this many old ones, and drops those idle so long."""


class Part(NamedTuple):
    """A worker's position among several that share limits.

    Args:
        number: from 0; the first ones get the remainder of a division.
    """

    workers: int
    number: int


class Timing(NamedTuple):
    """When a lease may start; see `Lease`."""

    start_in_ms: int = 0
    late_ms: int | None = None


class SlotLimits:
    """The limits of slots, and for each slot the number of leased requests and the next start time.

    `changed` collects the slots whose positions in lanes may have changed.

    Args:
        has_requests: returns whether a slot has pending requests.
    """

    def __init__(self, has_requests: Callable[[str], bool]) -> None:
        self._has_requests = has_requests
        self.changed: set[str] = set()
        self._limits: dict[str, SlotLimit] = {}
        self._throttle: Throttle | None = None
        self._awaits_crawl_delay = False
        self._resolved: dict[str, LimitInForce] = {}
        self._crawl_delays_ms: dict[str, int] = {}
        self._throttled_ms: dict[str, float] = {}
        self._noted_ms: dict[str, int] = {}
        self._paced_ms: dict[str, float] = {}
        self._closed_ms: dict[str, float] = {}
        self._most_paced = 1000
        self._running: dict[str, int] = {}

    def adopt(self, policy: Policy) -> None:
        """Apply this policy from now on; the state of the slots is kept."""
        self._limits, self._throttle = dict(policy.slots), policy.throttle
        self._awaits_crawl_delay = policy.awaits_crawl_delay
        self._resolved.clear()

    def count_running(self, slots: Iterable[str]) -> None:
        """Begin to count leases, given the slot of each current one."""
        self._running.clear()
        for slot in slots:
            self._running[slot] = self._running.get(slot, 0) + 1

    def learn(
        self, slot: str, *, running: int, paced_ms: float, crawl_delay_ms: int | None, throttled_ms: float | None
    ) -> None:
        """Set a slot's state as another process knows it."""
        self._running[slot], self._paced_ms[slot] = running, paced_ms
        if crawl_delay_ms is not None:
            self._crawl_delays_ms[slot] = crawl_delay_ms
        if throttled_ms is not None:
            self._throttled_ms[slot] = throttled_ms

    def is_full(self, slot: str) -> bool:
        """Return whether a slot is at its concurrency."""
        return 0 < self.concurrency_of(slot) <= self._running.get(slot, 0)

    def concurrency_of(self, slot: str) -> int:
        """Return how many requests of a slot may be leased, 0 for any number."""
        is_unknown = self._awaits_crawl_delay and slot not in self._crawl_delays_ms
        return 1 if is_unknown else self._limit_of(slot).concurrency

    def opens_ms(self, slot: str) -> float:
        """Return when the next request of a slot may start, not considering its concurrency."""
        paced_ms = self._paced_ms.get(slot)
        if paced_ms is None:
            return 0.0
        return paced_ms - (self._limit_of(slot).burst - 1) * self._interval_ms(slot)

    def may_reserve(self, slot: str, now_ms: int) -> bool:
        """Return whether a place may be reserved for the next request of a slot.

        A leased request that still waits will leave its place to the next one. So none is reserved while requests of
        the slot wait, unless enough are running to show that pages take longer than the interval.
        """
        interval_ms = self._interval_ms(slot)
        waiting = ceil((self.opens_ms(slot) - now_ms) / interval_ms) - 1 if interval_ms else 0
        return waiting <= 0 or 2 * waiting < self._running.get(slot, 0)

    def reservable(self, slot: str, last_ms: float) -> int:
        """Return how many places may be reserved for requests of a slot that start by then, if none is leased ahead."""
        interval_ms, opens_ms, running = self._interval_ms(slot), self.opens_ms(slot), self._running.get(slot, 0)
        if opens_ms > last_ms or self.is_full(slot):
            return 0
        by_time = 1 + int((last_ms - opens_ms) / interval_ms) if interval_ms else 1
        return min(by_time, max(1, running))

    def is_closed(self, slot: str, now_ms: int) -> bool:
        """Return whether the site of a slot has asked for a pause that isn't over."""
        return self._closed_ms.get(slot, 0.0) > now_ms

    def closed_ms(self, now_ms: int) -> dict[str, int]:
        """Return the remaining pauses that sites have asked for, by slot."""
        return {slot: ceil(at - now_ms) for slot, at in self._closed_ms.items() if at > now_ms}

    def may_end(self, now_ms: int) -> bool:
        """Return whether limits may be switched off: only sites asked for pauses, and these ended a while ago."""
        if self._limits or self._throttle or self._awaits_crawl_delay or self._crawl_delays_ms or self._throttled_ms:
            return False
        if any(at + LINGER_MS > now_ms for at in self._closed_ms.values()):
            return False
        return not any(self._has_requests(slot) for slot in self._paced_ms if self.opens_ms(slot) > now_ms)

    def forget(self) -> None:
        """Forget the next start times of slots."""
        self._paced_ms.clear()
        self._closed_ms.clear()

    def may_start(self, slot: str, now_ms: int) -> bool:
        """Return whether a request of a slot may start now."""
        return not self.is_full(slot) and self.opens_ms(slot) <= now_ms

    def may_start_within(self, slot: str, now_ms: int, span_ms: int) -> float:
        """Return how many requests of a slot may start within this time, not considering its concurrency."""
        interval_ms = self._interval_ms(slot)
        lead_ms = (self._limit_of(slot).burst - 1) * interval_ms
        first_ms = max(self._paced_ms.get(slot, 0.0), now_ms) - lead_ms
        if first_ms > now_ms + span_ms:
            return 0
        return floor((now_ms + span_ms - first_ms) / interval_ms) + 1 if interval_ms else inf

    def charge(self, slot: str, now_ms: int) -> Timing:
        """Count a lease, even beyond the limits; return when it may start."""
        self._running[slot] = self._running.get(slot, 0) + 1
        self.changed.add(slot)
        start_ms = max(now_ms, self.opens_ms(slot))
        start_in_ms = ceil(start_ms - now_ms)
        interval_ms = self._interval_ms(slot)
        if not interval_ms:
            return Timing(start_in_ms)
        credit_ms = min(CATCH_UP_MS, interval_ms / 2)
        paced_ms = max(self._paced_ms.get(slot, 0.0), start_ms - credit_ms) + interval_ms
        self._pace(slot, paced_ms, now_ms)
        return Timing(start_in_ms, floor(LATE_MS + interval_ms / 2))

    def discharge(self, slot: str) -> None:
        """Count the end of a lease."""
        self.changed.add(slot)
        self._running[slot] -= 1
        if not self._running[slot]:
            del self._running[slot]

    def note(self, note: SlotNote, now_ms: int) -> None:
        """Apply a worker's note about a slot."""
        self.changed.add(note.slot)
        if isinstance(note, Closing):
            lead_ms = (self._limit_of(note.slot).burst - 1) * self._interval_ms(note.slot)
            paced_ms = max(self._paced_ms.get(note.slot, 0.0), now_ms + note.wait_ms + lead_ms)
            self._pace(note.slot, paced_ms, now_ms)
            self._closed_ms = {slot: at for slot, at in self._closed_ms.items() if at + LINGER_MS > now_ms}
            self._closed_ms[note.slot] = max(self._closed_ms.get(note.slot, 0.0), now_ms + note.wait_ms)
        elif isinstance(note, CrawlDelay):
            self._crawl_delays_ms[note.slot] = note.delay_ms
            if note.starts_now:
                self._start_anew(note.slot, now_ms)
            self._forget_idle(note.slot, now_ms)
        elif isinstance(note, HeldUp):
            self._start_anew(note.slot, now_ms)
        elif self._throttle is not None:
            self._adapt(note, self._throttle)
            self._forget_idle(note.slot, now_ms)

    def _start_anew(self, slot: str, now_ms: int) -> None:
        """Count the delay of a slot from now, since its last page starts no earlier."""
        interval_ms = self._interval_ms(slot)
        if interval_ms:
            paced_ms = now_ms + self._limit_of(slot).burst * interval_ms
            self._pace(slot, max(self._paced_ms.get(slot, 0.0), paced_ms), now_ms)

    def _forget_idle(self, slot: str, now_ms: int) -> None:
        """Update the time of this slot's last note; if many slots have learned values, drop those of some idle ones."""
        self._noted_ms.pop(slot, None)
        self._noted_ms[slot] = now_ms
        for _ in range(LOOKED_AT):
            oldest, noted_ms = next(iter(self._noted_ms.items()))
            if len(self._noted_ms) <= MOST_LEARNT or noted_ms > now_ms - IDLE_MS:
                return
            del self._noted_ms[oldest]
            if oldest in self._running or self._paced_ms.get(oldest, 0) > now_ms or self._has_requests(oldest):
                self._noted_ms[oldest] = now_ms
            else:
                self._crawl_delays_ms.pop(oldest, None)
                self._throttled_ms.pop(oldest, None)

    def _adapt(self, latency: Latency, throttle: Throttle) -> None:
        """Adapt the delay to a latency as Scrapy's AutoThrottle does.

        The slot's limit isn't considered, since it may change; the longer of the two delays is used anyway.
        """
        slot = latency.slot
        old_ms = self._throttled_ms.get(slot, throttle.start_delay_s * 1000)
        target_ms = latency.latency_ms / throttle.target_concurrency
        new_ms = min(max(target_ms, (old_ms + target_ms) / 2), throttle.max_delay_s * 1000)
        if latency.is_success or new_ms > old_ms:
            self._throttled_ms[slot] = new_ms

    def _interval_ms(self, slot: str) -> float:
        return self.delay_ms(slot) * STRETCH

    def delay_ms(self, slot: str) -> float:
        """Return the longest of the delays that policy, robots.txt and latency ask for."""
        delay_ms = self._limit_of(slot).delay * 1000
        if self._crawl_delays_ms:
            delay_ms = max(delay_ms, self._crawl_delays_ms.get(slot, 0))
        if self._throttle is not None:
            throttled_ms = self._throttled_ms.get(slot, self._throttle.start_delay_s * 1000)
            delay_ms = max(delay_ms, min(throttled_ms, self._throttle.max_delay_s * 1000))
        return delay_ms

    def _limit_of(self, slot: str) -> LimitInForce:
        resolved = self._resolved.get(slot)
        if resolved is None:
            if len(self._resolved) >= _MOST_RESOLVED:
                self._resolved.clear()
            resolved = self._resolved[slot] = self._resolve(slot)
        return resolved

    def _resolve(self, slot: str) -> LimitInForce:
        return limit_of(slot, self._limits)

    def _pace(self, slot: str, paced_ms: float, now_ms: int) -> None:
        self._paced_ms[slot] = paced_ms
        if len(self._paced_ms) > self._most_paced:
            # Times before that don't affect a slot any more, since it can't catch up on them.
            self._paced_ms = {slot: at for slot, at in self._paced_ms.items() if at > now_ms - CATCH_UP_MS}
            self._most_paced = max(1000, 2 * len(self._paced_ms))


class PartLimits(SlotLimits):
    """One worker's share of the limits of slots, while workers can't coordinate.

    Args:
        part_of: returns this worker's position among those that share a slot.
    """

    def __init__(self, part_of: Callable[[str], Part]) -> None:
        super().__init__(lambda _: False)
        self._part_of = part_of

    def begin(self, slot: str, now_ms: int) -> None:
        """Delay the first request of a slot, so that the workers begin one after the other."""
        interval_ms = super()._interval_ms(slot)
        if interval_ms:
            first_ms = now_ms + (self._part_of(slot).number + 1) * interval_ms
            self._pace(slot, max(self._paced_ms.get(slot, 0.0), first_ms), now_ms)

    def is_full(self, slot: str) -> bool:
        concurrency = self.concurrency_of(slot)
        if not concurrency:
            return False
        part = self._part_of(slot)
        share = concurrency // part.workers + (part.number < concurrency % part.workers)
        return self._running.get(slot, 0) >= share

    def _interval_ms(self, slot: str) -> float:
        return super()._interval_ms(slot) * self._part_of(slot).workers

    def _resolve(self, slot: str) -> LimitInForce:
        return replace(super()._resolve(slot), burst=1)
