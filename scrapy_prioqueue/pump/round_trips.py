"""Durations of exchanges, counted in buckets."""

from __future__ import annotations

from scrapy_prioqueue.frontier.runs import LATENCY_BOUNDS_S, latency_class


class RoundTrips:
    """Counts exchanges by their durations, in the classes of `LATENCY_BOUNDS_S`; may be read in any thread."""

    def __init__(self) -> None:
        self.counts = [0] * (len(LATENCY_BOUNDS_S) + 1)
        self.total_s = 0.0

    def note(self, seconds: float) -> None:
        """Count an exchange that took this long."""
        self.counts[latency_class(seconds)] += 1
        self.total_s += seconds
