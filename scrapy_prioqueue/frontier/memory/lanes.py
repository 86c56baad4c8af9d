"""A lane: slots that take turns. It is independent of tiers, limits and time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from heapq import heapify, heappop, heappush
from typing import Literal, NamedTuple

from scrapy_prioqueue.frontier.memory.heapmap import HeapMap

Order = tuple[int, int]
"""Rank of the head of a slot, and the slot's turn."""

Place = Literal["ready", "soon", "waiting"]
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
        self._elsewhere: dict[str, HeapMap[str, Order] | dict[str, Order]] = {}
        self.ready: HeapMap[str, Order] = HeapMap()
        self.soon: HeapMap[str, Order] = HeapMap()
        self.waiting: dict[str, Order] = {}

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
        orders = self._elsewhere.get(slot, self.ready) if self._elsewhere else self.ready
        rank, turn = orders[slot]
        if envelope.rank < rank:
            orders[slot] = (envelope.rank, turn)
        return False

    def insert(self, slot: str, turn: int, envelope: Envelope) -> None:
        """Add a request to its slot, which gets the lower of its own turn and this one; a new slot is ready."""
        if slot in self._heaps:
            heappush(self._heaps[slot], envelope)
            orders = self._elsewhere.get(slot, self.ready)
            orders[slot] = (self._heaps[slot][0].rank, min(turn, orders[slot][1]))
        else:
            self._heaps[slot] = [envelope]
            self.ready[slot] = (envelope.rank, turn)

    def serve(self, slot: str) -> Envelope:
        """Remove and return the request of a slot that is served next; the slot goes to the back of the turns."""
        heap = self._heaps[slot]
        envelope = heappop(heap)
        if heap:
            orders = self._elsewhere.get(slot, self.ready) if self._elsewhere else self.ready
            orders[slot] = (heap[0].rank, self._next_turn())
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
                orders = self._elsewhere.get(slot, self.ready)
                if heap:
                    orders[slot] = (heap[0].rank, orders[slot][1])
                else:
                    self._drop(slot)
                return envelope
        return None

    def move(self, slot: str, place: Place) -> None:
        """Mark a slot as ready, soon or waiting; it keeps its turn."""
        if place == "ready" and slot not in self._elsewhere:
            return
        old = self._elsewhere.pop(slot, self.ready)
        order = old[slot]
        del old[slot]
        if place == "ready":
            self.ready[slot] = order
            return
        new = self.soon if place == "soon" else self.waiting
        new[slot] = order
        self._elsewhere[slot] = new

    def _drop(self, slot: str) -> None:
        del self._heaps[slot]
        del self._elsewhere.pop(slot, self.ready)[slot]
