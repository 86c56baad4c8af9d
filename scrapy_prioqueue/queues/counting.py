"""Counting in Scrapy's stats, for what happens with each request."""

from __future__ import annotations

from typing import Any

from scrapy.statscollectors import StatsCollector


class StatCounter:
    """Adds to stats.

    Scrapy's own collector does so in its dictionary, after a look for an argument that is deprecated (2.14 and later),
    which takes longer than the rest of what a scheduler does; so it is done there at once. Any other is asked to.
    """

    def __init__(self, stats: StatsCollector) -> None:
        self._add = stats.inc_value
        kind = type(stats)
        is_scrapys = kind.inc_value is StatsCollector.inc_value and kind.get_stats is StatsCollector.get_stats
        self._all = stats.get_stats if is_scrapys else None
        self._stats: dict[str, Any] = {}
        self.renew()

    def renew(self) -> None:
        """Take note of the collector's dictionary, which may have been replaced by another."""
        if self._all is not None:
            self._stats = self._all()

    def add(self, one: str, other: str) -> None:
        """Add 1 to each of two."""
        if self._all is None:
            self._add(one)
            self._add(other)
            return
        stats = self._stats
        stats[one] = stats.get(one, 0) + 1
        stats[other] = stats.get(other, 0) + 1
