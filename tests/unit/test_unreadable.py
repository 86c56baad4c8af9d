"""Log lines about requests that a worker can't read."""

from __future__ import annotations

import logging
from typing import Any
from unittest.mock import Mock

import pytest
from scrapy import Request, Spider
from scrapy.utils.test import get_crawler

from scrapy_prioqueue.codec import RequestCodec
from scrapy_prioqueue.errors import DecodeError, UnknownName
from scrapy_prioqueue.frontier.base import Fail, Lease, Refuse
from scrapy_prioqueue.queues.endings import Unreadable

PAYLOAD = RequestCodec(Spider("plain")).encode(Request("https://shop.example/p/1"), "shop.example")


def lease(payload: bytes = PAYLOAD, refusals: int = 0) -> Lease:
    return Lease(123, 1, 0, "shop.example", payload, refusals=refusals)


@pytest.fixture
def pump() -> Any:
    return Mock()


@pytest.fixture
def unreadable(pump: Any) -> Unreadable:
    return Unreadable(get_crawler(), pump, "two words")


def test_requests_given_back_are_logged_by_url_and_thinned_for_each_cause(
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
    assert [type(call.args[0]) for call in pump.finish.call_args_list] == [Refuse] * 13


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
    assert [type(call.args[0]) for call in pump.finish.call_args_list] == [Fail] * 2
