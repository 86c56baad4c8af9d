"""Lanes of slots that take turns, and the slots that wait because of their limits."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from heapq import heapify, heappop, heappush
from typing import Literal, NamedTuple

from scrapy_prioqueue.frontier.memory.heapmap import HeapMap
from scrapy_prioqueue.frontier.memory.limits import SlotLimits

Position = tuple[int, int]
"""Rank of the head of a slot, and the slot's turn."""

SlotState = Literal["ready", "soon", "waiting"]
"""State of a slot: it may be served, it may be leased ahead of its time, or it may not be served."""


class Envelope(NamedTuple):
    """A stored request; envelopes of one slot compare by their serving order."""

    rank: int
    lease_id: int
    attempts: int
    payload: bytes


class Lane:
    """Requests by slot, each slot a heap; the slots are ordered by the rank of their head and their turn.

    A slot exists while it has requests.
    A new slot goes to the back of the turns, as does one that was served. Becoming ready or waiting doesn't
    change a slot's turn.
    """

    __slots__ = ("_elsewhere", "_heaps", "_next_turn", "ready", "soon", "waiting")

    def __init__(self, next_turn: Callable[[], int]) -> None:
        self._heaps: dict[str, list[Envelope]] = {}
        self._next_turn = next_turn
        self._elsewhere: dict[str, HeapMap[str, Position] | dict[str, Position]] = {}
        self.ready: HeapMap[str, Position] = HeapMap()
        self.soon: HeapMap[str, Position] = HeapMap()
        self.waiting: dict[str, Position] = {}

    def __contains__(self, slot: str) -> bool:
        return slot in self._heaps

    def items(self) -> Iterator[tuple[str, int, list[Envelope]]]:
        """Return the slots with their turns and their requests, in no order."""
        for slot, heap in self._heaps.items():
            yield slot, self._elsewhere.get(slot, self.ready)[slot][1], heap

    def of_slot(self, slot: str) -> list[Envelope]:
        """Return the requests of a slot, in no order."""
        return self._heaps.get(slot, [])

    def first_of(self, slot: str) -> Envelope:
        """Return the request of a slot that is served next."""
        return self._heaps[slot][0]

    def put(self, slot: str, envelope: Envelope) -> bool:
        """Add a request to its slot; return whether the slot is new here, and so ready."""
        heap = self._heaps.get(slot)
        if heap is None:
            self._heaps[slot] = [envelope]
            self.ready[slot] = (envelope.rank, self._next_turn())
            return True
        heappush(heap, envelope)
        group = self._elsewhere.get(slot, self.ready) if self._elsewhere else self.ready
        rank, turn = group[slot]
        if envelope.rank < rank:
            group[slot] = (envelope.rank, turn)
        return False

    def insert(self, slot: str, turn: int, envelope: Envelope) -> None:
        """Add a request to its slot, which gets the lower of its own turn and this one; a new slot is ready."""
        if slot in self._heaps:
            heappush(self._heaps[slot], envelope)
            group = self._elsewhere.get(slot, self.ready)
            group[slot] = (self._heaps[slot][0].rank, min(turn, group[slot][1]))
        else:
            self._heaps[slot] = [envelope]
            self.ready[slot] = (envelope.rank, turn)

    def serve(self, slot: str) -> Envelope:
        """Remove and return the request of a slot that is served next; the slot goes to the back of the turns."""
        heap = self._heaps[slot]
        envelope = heappop(heap)
        if heap:
            group = self._elsewhere.get(slot, self.ready) if self._elsewhere else self.ready
            group[slot] = (heap[0].rank, self._next_turn())
        else:
            self._drop(slot)
        return envelope

    def take_out(self, slot: str, is_it: Callable[[Envelope], bool]) -> Envelope | None:
        """Remove and return a matching request, None if there is none; the slot keeps its turn."""
        heap = self._heaps.get(slot, [])
        for index, envelope in enumerate(heap):
            if is_it(envelope):
                del heap[index]
                heapify(heap)
                group = self._elsewhere.get(slot, self.ready)
                if heap:
                    group[slot] = (heap[0].rank, group[slot][1])
                else:
                    self._drop(slot)
                return envelope
        return None

    def move(self, slot: str, state: SlotState) -> None:
        """Mark a slot as ready, soon or waiting; it keeps its turn."""
        if state == "ready" and slot not in self._elsewhere:
            return
        old = self._elsewhere.pop(slot, self.ready)
        position = old[slot]
        del old[slot]
        if state == "ready":
            self.ready[slot] = position
            return
        new = self.soon if state == "soon" else self.waiting
        new[slot] = position
        self._elsewhere[slot] = new

    def _drop(self, slot: str) -> None:
        del self._heaps[slot]
        del self._elsewhere.pop(slot, self.ready)[slot]


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

    def update_all(self, now_ms: int, ahead_ms: int) -> None:
        """Update the state of every slot: those that open within `ahead_ms` are `soon`, and perhaps some later ones."""
        if ahead_ms < self._horizon_ms / 2:
            # The horizon is lowered only if it has halved, since `ahead_ms` changes slightly with each demand.
            self._limits.changed.update(slot for slot, _ in self._soon_ms.items())
            self._horizon_ms = 0
        self._now_ms, self._horizon_ms = now_ms, max(ahead_ms, self._horizon_ms)
        horizon_ms = self._horizon_ms
        while (first := self._soon_ms.first()) and first[0] <= now_ms:
            self.update(first[1])
        while (first := self._waiting_ms.first()) and first[0] <= now_ms + horizon_ms:
            self.update(first[1])
        for slot in list(self._limits.changed):
            self.update(slot)

    def update(self, slot: str) -> None:
        """Update the state of a slot, for the time and horizon of the last `update_all`."""
        self._limits.changed.discard(slot)
        self._soon_ms.discard(slot)
        self._waiting_ms.discard(slot)
        lanes = [lane for lane in self._lanes if slot in lane]
        if not lanes:
            return
        state: SlotState = "waiting"
        if not self._limits.is_full(slot):
            opens_ms = self._limits.opens_ms(slot)
            if opens_ms <= self._now_ms:
                state = "ready"
            elif opens_ms <= self._now_ms + self._horizon_ms:
                state, self._soon_ms[slot] = "soon", opens_ms
            else:
                self._waiting_ms[slot] = opens_ms
        for lane in lanes:
            lane.move(slot, state)

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
