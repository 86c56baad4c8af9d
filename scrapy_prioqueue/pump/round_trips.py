"""Durations of exchanges, counted in buckets."""

from __future__ import annotations

from scrapy_prioqueue.frontier.runs import LATENCY_BOUNDS_S, latency_class

BOUNDS_S = LATENCY_BOUNDS_S
"""Upper bounds of the buckets in seconds; the last bucket has no bound."""


class RoundTrips:
    """Counts exchanges by their durations; may be read in any thread."""

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS_S) + 1)
        self.total_s = 0.0

    def note(self, seconds: float) -> None:
        """Count an exchange that took this long."""
        self.counts[latency_class(seconds)] += 1
        self.total_s += seconds
