"""Log lines and stats for operators: floods, dead letters, requests that can't be stored."""

from __future__ import annotations

import logging
import re
from typing import Any

import pytest
from scrapy import Request, Spider
from scrapy.utils.test import get_crawler

from scrapy_prioqueue.errors import EncodeError
from scrapy_prioqueue.frontier.base import DEAD_BY_BUDGET, DeadLetter, Orders
from scrapy_prioqueue.frontier.policy import Policy
from scrapy_prioqueue.queues.reports import Reports
from tests.unit.virtual_time import in_virtual_time, pass_time

FLOODED = Orders(is_flooded=True)
MARKS = Policy(high_water=50_000, low_water=40_000)


def reports(policy: Policy) -> Reports:
    crawler = get_crawler(Spider)
    crawler.spider = Spider("reports")
    return Reports(crawler, policy, lambda: False)


async def flood(tested: Reports, *, lasting_s: float = 3.0) -> None:
    """Let the frontier be flooded for a while, and not so for as long."""
    tested.ordered(FLOODED, 50_001)
    await pass_time(lasting_s)
    tested.ordered(Orders(), 39_990)
    await pass_time(lasting_s)


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return the lines about floods."""
    return [record.getMessage() for record in caplog.records if "flooded" in record.getMessage()]


@in_virtual_time
async def test_a_flood_is_reported_once_each_way_with_the_marks(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    tested = reports(MARKS)
    for orders, pending in [(Orders(), 10), (FLOODED, 50_001), (FLOODED, 45_000), (Orders(), 39_990)]:
        tested.ordered(orders, pending)

    begin, end = told(caplog)
    assert "50,001 requests wait (PRIOQUEUE_HIGH_WATER = 50000)" in begin
    assert "40,000 are left (PRIOQUEUE_LOW_WATER)" in begin
    assert "39,990 requests wait (PRIOQUEUE_LOW_WATER = 40000)" in end
    assert {record.levelno for record in caplog.records if "flooded" in record.getMessage()} == {logging.INFO}


@in_virtual_time
async def test_a_flood_may_end_with_more_requests_than_the_low_mark_where_they_must_wait(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    tested = reports(MARKS)
    tested.ordered(FLOODED, 90_000)
    tested.ordered(Orders(), 80_000)

    assert "80,000 requests wait, and at most 40000 of them can be served soon (PRIOQUEUE_LOW_WATER)" in told(caplog)[1]


@in_virtual_time
async def test_floods_one_after_the_other_are_reported_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    tested = reports(MARKS)
    for _ in range(22):
        await flood(tested)

    lines = told(caplog)
    assert [line.startswith("The frontier is flooded: ") for line in lines] == [True, False, True, False, True, False]
    assert "more floods" not in lines[0]
    assert "(9 more floods since the last line of this kind)" in lines[2]


@in_virtual_time
async def test_a_flood_soon_after_another_is_logged_if_it_lasts(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    tested = reports(MARKS)
    await flood(tested)
    tested.ordered(FLOODED, 50_002)
    await pass_time(50)
    assert len(told(caplog)) == 2

    await pass_time(5)
    tested.ordered(Orders(), 39_999)

    assert "50,002 requests wait" in told(caplog)[2]
    assert len(told(caplog)) == 4


@in_virtual_time
async def test_no_flood_is_logged_when_the_worker_has_left(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    tested = reports(MARKS)
    await flood(tested)
    tested.ordered(FLOODED, 50_002)
    tested.left(None, "reports")
    await pass_time(100)

    assert len(told(caplog)) == 2


@in_virtual_time
async def test_a_flood_of_memory_names_its_mark(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    reports(Policy(memory_high_water=0.8)).ordered(FLOODED, 1_000)

    assert "PRIOQUEUE_MEMORY_HIGH_WATER = 0.8" in caplog.text


def test_requests_that_stay_are_logged_at_each_power_of_ten_and_counted_by_type(
    caplog: pytest.LogCaptureFixture,
) -> None:
    tested = reports(Policy())
    for number in range(100):
        error = EncodeError(f"meta['x'][{number}]", "shop.Loader can't be stored", "Loader")
        tested.kept(Request("https://a.example/"), error, is_from_start=number == 0)
    for number in range(120):
        error = EncodeError("meta['x']", "no", f"shop.Kind{number}")
        tested.kept(Request("https://a.example/"), error, is_from_start=False)

    lines = [record.getMessage() for record in caplog.records if "Unable to serialize" in record.getMessage()]
    assert [re.findall(r"meta\['x'\]\[\d+\]|\d+ such", line) for line in lines] == [
        ["meta['x'][0]", "1 such"],
        ["meta['x'][9]", "10 such"],
        ["meta['x'][99]", "100 such"],
    ]
    assert ["after each restart" in line for line in lines] == [True, False, False]
    assert ["the page on which it was found isn't done" in line for line in lines] == [False, True, True]
    assert all("see 'What requests can hold' in the doc" in line for line in lines)
    stats = {name: count for name, count in stats_of(tested).items() if name.startswith("prioqueue/unserializable/")}
    assert (len(stats), stats["prioqueue/unserializable/Loader"]) == (101, 100)
    assert stats["prioqueue/unserializable/(others)"] == 21
    assert stats_of(tested)["scheduler/unserializable"] == 220


def stats_of(tested: Reports) -> dict[str, Any]:
    return tested._stats.read()  # noqa: SLF001


def test_a_dead_letter_is_logged_in_one_line_for_any_content(caplog: pytest.LogCaptureFixture) -> None:
    letter = DeadLetter(7, DEAD_BY_BUDGET, "budget a\nb\0: pages 1 of 1", 0, 0, "a\rb", "", 0, b"")
    reports(Policy()).dead_lettered(None, letter)

    assert r"request 7 of slot a\rb becomes a dead letter: budget a\nb\x00: pages 1 of 1" in caplog.text


def test_repeated_start_requests_are_logged_by_name_once_and_then_in_numbers(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    tested = reports(Policy())
    for number in range(100):
        tested.start_repeated(Request(f"https://shop.example/{number}"))

    lines = [record.getMessage() for record in caplog.records]
    by_name, *in_numbers = [line for line in lines if "not fetched again" in line]
    assert "<GET https://shop.example/0>" in by_name
    assert 'PRIOQUEUE_START = "each"' in by_name
    assert [line.split()[0] for line in in_numbers] == ["10", "100"]


def test_the_first_letter_of_a_reason_that_is_dropped_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    tested = reports(Policy())
    for reasons in (["callback"], ["callback"], ["callback", "download"]):
        tested.letters_dropped(reasons, "books", 100)

    assert [record.levelno for record in caplog.records] == [logging.WARNING] * 2
    assert "the limit is 100 (PRIOQUEUE_DEAD_LETTER_LIMIT)" in caplog.text
    assert "`scrapy frontier dead replay --reason callback --name books`" in caplog.text
