"""Waiting slots: marks each slot as ready, soon or waiting in its lanes, and updates that when its time comes."""

from __future__ import annotations

from collections.abc import Sequence

from scrapy_prioqueue.frontier.memory.heapmap import HeapMap
from scrapy_prioqueue.frontier.memory.lanes import Lane, Place
from scrapy_prioqueue.frontier.memory.limits import SlotLimits


class Waiting:
    """Keeps slots ready, soon or waiting, as their limits require; a waiting slot costs no time meanwhile.

    Args:
        limits: of the slots.
        lanes: the lanes of the slots; a slot may be in several.
    """

    __slots__ = ("_horizon_ms", "_lanes", "_limits", "_now_ms", "_soon_ms", "_waiting_ms")

    def __init__(self, limits: SlotLimits, lanes: Sequence[Lane]) -> None:
        self._limits = limits
        self._lanes = lanes
        self._now_ms = self._horizon_ms = 0
        self._soon_ms: HeapMap[str, float] = HeapMap()
        self._waiting_ms: HeapMap[str, float] = HeapMap()
        self._limits.changed.update(slot for lane in lanes for slot, _, _ in lane.items())

    def settle(self, now_ms: int, ahead_ms: int) -> None:
        """Update the state of every slot: those that open within `ahead_ms` are `soon`, and perhaps some later ones."""
        if ahead_ms < self._horizon_ms / 2:
            # The horizon is lowered only if it has halved, since `ahead_ms` changes slightly with each demand.
            self._limits.changed.update(slot for slot, _ in self._soon_ms.items())
            self._horizon_ms = 0
        self._now_ms, self._horizon_ms = now_ms, max(ahead_ms, self._horizon_ms)
        horizon_ms = self._horizon_ms
        while (first := self._soon_ms.first()) and first[0] <= now_ms:
            self.place(first[1])
        while (first := self._waiting_ms.first()) and first[0] <= now_ms + horizon_ms:
            self.place(first[1])
        for slot in list(self._limits.changed):
            self.place(slot)

    def place(self, slot: str) -> None:
        """Update the state of a slot, for the time and horizon of the last `settle`."""
        self._limits.changed.discard(slot)
        self._soon_ms.discard(slot)
        self._waiting_ms.discard(slot)
        lanes = [lane for lane in self._lanes if slot in lane]
        if not lanes:
            return
        place: Place = "waiting"
        if not self._limits.is_full(slot):
            opens_ms = self._limits.opens_ms(slot)
            if opens_ms <= self._now_ms:
                place = "ready"
            elif opens_ms <= self._now_ms + self._horizon_ms:
                place, self._soon_ms[slot] = "soon", opens_ms
            else:
                self._waiting_ms[slot] = opens_ms
        for lane in lanes:
            lane.move(slot, place)

    def waiting_ms(self) -> list[tuple[float, str]]:
        """Return the slots that wait for their time, as (opening time, slot), the first to open first."""
        items = [*self._soon_ms.items(), *self._waiting_ms.items()]
        return sorted((opens_ms, slot) for slot, opens_ms in items if opens_ms > self._now_ms)

    def full(self) -> int:
        """Return the number of slots that wait for a lease to end."""
        slots = {slot for lane in self._lanes for slot, _, _ in lane.items()}
        return sum(self._limits.is_full(slot) for slot in slots)

    def first_opens_ms(self, after_ms: float = 0.0) -> float | None:
        """Return when the next slot opens after that time; None if none does, or only when leases end."""
        waiting, soon = self._waiting_ms.first(), self._soon_ms.first()
        times = [first[0] for first in (waiting, soon) if first is not None and first[0] > after_ms]
        if soon is not None and soon[0] <= after_ms:
            times += [opens_ms for _, opens_ms in self._soon_ms.items() if opens_ms > after_ms]
        return min(times, default=None)
