"""Reports on a worker's run: what they hold, and when they are sent."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest
from scrapy import Spider
from scrapy.utils.test import get_crawler

from scrapy_prioqueue.errors import FrontierRefused, FrontierUnavailable
from scrapy_prioqueue.frontier.base import Report
from scrapy_prioqueue.frontier.runs import (
    Dropped,
    FleetTotals,
    Run,
    latency_class,
    latency_s,
    read_run,
    read_stats,
    totals_of,
)
from scrapy_prioqueue.pump.demand import RoundTrips
from scrapy_prioqueue.queues.recording import MOST_COUNTED, MOST_SHOWN, OTHERS, Coverage, RunReports, confidence_stat
from scrapy_prioqueue.rank import TIER_WIDTH
from scrapy_prioqueue.runtime import InlineRunner
from scrapy_prioqueue.settings import Config
from tests.support.clocks import Clock

pytestmark = pytest.mark.in_process

SAMPLE_S = 100.0


class Desk:
    """A worker's reports, and a frontier that takes them."""

    is_local = False

    def __init__(self, **settings: Any) -> None:
        crawler = get_crawler(Spider, settings)
        crawler.spider = Spider("books")
        self.stats = crawler.stats
        self.clock = Clock()
        self.taken: list[Report] = []
        self.error: Exception | None = None
        pump: Any = SimpleNamespace(frontier=self, runner=InlineRunner(), is_away=False, round_trips=RoundTrips())
        self.pump = pump
        config = Config.from_settings(crawler.settings, "books")
        self.reports = RunReports(crawler, config, pump, self.clock)

    async def record(self, report: Report) -> float:
        if self.error is not None:
            raise self.error
        self.taken.append(report)
        return SAMPLE_S

    def look_after(self, seconds: float) -> int:
        """Look then; return how many reports were taken so far."""
        self.clock.advance(seconds)
        self.reports.look()
        return len(self.taken)


def test_a_report_is_sent_only_if_something_has_changed_or_a_sample_is_due() -> None:
    desk = Desk()
    assert desk.look_after(0) == 1
    assert desk.look_after(12) == 1
    desk.pump.round_trips.note(0.1)
    assert desk.look_after(12) == 1
    desk.reports.coverage.note("a.example", 0)
    assert desk.look_after(12) == 2
    assert desk.look_after(SAMPLE_S) == 3


def test_reports_come_faster_at_the_beginning_and_never_more_often_than_that() -> None:
    desk = Desk()

    def sent_within(seconds: int) -> int:
        before = len(desk.taken)
        for _ in range(seconds * 10):
            desk.reports.coverage.note("a.example", 0)
            desk.look_after(0.1)
        return len(desk.taken) - before

    assert 7 <= sent_within(10) <= 13
    sent_within(100)
    assert 8 <= sent_within(100) <= 13


def test_nothing_is_sent_in_an_outage_and_an_error_of_the_connection_is_not_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    desk = Desk()
    desk.pump.is_away = True
    assert desk.look_after(0) == 0
    desk.pump.is_away, desk.error = False, FrontierUnavailable("redis", "gone")
    assert desk.look_after(1) == 0
    desk.error = None
    assert desk.look_after(10) == 1
    assert not caplog.records


def test_a_refusal_that_exchanges_have_met_too_is_not_logged_again(caplog: pytest.LogCaptureFixture) -> None:
    desk = Desk()
    for _ in range(2):
        desk.error = FrontierRefused("redis", "NOPERM")
        desk.look_after(12)
        desk.error = None
        desk.reports.coverage.note("a.example", 0)
        desk.look_after(12)

    assert len(desk.taken) == 2
    assert not caplog.records


@pytest.mark.parametrize(
    ("error", "level"), [(FrontierRefused("redis", "NOPERM"), logging.WARNING), (KeyError("bug"), logging.ERROR)]
)
def test_a_refusal_is_logged_once(error: Exception, level: int, caplog: pytest.LogCaptureFixture) -> None:
    desk = Desk()
    desk.error = error
    for _ in range(3):
        desk.look_after(12)

    assert [record.levelno for record in caplog.records] == [level]


def test_a_report_has_the_figures_and_the_numbers_in_the_stats() -> None:
    desk = Desk(CONCURRENT_REQUESTS=7, PRIOQUEUE_REDIS_URL="redis://:secret@a.example", PRIOQUEUE_MAX_IDLE=3)
    for name, value in {
        "item_scraped_count": 3,
        "log_count/ERROR": 2,
        "log_count/CRITICAL": 1,
        "prioqueue/dead/download": 1,
        confidence_stat(100): 2,
        "a" * 101: 1,
        "text": "x",
        "flag": True,
        "nan": float("nan"),
    }.items():
        desk.stats.set_value(name, value)
    desk.reports.coverage.note("www.a.example.co.uk", TIER_WIDTH)

    report = desk.reports.last("shutdown")

    assert report is not None
    figures = report.figures
    assert (figures.spider, figures.pages, figures.items, figures.errors, figures.dead) == ("books", 1, 3, 3, 1)
    assert (figures.confidence, figures.reason) == ([0] * 9 + [2], "shutdown")
    assert (figures.tiers, figures.slots) == ({"high": 1}, {"www.a.example.co.uk": 1})
    assert figures.settings["CONCURRENT_REQUESTS"] == "7"
    assert figures.settings["PRIOQUEUE_MAX_IDLE"] == "3"
    assert "secret" not in str(report)
    assert set(report.stats) == {
        *("item_scraped_count", "log_count/ERROR", "log_count/CRITICAL", "prioqueue/dead/download"),
        *("prioqueue/confidence/90-100", "prioqueue/done/tier/high", "prioqueue/done/slot/www.a.example.co.uk"),
    }


def test_the_number_of_slots_is_bounded() -> None:
    coverage = Coverage(["normal"])
    coverage.note("a" * 200, 0)
    for number in range(MOST_COUNTED + 9):
        for _ in range(1 + (number == 5)):
            coverage.note(f"{number}.example", -number)

    slots = coverage.slots()
    assert coverage.tiers() == {"normal": MOST_COUNTED + 11}
    assert len(slots) == MOST_SHOWN + 1
    assert (slots["5.example"], sum(slots.values())) == (2, MOST_COUNTED + 11)
    assert slots[OTHERS] == MOST_COUNTED + 11 - MOST_SHOWN - 1


@pytest.mark.parametrize(
    ("value", "name"), [(0, "0-9"), (9.99, "0-9"), (10, "10-19"), (89.5, "80-89"), (90, "90-100"), (100, "90-100")]
)
def test_confidence_is_counted_in_ten_classes(value: float, name: str) -> None:
    assert confidence_stat(value) == f"prioqueue/confidence/{name}"


# The totals


def run_of(**fields: Any) -> Run:
    return Run("id", "w1", **{"state": "closed", "epoch": "1", "joined_ms": 5, "heard_ms": 9, **fields})


def test_sums_of_stats_are_sums_and_the_largest_is_the_largest() -> None:
    found = totals_of(
        [run_of(host="a"), run_of(host="b", state="lost", joined_ms=1), run_of(host="a", heard_ms=7001)],
        [{"x": 1, "request_depth_max": 3}, {"memusage/startup": 4, "time_min": 2}, {"x": 2.5, "request_depth_max": 2}],
        Dropped(),
    )

    stats = {"memusage/startup": 4, "request_depth_max": 3, "time_min": 2, "x": 3.5}
    assert found == FleetTotals(3, lost=1, running=0, hosts=2, began_ms=1, ended_ms=7001, stats=stats)
    assert found.seconds == 7


@pytest.mark.parametrize("stored", [b"", b"[]", b"{}", b'{"worker": "w1"}', b"\xff", b'{"worker": 1, "joined_ms": []}'])
def test_a_record_that_cannot_be_read_is_left_out(stored: bytes) -> None:
    assert read_run("id", stored, 1, ()) is None


def test_stats_that_cannot_be_read_are_none() -> None:
    assert [read_stats(stored) for stored in (None, b"x", b"[]", b'{"a": 1, "b": "x"}')] == [{}, {}, {}, {"a": 1}]


def test_latencies_are_interpolated() -> None:
    counts = [0] * 14
    for seconds in (0.003, 0.003, 0.003, 20.0):
        counts[latency_class(seconds)] += 1

    median = latency_s(counts, 0.5)
    assert median is not None and 0.0025 < median < 0.005
    assert latency_s(counts, 0.99) == 5.0
    assert latency_s([0] * 14, 0.5) is None


def test_an_error_in_a_report_is_logged_once_and_stops_neither_the_worker_nor_its_leaving(
    caplog: pytest.LogCaptureFixture,
) -> None:
    desk = Desk()
    desk.pump.round_trips.counts = None
    desk.look_after(0)
    desk.look_after(12)

    assert desk.reports.last("finished") is None
    assert [record.getMessage()[:16] for record in caplog.records] == ["Unexpected error"]
    assert not desk.taken
