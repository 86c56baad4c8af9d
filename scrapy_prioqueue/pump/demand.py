"""The demand of an exchange: number of requests, how far ahead, and notes about slots."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import isinf
from typing import Any

from scrapy_prioqueue.frontier.base import ANY_NUMBER, Demand, Frontier
from scrapy_prioqueue.frontier.policy import Closing, HeldUp, Note
from scrapy_prioqueue.frontier.runs import LATENCY_BOUNDS_S, latency_class
from scrapy_prioqueue.pump.backpressure import Backpressure
from scrapy_prioqueue.pump.delegate import Delegate
from scrapy_prioqueue.pump.leases import Leases
from scrapy_prioqueue.pump.timing import (
    AHEAD_S,
    HORIZON_S,
    MOST_AHEAD,
    MOST_AHEAD_PER_PLACE,
    MOST_RESERVED_S,
    STALE_AFTER_S,
)

MOST_NOTES = 1_000
"""Maximum number of notes kept while the frontier doesn't answer; then the oldest are dropped."""

MOST_SENT = 200
"""Maximum number of notes in one exchange."""


class Notes:
    """Notes in order; each is sent with every demand until one of them has been answered.

    Args:
        clock: monotonic, in seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._notes: deque[tuple[float, Note]] = deque(maxlen=MOST_NOTES)

    def __bool__(self) -> bool:
        return bool(self._notes)

    @property
    def since(self) -> float:
        """Time of the oldest note; there must be one."""
        return self._notes[0][0]

    def add(self, note: Note) -> None:
        """Add a note to send; repeated notes about held-up pages of a slot are merged."""
        # These come several times a second, so in an outage they would displace all others.
        if isinstance(note, HeldUp) and any(note == other for _, other in self._notes):
            return
        self._notes.append((self._clock(), note))

    def to_send(self) -> Sequence[Note]:
        """Return the notes to send now."""
        if not self._notes:
            return ()
        now = self._clock()
        return [_as_of(note, now - at) for at, note in list(self._notes)[:MOST_SENT]]

    def confirm(self, count: int) -> None:
        """Drop the oldest `count` notes, which were sent."""
        for _ in range(min(count, len(self._notes))):
            self._notes.popleft()


def _as_of(note: Note, ago_s: float) -> Note:
    """Return a note with its times counted from now."""
    if isinstance(note, Closing):
        return replace(note, wait_ms=max(0, note.wait_ms - int(ago_s * 1000)))
    return note


class RoundTrips:
    """Counts exchanges by their durations, in the classes of `LATENCY_BOUNDS_S`; may be read in any thread."""

    def __init__(self) -> None:
        self.counts = [0] * (len(LATENCY_BOUNDS_S) + 1)
        self.total_s = 0.0

    def note(self, seconds: float) -> None:
        """Count an exchange that took this long."""
        self.counts[latency_class(seconds)] += 1
        self.total_s += seconds


_REMEMBERED_STARTS = _REMEMBERED_ENDS = 32

_MISSED = 0.05
"""Tolerated part of the turns of a slot for which no worker has a free place in time; see `free_within`."""

_PRESUMED_PAGE_S = 1.0
"""Assumed time per page until pages are measured; fast pages have to prove it."""


class Pace:
    """Measures how often requests start, and how long pages and round trips take.

    Args:
        concurrency: returns the number of requests that may run at a time, which may change; with 1 nothing is leased
            ahead, so the order is exact.
        clock: monotonic, in seconds.
        places: likewise, but not reduced to 1 for a frontier in process.
    """

    def __init__(
        self, concurrency: Callable[[], int], clock: Callable[[], float], places: Callable[[], int] | None = None
    ) -> None:
        self._concurrency = concurrency
        self._all_places = concurrency if places is None else places
        self._clock = clock
        self._starts: deque[float] = deque(maxlen=_REMEMBERED_STARTS)
        self._round_trip_s = 0.0
        self.round_trips = RoundTrips()
        self._page_s = _PRESUMED_PAGE_S
        self._more = 0.0
        self._ends: deque[float] = deque([0.0], maxlen=_REMEMBERED_ENDS)
        self._busy_s, self._busy_at = 0.0, clock()
        self._free_within: tuple[int, float] = 0, 0.0

    def note_start(self, running: int = 1) -> float:
        """Note a start; return the time.

        Args:
            running: number of running requests, including this one.
        """
        now = self._clock()
        self._note_busy(now, running - 1)
        self._starts.append(now)
        return now

    def note_done(self, started_at: float, running: int = 0) -> None:
        """Note that a request is done.

        Args:
            started_at: time of its start.
            running: number of requests that are still running.
        """
        now = self._clock()
        self._note_busy(now, running + 1)
        self._ends.append(self._busy_s)
        self._free_within = 0, 0.0
        self._page_s += (now - started_at - self._page_s) / 16

    def _note_busy(self, now: float, running: int) -> None:
        # Reserved places are idle, so places become free less often; that must not be a reason to reserve more. So the
        # time counts only in proportion to the places in use.
        self._busy_s += (now - self._busy_at) * min(1.0, running / self._all_places())
        self._busy_at = now

    def note_round_trip(self, seconds: float) -> None:
        """Note the duration of an exchange."""
        self._round_trip_s += (seconds - self._round_trip_s) / 4
        self.round_trips.note(seconds)

    def note_given_back(self, leases: int) -> None:
        """Note how many unstarted leases the next exchange releases, which were prefetched in vain."""
        self._more = self._more / 2 if leases else min(1.5 * self._more + 1, MOST_AHEAD)

    def ahead(self) -> int:
        """Return how many requests will start within two round trips, or within `AHEAD_S` if that is longer.

        That is less than the concurrency, unless pages take less than two round trips. Then all places would be empty
        before the next answer if no more were leased.
        """
        soon_s = 2 * self._round_trip_s
        return self._within(max(AHEAD_S, soon_s), max(self._limit, self._through_places(soon_s)))

    def surely_free_within(self, seconds: float) -> int:
        """Return how many places are sure to become free in that time, less than all."""
        longest_s = self.free_within(1)
        return min(self._limit, int(seconds / longest_s)) if longest_s else 0

    def free_within(self, workers: int) -> float:
        """Return within how many seconds a place of some worker becomes free at nearly any time.

        Computed from the times between finished pages, as if all places were taken and all workers were alike.
        """
        known_for, seconds = self._free_within
        if known_for != workers:
            ends = list(self._ends)
            gaps = sorted(second - first for first, second in zip(ends, ends[1:], strict=False))
            seconds = min(_longer_than(gaps, _MISSED ** (1 / max(1, workers))), MOST_RESERVED_S)
            self._free_within = workers, seconds
        return seconds

    @property
    def _limit(self) -> int:
        return self._concurrency() - 1

    def _through_places(self, seconds: float) -> int:
        # The rate of starts alone overstates the speed of pages when several places become free together.
        concurrency = self._concurrency()
        if concurrency == 1 or self._page_s >= seconds:
            return 0
        through = concurrency * min(seconds, STALE_AFTER_S) / max(self._page_s, 1e-6)
        return round(min(through, concurrency * MOST_AHEAD_PER_PLACE, MOST_AHEAD, concurrency - 1 + self._more))

    def _within(self, seconds: float, limit: int) -> int:
        if len(self._starts) < 2:
            return 0
        elapsed = max(self._clock() - self._starts[0], 1e-6)
        return min(limit, round(len(self._starts) / elapsed * seconds))


def _longer_than(gaps: Sequence[float], part: float) -> float:
    """Return the length such that the excess of longer gaps over it makes up this part of all gaps.

    Args:
        gaps: the shortest first.
    """
    wanted, seconds = part * sum(gaps), gaps[-1] if gaps else 0.0
    # Going down from the longest gap: first one gap exceeds the length, below the second longest two, and so on.
    for count, below in enumerate(reversed([0.0, *gaps[:-1]]), 1):
        if count * (seconds - below) >= wanted:
            return max(0.0, seconds - wanted / count)
        wanted -= count * (seconds - below)
        seconds = below
    return seconds


class Prefetch:
    """Decides how many requests to ask for, and builds the demand of each exchange.

    Args:
        clock: monotonic, in seconds.
    """

    def __init__(
        self,
        frontier: Frontier,
        delegate: Delegate[Any],
        leases: Leases[Any],
        backpressure: Backpressure,
        clock: Callable[[], float],
    ) -> None:
        self._frontier_config = frontier.config
        self._horizon_ms = 0 if frontier.is_local else round(HORIZON_S * 1000)
        self._delegate = delegate
        self._inbox, self._outbox = leases.inbox, leases.outbox
        self._leases = leases
        self._backpressure = backpressure
        self.pace = Pace((lambda: 1) if frontier.is_local else self._concurrency, clock, self._concurrency)
        self.notes = Notes(clock)
        self.workers = 1
        """Number of living workers, from the last answer."""
        self.is_starting = False
        """A request is being given to the engine, which doesn't count it yet."""

    def _concurrency(self) -> int:
        return self._delegate.engine.concurrency

    def wanted(self) -> int:
        """Return how many more requests to lease: those that could start now, and those to prefetch."""
        # The server would lease forgotten requests again before they are claimed. But a full server must be drained.
        if self._delegate.engine.is_paused or (
            self._outbox.claims_forgotten and not self._backpressure.rejections.is_full
        ):
            return 0
        wanted = self._delegate.free_places() - self.is_starting + self.pace.ahead()
        return int(max(0, min(wanted, self._places()) - self._inbox.due() - self._inbox.reserved()))

    def reserve_s(self) -> float:
        """Return within how many seconds a request of a better tier must start to have a place reserved."""
        return self.pace.free_within(self.workers) if self._backpressure.must_ask else 0.0

    def later(self) -> int:
        """Return how many more requests could be leased that start within `HORIZON_S`.

        Only places that are very likely to become free until then count, since a request without one misses its turn.
        """
        is_full = self._outbox.claims_forgotten or not isinf(self._places())
        if not self._backpressure.must_ask or self._delegate.engine.is_paused or is_full:
            return 0
        free = self._delegate.free_places() - self.is_starting + self.pace.surely_free_within(HORIZON_S)
        starting = free - self._inbox.due()
        return max(0, min(starting, self._delegate.engine.concurrency) - self._inbox.later()) if self._horizon_ms else 0

    def _places(self) -> float:
        return self._backpressure.places(len(self._leases.held))

    def demand(self, limit: int | None, *, is_idle: bool, with_later: bool) -> Demand:
        """Return the next demand.

        Args:
            limit: maximum number of requests that may start now, None for as many as are wanted.
            with_later: whether to ask for requests that may start soon even if no others are wanted.
        """
        wanted = self.wanted() if limit is None else limit
        later = self.later() if wanted or with_later else 0
        # To say when to poll again, the frontier needs to know how far ahead of a slot's opening requests are leased.
        horizon_ms = self._horizon_ms if self._backpressure.must_ask else 0
        notes = self.notes.to_send()
        if not wanted and not later:
            return Demand(0, is_idle=is_idle, horizon_ms=horizon_ms, notes=notes)
        ahead = self.pace.ahead()
        slot_limit, room = self._delegate.engine.slots.room(self._inbox.by_slot(), ahead)
        if self._backpressure.must_ask:
            room.update(dict.fromkeys(self._delegate.held_up(), 0))
        suspects = self._leases.suspects(self._frontier_config.suspect_attempts)
        free, reserve_ms = self._delegate.free_places() - self.is_starting, round(self.reserve_s() * 1000)
        if free <= self._inbox.reserved():
            # All free places are reserved already, so all else must be able to start at once.
            reserve_ms = 0
        group = min(map(self._frontier_config.group, suspects), default=ANY_NUMBER)
        return Demand(
            *(wanted, slot_limit, room),
            is_idle=is_idle,
            suspect_room=max(0, group - len(suspects)),
            suspects_held=len(suspects),
            later_limit=later,
            horizon_ms=horizon_ms,
            reserve_ms=reserve_ms,
            reservable=0 if self._horizon_ms else free,
            notes=notes,
        )
