"""Requests leased to this worker and not started yet."""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from math import inf
from typing import NamedTuple

from scrapy_prioqueue.frontier.base import Lease
from scrapy_prioqueue.pump.timing import STALE_AFTER_S
from scrapy_prioqueue.rank import tier_of


class _Entry(NamedTuple):
    """A lease, sorted by the first three fields.

    Args:
        rank: 0 for all if the frontier's order is kept.
        is_untimed: whether it may start at any time; among equals a lease with a deadline goes first.
        arrival: sequence number of its arrival.
        granted_at: when it arrived.
        starts_at: earliest start.
        late_at: deadline of the start.
        is_near: no other place is likely to become free before its start, so one is reserved.
    """

    rank: int
    is_untimed: bool
    arrival: int
    granted_at: float
    starts_at: float
    late_at: float
    is_near: bool
    lease: Lease

    def is_due(self, now: float) -> bool:
        """Return whether it may start now."""
        return self.starts_at <= now < self.late_at


class Inbox:
    """Unstarted leases, best first; among equal ranks in the frontier's order.

    A lease of a slot with limits has an earliest start, and a deadline after which it must be released.

    Args:
        clock: monotonic, in seconds.
        keeps_order: leases stay in the frontier's order, whatever their rank.
        places: returns how many requests may start now.
        reserve_s: returns within how many seconds a waiting lease must start to have a place reserved.
    """

    def __init__(
        self,
        clock: Callable[[], float],
        *,
        keeps_order: bool = False,
        places: Callable[[], float] = lambda: inf,
        reserve_s: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self._clock = clock
        self._keeps_order = keeps_order
        self._places = places
        self._reserve_s = reserve_s
        self._entries: list[_Entry] = []
        self._arrivals = 0
        self._none_before = -inf
        """No lease here is older than this; so there is no need to look for stale ones before the first can be one."""
        self._is_timed = False
        """Whether leases here may have times; if none has, times needn't be looked at."""

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Lease]:
        # Over a copy, which is made in one step, since the heartbeat's thread iterates, too.
        return (entry.lease for entry in self._entries.copy())

    def add(self, leases: Iterable[Lease], granted_at: float | None = None) -> None:
        """Add leases that have just arrived.

        Args:
            granted_at: estimated time at which they were granted; None for now.
        """
        now = self._clock()
        if not self._entries:
            self._is_timed, self._none_before = False, now
        for lease in leases:
            self._arrivals += 1
            starts_at, late_at, is_near = now, inf, False
            if lease.start_in_ms or lease.late_ms is not None:
                self._is_timed = True
                starts_at = (now if granted_at is None else granted_at) + lease.start_in_ms / 1000
                late_at = inf if lease.late_ms is None else starts_at + lease.late_ms / 1000
                is_near = starts_at <= now + self._reserve_s()
            rank, is_untimed = (0, False) if self._keeps_order else (lease.rank, lease.late_ms is None)
            insort(self._entries, _Entry(rank, is_untimed, self._arrivals, now, starts_at, late_at, is_near, lease))

    def best_rank(self) -> int | None:
        """Return the rank of the best lease that may start now, None if there is none.

        If all places are reserved, return the rank of the last lease with a place.
        """
        if not self._is_timed:
            return self._entries[0].lease.rank if self._entries else None
        now, places = self._clock(), self._places()
        for entry in self._entries:
            if entry.is_due(now):
                return entry.lease.rank
            places -= self._has_place(entry, now)
            if places <= 0:
                return entry.lease.rank
        return None

    def due(self) -> int:
        """Return how many leases may start now."""
        return len(self._entries) - self.later()

    def later(self) -> int:
        """Return how many leases must wait for their start."""
        if not self._is_timed:
            return 0
        now = self._clock()
        return sum(entry.starts_at > now for entry in self._entries)

    def reserved(self) -> int:
        """Return how many places are reserved for leases here."""
        if not self._is_timed:
            return 0
        now = self._clock()
        return sum(self._has_place(entry, now) for entry in self._entries)

    def _has_place(self, entry: _Entry, now: float) -> bool:
        """Return whether a place is reserved for a waiting lease."""
        return now < entry.starts_at and (entry.is_near or entry.starts_at <= now + self._reserve_s())

    def next_turn(self) -> float:
        """Return when the next lease may start, or passes its deadline; infinity if never."""
        now = self._clock()
        turns = (entry.starts_at if entry.starts_at > now else entry.late_at for entry in self._entries)
        return min(turns, default=inf)

    def by_slot(self) -> dict[str, int]:
        """Return the number of leases by slot."""
        counts: dict[str, int] = {}
        for lease in self:
            counts[lease.slot] = counts.get(lease.slot, 0) + 1
        return counts

    def take(self, may_start: Callable[[Lease], bool]) -> Lease | None:
        """Remove and return the best lease that may start.

        Args:
            may_start: must give the same answer for all leases of a slot without times.
        """
        if self._is_timed:
            return self._take_timed(may_start)
        full: set[str] = set()
        for index, entry in enumerate(self._entries):
            lease = entry.lease
            if lease.slot in full:
                continue
            if may_start(lease):
                del self._entries[index]
                return lease
            full.add(lease.slot)
        return None

    def _take_timed(self, may_start: Callable[[Lease], bool]) -> Lease | None:
        now, places = self._clock(), self._places()
        full: set[str] = set()
        for index, entry in enumerate(self._entries):
            lease = entry.lease
            if entry.is_due(now) and lease.slot not in full:
                if may_start(lease):
                    del self._entries[index]
                    return lease
                if lease.late_ms is None:
                    full.add(lease.slot)
            places -= self._has_place(entry, now)
            if places <= 0:
                return None
        return None

    def take_stale(self) -> list[Lease]:
        """Remove and return leases that have been able to start for too long."""
        oldest = self._clock() - STALE_AFTER_S
        return self._take(lambda entry: _is_stale(entry, oldest))

    def take_outranked(self, pushed: Sequence[tuple[int, str]]) -> list[Lease]:
        """Remove and return leases that give way to better requests: for each request the worst lease, and the worst of
        its slot.

        The rest is what would be here if these requests had been known before, with room in each slot for its own.

        Args:
            pushed: ranks and slots of the better requests.
        """
        worst = [entry for entry in reversed(self._entries) if self._is_outranked(entry, -inf)]
        better = sorted(push for push in pushed if worst and push[0] < worst[0].lease.rank)
        if not better:
            return []
        ranks: dict[str, list[int]] = {entry.lease.slot: [] for entry in worst}
        for rank, slot in better:
            if slot in ranks:
                ranks[slot].append(rank)
        ways = [(worst, [rank for rank, _ in better])]
        ways += [([entry for entry in worst if entry.lease.slot == slot], found) for slot, found in ranks.items()]
        taken = {
            entry.arrival
            for entries, found in ways
            for entry, rank in zip(entries, found, strict=False)
            if self._is_outranked(entry, rank)
        }
        return self._take(lambda entry: entry.arrival in taken)

    def has_outranked(self, rank: int) -> bool:
        """Return whether a lease here is worse than a request of this rank."""
        if not self._entries or self._entries[-1].rank <= rank:
            # The last lease has the worst rank, or the order is the frontier's, in which none gives way.
            return False
        return any(self._is_outranked(entry, rank) for entry in self._entries)

    def _is_outranked(self, entry: _Entry, rank: float) -> bool:
        return entry.lease.rank > rank and entry.lease.late_ms is None and not self._keeps_order

    def take_late(self) -> list[Lease]:
        """Remove and return leases past their deadlines."""
        now = self._clock()
        return self._take(lambda entry: entry.late_at <= now)

    def take_slot(self, slot: str) -> list[Lease]:
        """Remove and return all leases of a slot."""
        return self._take(lambda entry: entry.lease.slot == slot)

    def take_tiers(self, tiers: Collection[int]) -> list[Lease]:
        """Remove and return all leases of these tiers, given by their indexes."""
        return self._take(lambda entry: tier_of(entry.lease.rank) in tiers)

    def take_all(self) -> list[Lease]:
        """Remove and return all leases."""
        return self._take(lambda _: True)

    def drop_older_than(self, seconds: float) -> None:
        """Drop leases granted more than this time ago."""
        oldest = self._clock() - seconds
        self._take(lambda entry: entry.granted_at <= oldest)

    def discard(self, lease_ids: Iterable[int]) -> None:
        """Drop leases that this worker has lost."""
        lost = set(lease_ids)
        self._take(lambda entry: entry.lease.lease_id in lost)

    def has_stale(self) -> bool:
        """Return whether a lease has been able to start for too long."""
        oldest = self._clock() - STALE_AFTER_S
        if self._none_before >= oldest:
            return False
        self._none_before = min((entry.granted_at for entry in self._entries), default=inf)
        return any(entry.granted_at < oldest and _is_stale(entry, oldest) for entry in self._entries)

    def _take(self, is_wanted: Callable[[_Entry], bool]) -> list[Lease]:
        taken = [entry.lease for entry in self._entries if is_wanted(entry)]
        if taken:
            self._entries = [entry for entry in self._entries if not is_wanted(entry)]
        return taken


def _is_stale(entry: _Entry, oldest: float) -> bool:
    # A lease with a time isn't released, since its slot would lose that time.
    return max(entry.granted_at, entry.starts_at) < oldest and entry.lease.late_ms is None
