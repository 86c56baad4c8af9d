"""A queue of slots that take turns; nothing here knows of tiers, limits or time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from heapq import heapify, heappop, heappush
from typing import Literal, NamedTuple

from scrapy_prioqueue.frontier.memory.heapmap import HeapMap

Order = tuple[int, int]
"""Rank of the head of a slot, and the slot's turn."""

Place = Literal["ready", "soon", "waiting"]
"""Where a slot is: it may be served, it may be served to those who take it early, or it may not be served at all."""


class Envelope(NamedTuple):
    """A request as it is stored; envelopes of one slot compare by their place."""

    rank: int
    lease_id: int
    attempts: int
    payload: bytes


class Lane:
    """Requests by slot, each slot a heap, and the slots by the rank of their head and their turn.

    A slot exists as long as it has requests.
    It joins the turns at the back, and goes there again each time it is served; where it is doesn't change its turn.
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
        """Put a request into its place, and return whether its slot is new here, and ready therefore."""
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
        """Put a request into its place; its slot takes the lower one of its turn and this one, and is ready if new."""
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
        """Remove and return a certain request, None if it isn't here; the slot keeps its turn."""
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
        """Put a slot into a place, be it another one or not."""
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
