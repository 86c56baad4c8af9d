"""`meta` keys that delay a request."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from scrapy import Request

from scrapy_prioqueue.errors import RequestError
from scrapy_prioqueue.queues.meta import NO_DELAY, Delay, delay_of

MOMENT = datetime(2030, 1, 1, 12, tzinfo=timezone(timedelta(hours=2)))


def request(**meta: Any) -> Request:
    return Request("https://shop.example/", meta=meta)


@pytest.mark.parametrize(
    ("meta", "delay"),
    [
        ({}, NO_DELAY),
        ({"prioqueue_delay": None}, NO_DELAY),
        ({"prioqueue_delay": 0}, NO_DELAY),
        ({"prioqueue_delay": -5.0}, NO_DELAY),
        ({"prioqueue_delay": timedelta(seconds=-1)}, NO_DELAY),
        ({"prioqueue_not_before": -1}, NO_DELAY),
        ({"prioqueue_delay": 2}, Delay(delay_ms=2000)),
        ({"prioqueue_delay": 0.0001}, Delay(delay_ms=1)),
        ({"prioqueue_delay": timedelta(minutes=1)}, Delay(delay_ms=60_000)),
        ({"prioqueue_not_before": 12.5}, Delay(not_before_ms=12_500)),
        ({"prioqueue_not_before": MOMENT}, Delay(not_before_ms=1_893_492_000_000)),
        ({"prioqueue_delay": 1, "prioqueue_not_before": 2}, Delay(1000, 2000)),
    ],
)
def test_times_are_read(meta: dict[str, Any], delay: Delay) -> None:
    assert delay_of(request(**meta)) == delay


@pytest.mark.parametrize(
    ("meta", "why"),
    [
        ({"prioqueue_delay": "2"}, "a number of seconds or a timedelta"),
        ({"prioqueue_delay": True}, "a number of seconds"),
        ({"prioqueue_delay": float("inf")}, "out of range"),
        ({"prioqueue_delay": float("nan")}, "out of range"),
        ({"prioqueue_delay": 1e300}, "out of range"),
        ({"prioqueue_delay": -1e300}, "out of range"),
        ({"prioqueue_not_before": MOMENT.replace(tzinfo=None)}, "has no time zone"),
        ({"prioqueue_not_before": "2030-01-01"}, "a datetime with a time zone or a Unix time"),
    ],
)
def test_an_invalid_time_is_rejected(meta: dict[str, Any], why: str) -> None:
    with pytest.raises(RequestError, match=why):
        delay_of(request(**meta))
