"""The pending requests in the order in which they are served; nothing here knows of workers, leases or crawls."""

from __future__ import annotations

from collections.abc import Mapping
from heapq import heapify, heappop, heappush
from typing import NamedTuple

from scrapy_prioqueue.frontier.base import Order
from scrapy_prioqueue.frontier.memory.heapmap import HeapMap

MIDDLE = 2**52
"""Ids count down from here for newest first, and up from here for start requests."""


def lease_id_of(sequence: int, *, order: Order, is_start: bool) -> int:
    """Return the id of the request that is the n-th to be stored; of equal rank and slot, the lower id goes first."""
    if is_start:
        return MIDDLE + sequence
    return sequence if order == "fifo" else MIDDLE - sequence


class Envelope(NamedTuple):
    """A request as it is stored; envelopes of one slot compare by their place."""

    rank: int
    lease_id: int
    attempts: int
    payload: bytes


class Pending:
    """Requests by slot, each slot a heap, and the slots by the rank of their head and their turn.

    A slot exists as long as it has requests.
    It joins the turns at the back, and goes there again each time it is served.
    What was lost `suspect_attempts` times waits apart, for one at a time to be taken.
    """

    __slots__ = ("_last_turn", "_ready", "_requests", "_slots", "_suspects", "suspect_attempts")

    def __init__(self) -> None:
        self._slots: dict[str, list[Envelope]] = {}
        self._ready: HeapMap[str, tuple[int, int]] = HeapMap()
        self._suspects: list[tuple[Envelope, str]] = []
        self._last_turn = 0
        self._requests = 0
        self.suspect_attempts = 1

    def __len__(self) -> int:
        return self._requests

    def put(self, slot: str, envelope: Envelope) -> None:
        """Put a request into its place, be it new or given back."""
        self._requests += 1
        if envelope.attempts >= self.suspect_attempts:
            heappush(self._suspects, (envelope, slot))
            return
        heap = self._slots.get(slot)
        if heap is None:
            self._slots[slot] = [envelope]
            self._ready[slot] = (envelope.rank, self._next_turn())
            return
        heappush(heap, envelope)
        rank, turn = self._ready[slot]
        if envelope.rank < rank:
            self._ready[slot] = (envelope.rank, turn)

    def best_rank(self) -> int | None:
        """Return the rank of the request that is served next if its slot has room, suspects aside."""
        first = self._ready.first()
        return None if first is None else first[0][0]

    def take_out(self, slot: str, lease_id: int, payload: bytes, *, most_attempts: int) -> Envelope | None:
        """Remove and return this very request, None if it isn't here or was leased more often than that."""

        def is_it(envelope: Envelope) -> bool:
            is_same = (envelope.lease_id, envelope.payload) == (lease_id, payload)
            return is_same and envelope.attempts <= most_attempts

        for index, (envelope, its_slot) in enumerate(self._suspects):
            if its_slot == slot and is_it(envelope):
                del self._suspects[index]
                heapify(self._suspects)
                self._requests -= 1
                return envelope
        heap = self._slots.get(slot, [])
        for index, envelope in enumerate(heap):
            if is_it(envelope):
                del heap[index]
                heapify(heap)
                self._requests -= 1
                self._follow_head(slot)
                return envelope
        return None

    def _follow_head(self, slot: str) -> None:
        heap, (_, turn) = self._slots[slot], self._ready[slot]
        if heap:
            self._ready[slot] = (heap[0].rank, turn)
        else:
            del self._slots[slot]
            del self._ready[slot]

    def take(
        self, limit: int, *, slot_room: Mapping[str, int], slot_limit: int, may_take_suspect: bool
    ) -> list[tuple[str, Envelope]]:
        """Remove and return up to `limit` requests with their slots, those to be served first in front.

        Args:
            limit: how many requests to take.
            slot_room: how many of these slots may be taken.
            slot_limit: how many of each other slot may be taken.
            may_take_suspect: whether one suspect may be among them.
        """
        taken: list[tuple[str, Envelope]] = []
        room: dict[str, int] = {}
        if may_take_suspect and limit > 0 and self._is_suspect_next(slot_room, slot_limit):
            envelope, slot = heappop(self._suspects)
            self._requests -= 1
            taken.append((slot, envelope))
            room[slot] = slot_room.get(slot, slot_limit) - 1
        full: list[tuple[str, tuple[int, int]]] = []
        while len(taken) < limit and (first := self._ready.first()):
            order, slot = first
            left = room.get(slot)
            if left is None:
                left = slot_room.get(slot, slot_limit)
            if left > 0:
                room[slot] = left - 1
                taken.append((slot, self._serve(slot)))
            else:
                full.append((slot, order))
                del self._ready[slot]
        for slot, order in full:
            self._ready[slot] = order
        return taken

    def _is_suspect_next(self, slot_room: Mapping[str, int], slot_limit: int) -> bool:
        """Tell whether the first suspect's slot has room and no request that may be taken goes before it."""
        if not self._suspects:
            return False
        envelope, slot = self._suspects[0]
        if slot_room.get(slot, slot_limit) <= 0:
            return False
        ranks = (rank for other, (rank, _) in self._ready.items() if slot_room.get(other, slot_limit) > 0)
        return min(ranks, default=envelope.rank) >= envelope.rank

    def _serve(self, slot: str) -> Envelope:
        heap = self._slots[slot]
        envelope = heappop(heap)
        self._requests -= 1
        if heap:
            self._ready[slot] = (heap[0].rank, self._next_turn())
        else:
            del self._slots[slot]
            del self._ready[slot]
        return envelope

    def _next_turn(self) -> int:
        self._last_turn += 1
        return self._last_turn
