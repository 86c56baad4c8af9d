"""Requests that this process keeps to itself: as objects, in the same order as everywhere."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from time import monotonic, time
from typing import TYPE_CHECKING

from scrapy import Request

from scrapy_prioqueue.codec.blanks import twin_of
from scrapy_prioqueue.frontier.memory.packed import PackedSet
from scrapy_prioqueue.frontier.seen import NEVER_S
from scrapy_prioqueue.pump.holds import Hold

if TYPE_CHECKING:
    from scrapy_prioqueue.pump.pump import Pump


@dataclass(slots=True)
class KeptRequest:
    """A request of this queue.

    Args:
        roots: the pages in the frontier that it comes from, however many steps on; they are not done before it.
        running: the request, once it is in progress.
        scheduled: what it was before that; middlewares add what is for one download only.
    """

    roots: Sequence[Hold]
    running: Request | None = None
    scheduled: Request | None = None


class OwnQueue:
    """A heap of `Request` objects, and those of them that are in progress."""

    def __init__(self, *, is_lifo: bool, are_starts_lifo: bool = False, revisit_s: int | None = None) -> None:
        self._heap: list[tuple[int, bool, int, Request]] = []
        self._delayed: list[tuple[float, int, bool, int, Request]] = []
        self._kept: dict[int, KeptRequest] = {}
        self._in_progress: dict[int, KeptRequest] = {}
        self._seen = PackedSet()
        self._revisit_s = revisit_s
        self._is_lifo = is_lifo
        self._are_starts_lifo = are_starts_lifo
        self._arrivals = count(1)

    def push(
        self, request: Request, rank: int, *, is_start: bool, delay_s: float = 0.0, roots: Sequence[Hold] = ()
    ) -> None:
        """Put a request in that isn't here, to be had after that many seconds."""
        self._kept[id(request)] = KeptRequest(roots)
        arrival = next(self._arrivals)
        tie = -arrival if (self._are_starts_lifo if is_start else self._is_lifo) else arrival
        if delay_s > 0:
            heapq.heappush(self._delayed, (monotonic() + delay_s, rank, is_start, tie, request))
        else:
            heapq.heappush(self._heap, (rank, is_start, tie, request))

    def is_new(self, fingerprint: bytes, revisit_s: int | None) -> bool:
        """Mark a fingerprint as one of this queue's, and return whether it wasn't.

        The frontier must not know it: the pages that such requests come from may have to be fetched again elsewhere.

        Args:
            revisit_s: seconds after which it counts as new again; None for as long as is usual.
        """
        if revisit_s is None or self._revisit_s is None:
            revisit_s = self._revisit_s
        return self._seen.add(fingerprint, int(time() * 1000), None if revisit_s == NEVER_S else revisit_s)

    def pop(self, other_rank: int | None) -> Request | None:
        """Return the best request that is due, unless one of `other_rank` goes before it."""
        while self._delayed and self._delayed[0][0] <= monotonic():
            heapq.heappush(self._heap, heapq.heappop(self._delayed)[1:])
        if not self._heap or (other_rank is not None and other_rank < self._heap[0][0]):
            return None
        request = heapq.heappop(self._heap)[3]
        kept = self._kept[id(request)]
        kept.running, kept.scheduled = request, twin_of(request)
        self._in_progress[id(request)] = kept
        return request

    def next(self, pump: Pump[Request] | None) -> Request | None:
        """Return the best request that is due, unless one of the frontier goes before it, or may: that isn't known yet.

        Args:
            pump: of the frontier, None if nothing is wanted from there.
        """
        if not self.is_waiting:
            return None
        best = None if pump is None else pump.best_rank()
        if best is None and pump is not None and pump.awaits_answer():
            return None
        request = self.pop(best)
        if request is not None and pump is not None:
            pump.leave_best()
        return request

    def finish(self, request: Request) -> KeptRequest | None:
        """Note that a request is done and return what is known of it; None if none of these was in progress."""
        kept = self._in_progress.pop(id(request), None)
        if kept is not None:
            del self._kept[id(request)]
        return kept

    def has(self, request: Request) -> bool:
        """Tell whether this very object is here."""
        return id(request) in self._kept

    def roots_of(self, request: Request) -> Sequence[Hold] | None:
        """Return the roots of a request, None if it is none of these."""
        kept = self._kept.get(id(request))
        return None if kept is None else kept.roots

    def running(self) -> Iterator[Request]:
        """Yield those that are in progress."""
        return (kept.running for kept in self._in_progress.values() if kept.running is not None)

    def roots_in_progress(self) -> Iterator[Hold]:
        """Yield the roots of those that are in progress."""
        return (root for kept in self._in_progress.values() for root in kept.roots)

    def count_rootless(self) -> int:
        """Return how many wait that belong to no page of the frontier."""
        return sum(kept.running is None and not kept.roots for kept in self._kept.values())

    @property
    def is_running(self) -> bool:
        """Something runs."""
        return bool(self._in_progress)

    @property
    def is_busy(self) -> bool:
        """Something waits or runs."""
        return bool(self._kept)

    @property
    def is_waiting(self) -> bool:
        """Something waits."""
        return bool(self._heap or self._delayed)

    @property
    def unfinished(self) -> int:
        """How many wait or run."""
        return len(self._kept)

    def __len__(self) -> int:
        return len(self._heap) + len(self._delayed)
