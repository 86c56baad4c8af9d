"""What an operator is told: of floods, and of requests given up."""

from __future__ import annotations

import logging

import pytest
from scrapy import Spider
from scrapy.utils.test import get_crawler

from scrapy_prioqueue.frontier.base import DEAD_BY_BUDGET, DeadLetter, Orders
from scrapy_prioqueue.frontier.policy import Policy
from scrapy_prioqueue.queues.reports import Reports

FLOODED = Orders(is_flooded=True)


def reports(policy: Policy) -> Reports:
    crawler = get_crawler(Spider)
    crawler.spider = Spider("reports")
    return Reports(crawler, policy)


def test_a_flood_is_told_once_each_way_with_the_marks(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    tested = reports(Policy(high_water=50_000, low_water=40_000))
    for orders, pending in [(Orders(), 10), (FLOODED, 50_001), (FLOODED, 45_000), (Orders(), 39_990)]:
        tested.ordered(orders, pending)

    begin, end = [record.getMessage() for record in caplog.records if "flooded" in record.getMessage()]
    assert "50001 requests wait (PRIOQUEUE_HIGH_WATER = 50000)" in begin
    assert "40000 are left (PRIOQUEUE_LOW_WATER)" in begin
    assert "39990 requests wait (PRIOQUEUE_LOW_WATER = 40000)" in end


def test_a_flood_of_memory_names_its_mark(caplog: pytest.LogCaptureFixture) -> None:
    reports(Policy(memory_high_water=0.8)).ordered(FLOODED, 1_000)

    assert "PRIOQUEUE_MEMORY_HIGH_WATER = 0.8" in caplog.text


def test_a_letter_is_told_in_one_line_whatever_is_in_it(caplog: pytest.LogCaptureFixture) -> None:
    letter = DeadLetter(7, DEAD_BY_BUDGET, "budget a\nb\0: pages 1 of 1", 0, 0, "slot", "", 0, b"")
    reports(Policy()).buried("request 7 of slot a\rb", letter)

    assert r"request 7 of slot a\rb becomes a dead letter: budget a\nb\x00: pages 1 of 1" in caplog.text
