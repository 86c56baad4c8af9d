"""How many requests are enough to hold in advance."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from scrapy_prioqueue.pump.timing import AHEAD_S, FRESH_S, MOST_AHEAD, MOST_AHEAD_PER_PLACE, MOST_KEPT_S

_REMEMBERED_STARTS = _REMEMBERED_ENDS = 32

_MISSED = 0.05
"""In so small a part of all moments no worker of a fleet should have had a place become free lately.

That is what `free_within` stands for: of the turns of a slot so many find no place.
"""

_PRESUMED_PAGE_S = 1.0
"""How long pages take as long as nothing is known: fast ones have to show it."""


class Pace:
    """Measures how fast requests start, and how long they and a round trip take.

    Args:
        concurrency: returns how many requests run at a time, which may change; with 1 nothing is held in advance, so
            that order is exact.
        clock: monotonic, in seconds.
        places: returns how many requests run at a time, wherever the frontier is.
    """

    def __init__(
        self, concurrency: Callable[[], int], clock: Callable[[], float], places: Callable[[], int] | None = None
    ) -> None:
        self._concurrency = concurrency
        self._all_places = concurrency if places is None else places
        self._clock = clock
        self._starts: deque[float] = deque(maxlen=_REMEMBERED_STARTS)
        self._round_trip_s = 0.0
        self._page_s = _PRESUMED_PAGE_S
        self._more = 0.0
        self._ends: deque[float] = deque([0.0], maxlen=_REMEMBERED_ENDS)
        self._busy_s, self._busy_at = 0.0, clock()
        self._free_within: tuple[int, float] = 0, 0.0

    def note_start(self, running: int = 1) -> float:
        """A request starts now; return the time.

        Args:
            running: how many run with it.
        """
        now = self._clock()
        self._note_busy(now, running - 1)
        self._starts.append(now)
        return now

    def note_done(self, started_at: float, running: int = 0) -> None:
        """A request is done that was started then.

        Args:
            running: how many run without it.
        """
        now = self._clock()
        self._note_busy(now, running + 1)
        self._ends.append(self._busy_s)
        self._free_within = 0, 0.0
        self._page_s += (now - started_at - self._page_s) / 16

    def _note_busy(self, now: float, running: int) -> None:
        # Places become free less often where some are kept; that must not be a reason to keep more.
        self._busy_s += (now - self._busy_at) * min(1.0, running / self._all_places())
        self._busy_at = now

    def note_round_trip(self, seconds: float) -> None:
        """An exchange took that long."""
        self._round_trip_s += (seconds - self._round_trip_s) / 4

    def note_given_back(self, leases: int) -> None:
        """An exchange begins that gives so many leases back unstarted, which were held in vain."""
        self._more = self._more / 2 if leases else min(1.5 * self._more + 1, MOST_AHEAD)

    def ahead(self) -> int:
        """Return how many requests will start within two round trips, or `AHEAD_S` if that is longer.

        They are less than run at a time, but where pages are done sooner than in two round trips: there an answer
        finds all places empty, if it was asked for with as many in advance.
        """
        soon_s = 2 * self._round_trip_s
        return self._within(max(AHEAD_S, soon_s), max(self._limit, self._through_places(soon_s)))

    def surely_free_within(self, seconds: float) -> int:
        """Return how many places are sure to become free in that time, less than all."""
        longest_s = self.free_within(1)
        return min(self._limit, int(seconds / longest_s)) if longest_s else 0

    def free_within(self, workers: int) -> float:
        """Return in how many seconds a place becomes free again, but for few moments, if all these workers are alike.

        Of the times between pages that were done lately, what is longer than that makes up a small part.
        These are as they would be if all places were taken.
        """
        known_for, seconds = self._free_within
        if known_for != workers:
            ends = list(self._ends)
            gaps = sorted(second - first for first, second in zip(ends, ends[1:], strict=False))
            seconds = min(_longer_than(gaps, _MISSED ** (1 / max(1, workers))), MOST_KEPT_S)
            self._free_within = workers, seconds
        return seconds

    @property
    def _limit(self) -> int:
        return self._concurrency() - 1

    def _through_places(self, seconds: float) -> int:
        # Starts alone don't tell how fast pages are: where many places become free at once, they look fast.
        concurrency = self._concurrency()
        if concurrency == 1 or self._page_s >= seconds:
            return 0
        through = concurrency * min(seconds, FRESH_S) / max(self._page_s, 1e-6)
        return round(min(through, concurrency * MOST_AHEAD_PER_PLACE, MOST_AHEAD, concurrency - 1 + self._more))

    def _within(self, seconds: float, limit: int) -> int:
        if len(self._starts) < 2:
            return 0
        elapsed = max(self._clock() - self._starts[0], 1e-6)
        return min(limit, round(len(self._starts) / elapsed * seconds))


def _longer_than(gaps: Sequence[float], part: float) -> float:
    """Return the length of which what some gaps have more makes up that part of all of them.

    Args:
        gaps: the shortest first.
    """
    wanted, seconds = part * sum(gaps), gaps[-1] if gaps else 0.0
    # Below the longest one each second less is a second more of it; below the next, two; and so on.
    for count, below in enumerate(reversed([0.0, *gaps[:-1]]), 1):
        if count * (seconds - below) >= wanted:
            return max(0.0, seconds - wanted / count)
        wanted -= count * (seconds - below)
        seconds = below
    return seconds
