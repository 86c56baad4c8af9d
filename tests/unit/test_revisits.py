"""`meta` keys that decide when a request counts as new again."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from scrapy import Request

from scrapy_prioqueue.errors import RequestError
from scrapy_prioqueue.frontier.seen import NEVER_S, SeenPolicy
from scrapy_prioqueue.queues.meta import revisit_of

HOURLY = SeenPolicy(revisit_s=3600)


def request(value: Any) -> Request:
    return Request("https://shop.example/", meta={"prioqueue_revisit_after": value})


def test_without_the_key_the_frontier_decides() -> None:
    assert revisit_of(Request("https://shop.example/"), HOURLY) is None


@pytest.mark.parametrize(
    ("value", "seconds"),
    [(0, 0), (60, 60), (0.1, 1), (timedelta(days=1), 86_400), (1e300, NEVER_S), (float("inf"), NEVER_S)],
)
def test_times_are_read_in_whole_seconds(value: Any, seconds: int) -> None:
    assert revisit_of(request(value), HOURLY) == seconds


def test_none_is_never() -> None:
    assert revisit_of(request(None), HOURLY) == NEVER_S


@pytest.mark.parametrize(
    ("value", "why"),
    [("60", "a number"), (True, "a number"), (-1, "0 or more"), (float("nan"), "0 or more"), (timedelta(-1), "0 or")],
)
def test_an_invalid_time_is_rejected(value: Any, why: str) -> None:
    with pytest.raises(RequestError, match=why):
        revisit_of(request(value))


def test_never_is_what_holds_where_no_times_are_kept() -> None:
    assert revisit_of(request(None), SeenPolicy()) is None


def test_without_times_the_key_is_rejected_and_the_setting_named() -> None:
    with pytest.raises(RequestError, match="PRIOQUEUE_REVISIT_AFTER"):
        revisit_of(request(60), SeenPolicy())
