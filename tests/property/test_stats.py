"""Code of a spider may give stats any names and values; reports, metrics and counting go on."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest
from scrapy import Spider
from scrapy.crawler import Crawler
from scrapy.statscollectors import DummyStatsCollector, MemoryStatsCollector, StatsCollector
from scrapy.utils.test import get_crawler

from scrapy_prioqueue.commands.verbs.status import runs_text, stats_table
from scrapy_prioqueue.engine import StatCounter
from scrapy_prioqueue.frontier.runs import Dropped, Run, read_run, read_stats, record_json, stats_json, totals_of
from scrapy_prioqueue.monitoring.worker import WorkerCollector
from scrapy_prioqueue.pump.demand import RoundTrips
from scrapy_prioqueue.queues.base import ClosedQueue
from scrapy_prioqueue.queues.recording import COUNTS, RunReports
from scrapy_prioqueue.settings import Config
from scrapy_prioqueue.stats import SCRAPY_STATS, STATS

pytestmark = pytest.mark.in_process

KNOWN = [*STATS, *SCRAPY_STATS, "item_scraped_count", "retry/count", "log_count/ERROR", "response_received_count"]
TEXTS = st.text(st.characters(exclude_categories=()), max_size=20)
NAMES: st.SearchStrategy[Any] = (
    st.sampled_from(KNOWN) | TEXTS | st.none() | st.integers() | st.binary() | st.tuples(st.text())
)
VALUES: st.SearchStrategy[Any] = (
    st.integers()
    | st.floats()
    | st.booleans()
    | TEXTS
    | st.none()
    | st.sampled_from([10**400, -(10**400), -50])
    | st.lists(st.integers(), max_size=2)
    | st.builds(object)
)


class Broken(MemoryStatsCollector):
    """Raises whatever is called."""

    def _raise(self, *args: Any, **kwargs: Any) -> Any:
        raise ZeroDivisionError

    inc_value = set_value = get_value = get_stats = _raise


def with_stats(found: dict[Any, Any], kind: type[StatsCollector] = MemoryStatsCollector) -> Crawler:
    crawler = get_crawler(Spider)
    crawler.spider, crawler.stats = Spider("books"), kind(crawler)
    crawler.stats.set_stats(found)
    return crawler


def reports(crawler: Crawler) -> RunReports:
    pump: Any = SimpleNamespace(frontier=SimpleNamespace(is_local=False), round_trips=RoundTrips())
    return RunReports(crawler, Config.from_settings(crawler.settings, "books"), pump)


def scrape(crawler: Crawler) -> CollectorRegistry:
    registry = CollectorRegistry()
    registry.register(WorkerCollector(crawler, Config.from_settings(crawler.settings, "books"), ClosedQueue()))
    generate_latest(registry)
    return registry


@given(st.dictionaries(NAMES, VALUES, max_size=6), TEXTS)
@example({None: 1, 5: 6, "x": 10**400, "prioqueue/dead/callback": "lots", "item_scraped_count": -50}, "")
def test_no_stat_stops_a_report_or_a_scrape(stats: dict[Any, Any], reason: str) -> None:
    crawler = with_stats(stats)
    scrape(crawler)
    report = reports(crawler).last(reason)

    assert report is not None
    record, numbers = record_json(report.figures, worker="w", epoch="1", joined_ms=1), stats_json(report.stats)
    json.loads(record, parse_constant=pytest.fail)
    json.loads(numbers, parse_constant=pytest.fail)
    run = read_run("r", record.encode(), 2, ())
    assert isinstance(run, Run)
    assert run.state == "closed"
    assert min((report.stats[name] for name in COUNTS if name in report.stats), default=0) >= 0
    assert min(run.figures.items, run.figures.errors, run.figures.retries, run.figures.dead) >= 0
    totals = totals_of([run] * 3, [read_stats(numbers.encode())] * 3, Dropped())
    runs_text(totals)
    stats_table(totals)


@given(st.sampled_from(KNOWN), VALUES)
def test_counting_never_raises_and_counts_all_other_stats(name: str, value: object) -> None:
    crawler = with_stats({name: value})
    assert crawler.stats is not None
    counter = StatCounter(crawler.stats)

    counter.add(name, "other")
    counter.count(name, 2)
    counter.add("other", name)

    assert crawler.stats.get_value("other") == 2


def test_a_collector_that_raises_stops_nothing(caplog: pytest.LogCaptureFixture) -> None:
    crawler = with_stats({})
    crawler.stats = Broken(crawler)
    counter = StatCounter(crawler.stats)
    for _ in range(2):
        counter.add("one", "other")
        counter.set("one", 1)
        assert counter.read() == {}

    assert [line.split(":")[0] for line in caplog.messages] == [
        "Stat one can't be counted",
        "Stat other can't be counted",
        "The stats can't be read",
    ]
    scrape(crawler)
    assert reports(crawler).last("finished") is not None


def test_what_is_no_count_is_missing_in_metrics() -> None:
    registry = scrape(with_stats({"item_scraped_count": -50, "retry/count": "many", "log_count/ERROR": 2, None: 1}))

    def value(name: str) -> float | None:
        return registry.get_sample_value(f"prioqueue_worker_{name}_total", {"frontier": "books"})

    assert (value("items"), value("retries"), value("log_errors"), value("pages")) == (None, None, 2, 0)


def test_a_collector_that_keeps_nothing_has_no_counters() -> None:
    registry = scrape(with_stats({}, DummyStatsCollector))

    assert registry.get_sample_value("prioqueue_worker_items_total", {"frontier": "books"}) is None
