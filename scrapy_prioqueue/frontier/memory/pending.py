"""The pending and delayed requests, in serving order."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from heapq import heapify, heappop, heappush
from itertools import count

from scrapy_prioqueue.frontier.base import Order, group_size
from scrapy_prioqueue.frontier.memory.lanes import Envelope as Envelope
from scrapy_prioqueue.frontier.memory.lanes import Lane, Waiting
from scrapy_prioqueue.frontier.memory.limits import SlotLimits
from scrapy_prioqueue.rank import tier_of

MIDDLE = 2**52
"""Ids count down from here for LIFO and up from here for start requests, or down from twice this for LIFO ones."""


def lease_id_of(sequence: int, *, order: Order, is_start: bool, is_lifo_start: bool = False) -> int:
    """Return the id of the n-th stored request; among equal rank and slot, the lower id is served first."""
    if is_start:
        return 2 * MIDDLE - sequence if is_lifo_start else MIDDLE + sequence
    return sequence if order == "fifo" else MIDDLE - sequence


class Pending:
    """Pending requests in one lane, or in one for each tier if the best tier isn't always served first.

    Suspects, lost `suspect_attempts` times, are kept apart and taken in the sizes that `groups` allows.
    `waiting` is None while no slot has a limit.
    """

    __slots__ = ("_limits", "_next_turn", "_requests", "_suspects", "groups", "lanes", "suspect_attempts", "waiting")

    def __init__(self) -> None:
        self._next_turn = count(1).__next__
        self.lanes = [Lane(self._next_turn)]
        self.waiting: Waiting | None = None
        self._limits: SlotLimits | None = None
        self._suspects: list[tuple[Envelope, str]] = []
        self._requests = 0
        self.suspect_attempts = 1
        self.groups: Sequence[int] = ()

    def __len__(self) -> int:
        return self._requests

    def put(self, slot: str, envelope: Envelope) -> None:
        """Add a request, new or returned."""
        self._requests += 1
        if envelope.attempts >= self.suspect_attempts:
            heappush(self._suspects, (envelope, slot))
            return
        lane = self.lanes[0] if len(self.lanes) == 1 else self._lane_of(envelope)
        if lane.put(slot, envelope) and self._limits is not None:
            self._limits.changed.add(slot)

    def arrange(self, lanes: int, limits: SlotLimits | None) -> None:
        """Set the number of lanes, and the limits of slots.

        If lanes are split, a slot keeps its turn in each of them; if they are joined, the lowest one.
        """
        if lanes != len(self.lanes) or limits is not self._limits:
            old, self.lanes = self.lanes, [Lane(self._next_turn) for _ in range(lanes)]
            for lane in old:
                for slot, turn, envelopes in lane.items():
                    for envelope in envelopes:
                        self._lane_of(envelope).insert(slot, turn, envelope)
        self._limits = limits
        self.waiting = None if limits is None else Waiting(limits, self.lanes)

    def _lane_of(self, envelope: Envelope) -> Lane:
        return self.lanes[min(tier_of(envelope.rank), len(self.lanes) - 1)]

    def best_rank(self) -> int | None:
        """Return the rank of the request that is served next if its slot has room, not considering suspects."""
        ranks = [first[0][0] for lane in self.lanes if (first := lane.ready.first()) is not None]
        return min(ranks, default=None)

    def has_slot(self, slot: str) -> bool:
        """Return whether a slot has requests other than suspects."""
        return any(slot in lane for lane in self.lanes)

    def of_slot(self, slot: str) -> list[Envelope]:
        """Return the requests of a slot, best first, without suspects."""
        return sorted(envelope for lane in self.lanes for envelope in lane.of_slot(slot))

    def take_out(self, slot: str, lease_id: int, payload: bytes, *, most_attempts: int) -> Envelope | None:
        """Remove and return this very request, None if it isn't pending or was leased more often than that."""

        def is_it(envelope: Envelope) -> bool:
            is_same = (envelope.lease_id, envelope.payload) == (lease_id, payload)
            return is_same and envelope.attempts <= most_attempts

        for index, (envelope, its_slot) in enumerate(self._suspects):
            if its_slot == slot and is_it(envelope):
                del self._suspects[index]
                heapify(self._suspects)
                self._requests -= 1
                return envelope
        for lane in self.lanes:
            found = lane.take_out(slot, is_it)
            if found is not None:
                self._requests -= 1
                return found
        return None

    def take(
        self, limit: int, *, slot_room: Mapping[str, int], slot_limit: int, suspect_room: int, suspects_held: int
    ) -> list[tuple[str, Envelope]]:
        """Remove and return up to `limit` requests of the first lane, in serving order.

        A short form of `Serving` for frontiers without limits, weights and budgets.

        Args:
            limit: maximum number of requests.
            slot_room: maximum number by slot.
            slot_limit: maximum number of each other slot.
            suspect_room: how many suspects may be among them, within the group of those that the worker holds.
            suspects_held: number of suspects that the worker holds.
        """
        taken: list[tuple[str, Envelope]] = []
        room: dict[str, int] = {}
        lane = self.lanes[0]
        ready = lane.ready
        while suspect_room > 0 and len(taken) < limit and self._is_suspect_next({**slot_room, **room}, slot_limit):
            if suspects_held >= self.next_group():
                break
            slot, envelope = self.take_suspect()
            taken.append((slot, envelope))
            room[slot] = room.get(slot, slot_room.get(slot, slot_limit)) - 1
            suspects_held += 1
            suspect_room = min(suspect_room - 1, self.group(envelope.attempts) - suspects_held)
        full: list[tuple[str, tuple[int, int]]] = []
        while len(taken) < limit and (first := ready.first()):
            order, slot = first
            left = room.get(slot)
            if left is None:
                left = slot_room.get(slot, slot_limit)
            if left > 0:
                room[slot] = left - 1
                taken.append((slot, lane.serve(slot)))
                self._requests -= 1
            else:
                full.append((slot, order))
                del ready[slot]
        for slot, order in full:
            ready[slot] = order
        return taken

    def group(self, attempts: int) -> int:
        """Return how many suspects may be held together with one that has had this number of losses."""
        return group_size(attempts, self.suspect_attempts, self.groups)

    def next_group(self) -> int:
        """Return the size of the group of the first suspect."""
        return self.group(self._suspects[0][0].attempts)

    def next_slot(self, may_take: Callable[[str], bool]) -> str | None:
        """Return the slot of the first lane that is served next, not considering suspects; None if there is none.

        Args:
            may_take: returns whether a slot may be served.
        """
        ready = self.lanes[0].ready
        first = ready.first()
        if first is None or may_take(first[1]):
            return first and first[1]
        full = []
        while first is not None and not may_take(first[1]):
            full.append(first)
            del ready[first[1]]
            first = ready.first()
        for order, slot in full:
            ready[slot] = order
        return first and first[1]

    def take_one(self, may_take: Callable[[str], bool]) -> tuple[str, Envelope] | None:
        """Remove and return the first request of the slot that `next_slot` returns, with the slot; None without one."""
        slot = self.next_slot(may_take)
        return None if slot is None else (slot, self.serve(self.lanes[0], slot))

    @property
    def has_suspects(self) -> bool:
        """Whether there are suspects."""
        return bool(self._suspects)

    def _is_suspect_next(self, slot_room: Mapping[str, int], slot_limit: int) -> bool:
        """Return whether the first suspect's slot has room, and no better request may be taken."""
        if not self._suspects:
            return False
        envelope, slot = self._suspects[0]
        if slot_room.get(slot, slot_limit) <= 0:
            return False
        ready = self.lanes[0].ready
        ranks = (rank for other, (rank, _) in ready.items() if slot_room.get(other, slot_limit) > 0)
        return min(ranks, default=envelope.rank) >= envelope.rank

    def first_suspect(self) -> tuple[str, Envelope] | None:
        """Return the first suspect with its slot."""
        if not self._suspects:
            return None
        envelope, slot = self._suspects[0]
        return slot, envelope

    def take_suspect(self) -> tuple[str, Envelope]:
        """Remove and return the first suspect with its slot."""
        envelope, slot = heappop(self._suspects)
        self._requests -= 1
        return slot, envelope

    def serve(self, lane: Lane, slot: str) -> Envelope:
        """Remove and return the first request of a slot in a lane."""
        self._requests -= 1
        return lane.serve(slot)


class Delayed:
    """A heap of requests by due time; of those due at the same time the lower id comes first."""

    __slots__ = ("_heap",)

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, str, Envelope]] = []

    def __len__(self) -> int:
        return len(self._heap)

    def put(self, due_ms: int, slot: str, envelope: Envelope) -> None:
        """Add a request that is due at that time."""
        heappush(self._heap, (due_ms, envelope.lease_id, slot, envelope))

    def first_due_ms(self) -> int | None:
        """Return when the next request is due, None without any."""
        return self._heap[0][0] if self._heap else None

    def take_due(self, now_ms: int, limit: int) -> list[tuple[str, Envelope]]:
        """Remove and return the due requests with their slots, the longest overdue first."""
        taken: list[tuple[str, Envelope]] = []
        while self._heap and self._heap[0][0] <= now_ms and len(taken) < limit:
            _, _, slot, envelope = heappop(self._heap)
            taken.append((slot, envelope))
        return taken

    def take_out(self, slot: str, lease_id: int, payload: bytes, *, most_attempts: int) -> Envelope | None:
        """Remove and return this very request, None if it isn't delayed or was leased more often than that."""
        for index, (_, its_id, its_slot, envelope) in enumerate(self._heap):
            is_it = (its_id, its_slot, envelope.payload) == (lease_id, slot, payload)
            if is_it and envelope.attempts <= most_attempts:
                del self._heap[index]
                heapify(self._heap)
                return envelope
        return None
