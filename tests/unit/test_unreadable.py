"""Log lines about requests that a worker can't decode."""

from __future__ import annotations

import logging
from typing import Any
from unittest.mock import Mock

import pytest
from scrapy import Request, Spider
from scrapy.utils.test import get_crawler

from scrapy_prioqueue.codec import RequestCodec
from scrapy_prioqueue.errors import DecodeError, UnknownName
from scrapy_prioqueue.frontier.base import Depth, Fail, Lease, Refuse, Release
from scrapy_prioqueue.queues.endings import MOST_IN_A_ROW, Unreadable

PAYLOAD = RequestCodec(Spider("plain")).encode(Request("https://shop.example/p/1"), "shop.example")


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
    return Unreadable(get_crawler(), engine, pump, "two words")


def test_refused_requests_are_logged_by_url_and_thinned_for_each_cause(
    unreadable: Unreadable, pump: Any, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(12):
        unreadable.settle(lease(), UnknownName("no parse_b"))
    unreadable.settle(lease(), UnknownName("no parse_c"))

    lines = [record.getMessage() for record in caplog.records]
    assert [line.partition(": ")[2].partition(", the")[0] for line in lines] == [
        "no parse_b (1 such requests so far",
        "no parse_b (10 such requests so far",
        "no parse_c (1 such requests so far",
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

    unreadable.settle(lease(refusals=3), UnknownName("no parse_b"))
    unreadable.settle(lease(b"\xc1"), DecodeError("broken"))

    assert [record.getMessage() for record in caplog.records] == [
        "<GET https://shop.example/p/1> can't be decoded and becomes a dead letter: no parse_b."
        " Start workers that have it, then run: scrapy frontier dead replay 123 --name 'two words'",
        "Request 123 can't be decoded and becomes a dead letter: broken",
    ]
    assert ends(pump) == [Fail] * 2


@pytest.mark.parametrize("error", [UnknownName("no parse_b"), DecodeError("broken"), ValueError("its constructor")])
@pytest.mark.parametrize("refusals", [0, 1])
def test_a_worker_that_can_decode_nothing_closes_and_leaves_the_rest(
    unreadable: Unreadable, pump: Any, engine: Any, caplog: pytest.LogCaptureFixture, error: Exception, refusals: int
) -> None:
    pump.depth = Depth(workers=1 if refusals == 0 else 5)
    caplog.set_level(logging.ERROR)

    for number in range(MOST_IN_A_ROW + 2):
        unreadable.settle(lease(refusals=refusals, lease_id=number), error)

    engine.close_spider.assert_called_once_with("prioqueue_undecodable")
    closing = [record.getMessage() for record in caplog.records if "Closing" in record.getMessage()]
    assert len(closing) == 1
    assert str(error) in closing[0]
    assert "scrapy frontier remove PATTERN --name 'two words'" in closing[0]
    before = Refuse if isinstance(error, UnknownName) else Fail
    assert ends(pump) == [before] * (MOST_IN_A_ROW - 1) + [Release] * 3


@pytest.mark.parametrize("why", ["others can", "one can be decoded", "always the same", "in process"])
def test_a_worker_stays_if_it_may_be_of_use(unreadable: Unreadable, pump: Any, engine: Any, why: str) -> None:
    pump.depth = Depth(workers=2 if why == "others can" else 1)
    pump.frontier.is_local = why == "in process"

    for number in range(3 * MOST_IN_A_ROW):
        if why == "one can be decoded" and number % 5 == 0:
            unreadable.end_row()
        unreadable.settle(lease(lease_id=number % 5 if why == "always the same" else number), UnknownName("no parse_b"))

    engine.close_spider.assert_not_called()
