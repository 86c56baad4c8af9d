"""Requests leased to this worker and not started yet, and how many of them are enough."""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Callable, Iterable, Iterator

from scrapy_prioqueue.frontier.base import Lease
from scrapy_prioqueue.pump.timing import AHEAD_S, FRESH_S

_REMEMBERED_STARTS = 32


class Inbox:
    """Unstarted leases, best first; among equal ranks in the order in which the frontier handed them out."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._entries: list[tuple[int, int, float, Lease]] = []
        self._arrivals = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Lease]:
        # Of a copy, which is made in one step: the heartbeat's thread looks in, too.
        return (entry[3] for entry in self._entries.copy())

    def add(self, leases: Iterable[Lease]) -> None:
        """Put leases in that were granted now."""
        now = self._clock()
        for lease in leases:
            self._arrivals += 1
            insort(self._entries, (lease.rank, self._arrivals, now, lease))

    def best_rank(self) -> int | None:
        """Return the rank of the best lease, None if there is none."""
        return self._entries[0][0] if self._entries else None

    def by_slot(self) -> dict[str, int]:
        """Return how many leases of each slot are here."""
        counts: dict[str, int] = {}
        for lease in self:
            counts[lease.slot] = counts.get(lease.slot, 0) + 1
        return counts

    def take(self, may_start: Callable[[Lease], bool]) -> Lease | None:
        """Remove and return the best lease that may start."""
        for index, entry in enumerate(self._entries):
            if may_start(entry[3]):
                del self._entries[index]
                return entry[3]
        return None

    def take_stale(self) -> list[Lease]:
        """Remove and return what has been here for too long."""
        oldest = self._clock() - FRESH_S
        return self._take(lambda entry: entry[2] < oldest)

    def take_outranked(self, rank: int) -> list[Lease]:
        """Remove and return what would be served after a request of that rank."""
        return self._take(lambda entry: entry[0] > rank)

    def take_all(self) -> list[Lease]:
        """Remove and return everything."""
        return self._take(lambda _: True)

    def drop_older_than(self, seconds: float) -> None:
        """Forget leases that were granted longer ago than that."""
        oldest = self._clock() - seconds
        self._take(lambda entry: entry[2] <= oldest)

    def discard(self, lease_ids: Iterable[int]) -> None:
        """Forget leases that are not ours any more."""
        lost = set(lease_ids)
        self._take(lambda entry: entry[3].lease_id in lost)

    def has_stale(self) -> bool:
        """Tell whether something has been here for too long."""
        return bool(self._entries) and min(entry[2] for entry in self._entries) < self._clock() - FRESH_S

    def _take(self, is_wanted: Callable[[tuple[int, int, float, Lease]], bool]) -> list[Lease]:
        taken = [entry[3] for entry in self._entries if is_wanted(entry)]
        if taken:
            self._entries = [entry for entry in self._entries if not is_wanted(entry)]
        return taken


class Pace:
    """Measures how fast requests start and how long a round trip takes, and so how many to hold in advance.

    Args:
        concurrency: how many requests run at a time; with 1 nothing is held in advance, so that order is exact.
        clock: monotonic, in seconds.
    """

    def __init__(self, concurrency: int, clock: Callable[[], float]) -> None:
        self._limit = concurrency - 1
        self._clock = clock
        self._starts: deque[float] = deque(maxlen=_REMEMBERED_STARTS)
        self._round_trip_s = 0.0

    def note_start(self) -> None:
        """A request starts now."""
        self._starts.append(self._clock())

    def note_round_trip(self, seconds: float) -> None:
        """An exchange took that long."""
        self._round_trip_s += (seconds - self._round_trip_s) / 4

    def ahead(self) -> int:
        """Return how many requests will start within two round trips, or `AHEAD_S` if that is longer."""
        if len(self._starts) < 2:
            return 0
        elapsed = max(self._clock() - self._starts[0], 1e-6)
        rate = len(self._starts) / elapsed
        return min(self._limit, round(rate * max(AHEAD_S, 2 * self._round_trip_s)))
