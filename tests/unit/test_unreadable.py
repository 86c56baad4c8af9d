"""Log lines about requests that a worker can't decode."""

from __future__ import annotations

import logging
from typing import Any
from unittest.mock import Mock, call

import pytest
from scrapy import Request, Spider
from scrapy.http import Response
from scrapy.utils.test import get_crawler

from scrapy_prioqueue.codec import RequestCodec
from scrapy_prioqueue.errors import DecodeError, UnknownName
from scrapy_prioqueue.frontier.base import Depth, Fail, Lease, Refuse, Release
from scrapy_prioqueue.queues.unreadable import MOST_IN_A_ROW, Unreadable


class Shop(Spider):
    """Has a callback that other versions don't have."""

    name = "shop"

    def parse_b(self, response: Response) -> None:
        """Do nothing."""


SPIDER = Shop()
PAYLOAD = RequestCodec(SPIDER).encode(Request("https://shop.example/p/1", SPIDER.parse_b), "shop.example")


def lease(payload: bytes = PAYLOAD, refusals: int = 0, lease_id: int = 123) -> Lease:
    return Lease(lease_id, 1, 0, "shop.example", payload, refusals=refusals)


def ends(pump: Any) -> list[type]:
    return [type(call.args[0]) for call in pump.finish.call_args_list]


@pytest.fixture
def pump() -> Any:
    pump = Mock()
    pump.depth, pump.frontier.is_local = Depth(workers=2), False
    return pump


@pytest.fixture
def engine() -> Any:
    return Mock()


@pytest.fixture
def unreadable(pump: Any, engine: Any) -> Unreadable:
    return Unreadable(get_crawler(), engine, pump, "two words", pump.events)


def test_refused_requests_are_logged_by_url_and_thinned_for_each_cause(
    unreadable: Unreadable, pump: Any, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(12):
        unreadable.settle(lease(), UnknownName("no parse_b"))
    unreadable.settle(lease(), UnknownName("no parse_c"))

    lines = [record.getMessage() for record in caplog.records]
    assert [line.partition(": ")[2].partition(", the")[0] for line in lines] == [
        "no parse_b (1 such request so far",
        "no parse_b (10 such requests so far",
        "no parse_c (1 such request so far",
    ]
    assert all(line.startswith("<GET https://shop.example/p/1> is left to workers") for line in lines)
    assert ends(pump) == [Refuse] * 13


def test_causes_without_end_are_thinned_together(unreadable: Unreadable, caplog: pytest.LogCaptureFixture) -> None:
    for number in range(1000):
        unreadable.settle(lease(), UnknownName(f"no parse_{number}"))

    assert len(caplog.records) == 50 + 3


def test_a_dead_letter_names_the_url_and_the_command_that_replays_it(
    unreadable: Unreadable, pump: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR)
    unreadable.note_decoded(Request("https://shop.example/"))

    unreadable.settle(lease(refusals=3), UnknownName("no parse_b"))
    unreadable.settle(lease(b"\xc1"), DecodeError("broken"))

    assert [record.getMessage() for record in caplog.records] == [
        "<GET https://shop.example/p/1> can't be decoded and becomes a dead letter: no parse_b."
        " Start workers that have it, then run: scrapy frontier dead replay 123 --name 'two words'",
        "Request 123 can't be decoded and becomes a dead letter: broken",
    ]
    assert ends(pump) == [Fail] * 2
    assert pump.events.dead_lettered.call_args_list == [
        call(None, "decode", "no parse_b", letter_id=123),
        call(None, "decode", "broken", letter_id=123),
    ]


def closings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if "Closing" in record.getMessage()]


@pytest.mark.parametrize("refusals", [0, 1, 3, 7])
def test_a_worker_that_can_decode_nothing_closes_when_what_it_refused_returns(
    unreadable: Unreadable, pump: Any, engine: Any, caplog: pytest.LogCaptureFixture, refusals: int
) -> None:
    unreadable.note_decoded(Request("https://shop.example/", meta={"is_start_request": True}))
    for number in range(5 * MOST_IN_A_ROW):
        unreadable.settle(lease(refusals=refusals, lease_id=number), UnknownName("no parse_b"))
    engine.close_spider.assert_not_called()

    for number in range(2):
        unreadable.settle(lease(refusals=refusals + 1, lease_id=number), UnknownName("no parse_b"))

    engine.close_spider.assert_called_once_with("prioqueue_undecodable")
    (line,) = closings(caplog)
    assert "no parse_b" in line
    assert "scrapy frontier remove . --callback parse_b --name 'two words'" in line
    assert ends(pump) == [Refuse] * 5 * MOST_IN_A_ROW + [Release] * 2


@pytest.mark.parametrize("error", [DecodeError("broken"), ValueError("its constructor")])
def test_a_worker_closes_if_many_in_a_row_can_be_decoded_by_no_version(
    unreadable: Unreadable, pump: Any, engine: Any, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    for number in range(MOST_IN_A_ROW + 2):
        unreadable.settle(lease(b"\xc1", lease_id=number), error)

    engine.close_spider.assert_called_once_with("prioqueue_undecodable")
    (line,) = closings(caplog)
    assert str(error) in line
    assert "scrapy frontier remove PATTERN --name 'two words'" in line
    assert ends(pump) == [Fail] * (MOST_IN_A_ROW - 1) + [Release] * 3


@pytest.mark.parametrize("why", ["one was decoded", "few are refused", "in process"])
def test_a_worker_stays_and_gives_up_what_returns_too_often(
    unreadable: Unreadable, pump: Any, engine: Any, why: str
) -> None:
    pump.frontier.is_local = why == "in process"
    count = MOST_IN_A_ROW - 1 if why == "few are refused" else 2 * MOST_IN_A_ROW

    for refusals in range(4):
        for number in range(count):
            unreadable.settle(lease(refusals=refusals, lease_id=number), UnknownName("no parse_b"))
        if why == "one was decoded":
            unreadable.note_decoded(Request("https://shop.example/"))

    engine.close_spider.assert_not_called()
    assert ends(pump) == [Refuse] * 3 * count + [Fail] * count


def test_broken_requests_between_good_ones_close_no_worker(unreadable: Unreadable, engine: Any) -> None:
    for number in range(3 * MOST_IN_A_ROW):
        if number % 5 == 0:
            unreadable.note_decoded(Request("https://shop.example/"))
        unreadable.settle(lease(b"\xc1", lease_id=number), DecodeError("broken"))

    engine.close_spider.assert_not_called()
