"""Requests that are not to be served yet, by the time at which they are; nothing here knows of the queue."""

from __future__ import annotations

from heapq import heapify, heappop, heappush

from scrapy_prioqueue.frontier.memory.pending import Envelope


class Delayed:
    """A heap of requests by due time; of those due at the same time the lower id comes first."""

    __slots__ = ("_heap",)

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, str, Envelope]] = []

    def __len__(self) -> int:
        return len(self._heap)

    def put(self, due_ms: int, slot: str, envelope: Envelope) -> None:
        """Keep a request until then."""
        heappush(self._heap, (due_ms, envelope.lease_id, slot, envelope))

    def first_due_ms(self) -> int | None:
        """Return when the next request is due, None without any."""
        return self._heap[0][0] if self._heap else None

    def take_due(self, now_ms: int, limit: int) -> list[tuple[str, Envelope]]:
        """Remove and return the requests that are due with their slots, those that waited longest first."""
        taken: list[tuple[str, Envelope]] = []
        while self._heap and self._heap[0][0] <= now_ms and len(taken) < limit:
            _, _, slot, envelope = heappop(self._heap)
            taken.append((slot, envelope))
        return taken

    def take_out(self, slot: str, lease_id: int, payload: bytes, *, most_attempts: int) -> Envelope | None:
        """Remove and return this very request, None if it isn't here or was leased more often than that."""
        for index, (_, its_id, its_slot, envelope) in enumerate(self._heap):
            is_it = (its_id, its_slot, envelope.payload) == (lease_id, slot, payload)
            if is_it and envelope.attempts <= most_attempts:
                del self._heap[index]
                heapify(self._heap)
                return envelope
        return None
