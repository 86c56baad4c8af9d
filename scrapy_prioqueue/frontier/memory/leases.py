"""The leases of all workers, and the workers that return from an outage."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import inf
from typing import NamedTuple

from scrapy_prioqueue.frontier.memory.heapmap import HeapMap
from scrapy_prioqueue.frontier.memory.pending import Envelope


class Held(NamedTuple):
    """A leased request and its holder; the attempts of the envelope include this lease."""

    slot: str
    envelope: Envelope
    worker: str


class Leases:
    """All leases, found by id, by expiry and by worker."""

    __slots__ = ("_expiries_ms", "_held", "_ids_of_worker", "_none_expires_before_ms")

    def __init__(self) -> None:
        self._held: dict[int, Held] = {}
        self._expiries_ms: HeapMap[int, int] = HeapMap()
        self._none_expires_before_ms = inf
        self._ids_of_worker: dict[str, set[int]] = {}

    def __len__(self) -> int:
        return len(self._held)

    def grant(self, held: Held, expiry_ms: int) -> None:
        """Add a lease."""
        lease_id = held.envelope.lease_id
        self._held[lease_id] = held
        self.renew(lease_id, expiry_ms)
        ids = self._ids_of_worker.get(held.worker)
        if ids is None:
            self._ids_of_worker[held.worker] = {lease_id}
        else:
            ids.add(lease_id)

    def have_expired(self, now_ms: int) -> bool:
        """Return whether any lease has expired."""
        if now_ms < self._none_expires_before_ms:
            return False
        first = self._expiries_ms.first()
        self._none_expires_before_ms = inf if first is None else first[0]
        return self._none_expires_before_ms <= now_ms

    def is_held(self, lease_id: int, attempt: int, *, by: str) -> bool:
        """Return whether a worker holds this very lease."""
        held = self._held.get(lease_id)
        return held is not None and held.worker == by and held.envelope.attempts == attempt

    def find(self, lease_id: int) -> Held | None:
        """Return the lease of a request, None if it isn't leased."""
        return self._held.get(lease_id)

    def renew(self, lease_id: int, expiry_ms: int) -> None:
        """Set another expiry of a lease."""
        self._expiries_ms[lease_id] = expiry_ms
        if expiry_ms < self._none_expires_before_ms:
            self._none_expires_before_ms = expiry_ms

    def end(self, lease_id: int) -> Held:
        """Remove and return a lease."""
        held = self._held.pop(lease_id)
        del self._expiries_ms[lease_id]
        ids = self._ids_of_worker[held.worker]
        ids.remove(lease_id)
        if not ids:
            del self._ids_of_worker[held.worker]
        return held

    def expiries_ms(self) -> Iterator[tuple[Held, int]]:
        """Return all leases, each with its expiry."""
        return ((self._held[lease_id], expiry_ms) for lease_id, expiry_ms in self._expiries_ms.items())

    def payloads(self) -> Iterator[tuple[int, bytes]]:
        """Return ids and payloads of all leases."""
        return ((lease_id, held.envelope.payload) for lease_id, held in self._held.items())

    def slots(self) -> Iterator[str]:
        """Return the slot of each lease."""
        return (held.slot for held in self._held.values())

    def of_worker(self, worker: str) -> list[int]:
        """Return the ids of a worker's leases, in order."""
        return sorted(self._ids_of_worker.get(worker, ()))

    def tokens_of(self, worker: str) -> list[tuple[int, int]]:
        """Return the ids of a worker's leases with their attempts."""
        return [(lease_id, self._held[lease_id].envelope.attempts) for lease_id in self.of_worker(worker)]

    def first_expiry(self) -> tuple[int, int] | None:
        """Return time in milliseconds and id of the lease that expires first, or None."""
        return self._expiries_ms.first()


MOST_RETURN_MS = 10_000
"""Maximum time that the frontier waits for these workers."""


class Returns:
    """Workers that an outage has cut off, and that have not reported yet what they did."""

    def __init__(self) -> None:
        self._until_ms = 0
        self._awaited: set[str] = set()

    @property
    def is_on(self) -> bool:
        """Whether some are expected; they may have timed out."""
        return bool(self._awaited)

    def left_ms(self, worker: str, away_ms: int, silent: Iterable[str], now_ms: int, ttl_ms: int) -> int | None:
        """Process the report of a worker; return for how long nothing may be leased, None if no worker is expected.

        Args:
            away_ms: how long it was cut off, 0 if it has reported all that it did.
            silent: the workers that lived when the outage began, and were not heard of since.
        """
        is_on = now_ms < self._until_ms
        if away_ms > 0 and not is_on:
            is_on, self._until_ms, self._awaited = True, now_ms + min(MOST_RETURN_MS, ttl_ms), set(silent)
        if away_ms > 0:
            self._awaited.add(worker)
        else:
            self._awaited.discard(worker)
        if is_on and self._awaited:
            return self._until_ms - now_ms
        self._until_ms = 0
        self._awaited.clear()
        return None

    def forget(self, worker: str) -> None:
        """Stop waiting for a worker that has left."""
        self._awaited.discard(worker)
