"""Stats are counted as by Scrapy's collectors, even if the collector is replaced or changed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from scrapy.statscollectors import DummyStatsCollector, MemoryStatsCollector, StatsCollector
from scrapy.utils.test import get_crawler

import scrapy_prioqueue
from scrapy_prioqueue.engine import StatCounter


class Doubling(MemoryStatsCollector):
    """Counts everything twice."""

    def inc_value(self, key: str, count: int = 1, *args: Any, **kwargs: Any) -> None:
        super().inc_value(key, 2 * count, *args, **kwargs)


def added(stats: StatsCollector, times: int = 1) -> StatsCollector:
    counter = StatCounter(stats)
    for _ in range(times):
        counter.add("one", "other")
    return stats


@pytest.mark.parametrize(("kind", "counts"), [(MemoryStatsCollector, 3), (Doubling, 6), (DummyStatsCollector, None)])
def test_each_collector_counts_in_its_own_way(kind: type[StatsCollector], counts: int | None) -> None:
    stats = added(kind(get_crawler()), 3)

    assert (stats.get_value("one"), stats.get_value("other")) == (counts, counts)


def test_stats_that_were_replaced_or_cleared_are_counted_in() -> None:
    stats = MemoryStatsCollector(get_crawler())
    counter = StatCounter(stats)
    counter.add("one", "other")

    stats.set_stats({"one": 10})
    counter.add("one", "other")
    assert stats.get_stats() == {"one": 11, "other": 1}

    stats.clear_stats()
    counter.add("one", "other")
    assert stats.get_stats() == {"one": 1, "other": 1}


def test_a_method_that_was_put_in_place_of_the_collectors_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    stats = MemoryStatsCollector(get_crawler())
    counter = StatCounter(stats)
    called: list[str] = []
    monkeypatch.setattr(stats, "inc_value", lambda key, *_: called.append(key))
    stats.inc_value("by another")
    # A collector of newer versions goes on with its own method once it was asked for that.
    is_replaced = bool(called)

    counter.add("one", "other")

    assert called == (["by another", "one", "other"] if is_replaced else [])
    assert (stats.get_value("one") == 1) is not is_replaced


def test_nothing_else_changes_stats() -> None:
    """Only `StatCounter` never raises, whatever code of a spider has done to the stats."""
    package = Path(scrapy_prioqueue.__file__).parent
    found = {path.name for path in package.rglob("*.py") if re.search(r"\.(inc|set|get)_value\(", path.read_text())}

    assert found == {"engine.py"}
