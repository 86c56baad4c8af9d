"""Durations of exchanges, counted in buckets."""

from __future__ import annotations

from bisect import bisect_left

BOUNDS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
"""Upper bounds of the buckets in seconds; the last bucket has no bound."""


class RoundTrips:
    """Counts exchanges by their durations; may be read in any thread."""

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS_S) + 1)
        self.total_s = 0.0

    def note(self, seconds: float) -> None:
        """Count an exchange that took this long."""
        self.counts[bisect_left(BOUNDS_S, seconds)] += 1
        self.total_s += seconds
