"""Counts events of each request in Scrapy's stats."""

from __future__ import annotations

from typing import Any

from scrapy.statscollectors import StatsCollector

from scrapy_prioqueue.engine import STATS_ATTRIBUTE


class StatCounter:
    """Adds to stats.

    Scrapy's own collector does so in its dictionary, after a look for an argument that is deprecated (2.14 and later),
    which takes longer than the rest of what a scheduler does; so it is done there at once. Any other is asked to.
    """

    def __init__(self, stats: StatsCollector) -> None:
        self._collector = stats
        kind = type(stats)
        is_scrapys = kind.inc_value is StatsCollector.inc_value and kind.get_stats is StatsCollector.get_stats
        self._attributes: dict[str, Any] = (
            vars(stats) if is_scrapys and STATS_ATTRIBUTE in vars(stats) else {"inc_value": None}
        )

    def add(self, one: str, other: str) -> None:
        """Add 1 to each of two."""
        if "inc_value" in self._attributes:
            self._collector.inc_value(one)
            self._collector.inc_value(other)
            return
        # Looked up each time: it may have been replaced by another, as may `inc_value()` of this one collector.
        stats: dict[str, Any] = self._attributes[STATS_ATTRIBUTE]
        stats[one] = stats.get(one, 0) + 1
        stats[other] = stats.get(other, 0) + 1
