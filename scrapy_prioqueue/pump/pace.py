"""How many requests are enough to hold in advance."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from scrapy_prioqueue.pump.timing import AHEAD_S, FRESH_S, MOST_AHEAD, MOST_AHEAD_PER_PLACE

_REMEMBERED_STARTS = 32

_PRESUMED_PAGE_S = 1.0
"""How long pages take as long as nothing is known: fast ones have to show it."""


class Pace:
    """Measures how fast requests start, and how long they and a round trip take.

    Args:
        concurrency: returns how many requests run at a time, which may change; with 1 nothing is held in advance, so
            that order is exact.
        clock: monotonic, in seconds.
    """

    def __init__(self, concurrency: Callable[[], int], clock: Callable[[], float]) -> None:
        self._concurrency = concurrency
        self._clock = clock
        self._starts: deque[float] = deque(maxlen=_REMEMBERED_STARTS)
        self._round_trip_s = 0.0
        self._page_s = _PRESUMED_PAGE_S
        self._more = 0.0

    def note_start(self) -> float:
        """A request starts now; return the time."""
        now = self._clock()
        self._starts.append(now)
        return now

    def note_done(self, started_at: float) -> None:
        """A request is done that was started then."""
        self._page_s += (self._clock() - started_at - self._page_s) / 16

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

    def within(self, seconds: float) -> int:
        """Return how many requests will start in that time, less than run at a time."""
        return self._within(seconds, self._limit)

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
