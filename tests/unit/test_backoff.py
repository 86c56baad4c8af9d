"""Waiting times of retries."""

from __future__ import annotations

from email.utils import formatdate

import pytest
from scrapy.http import Response
from scrapy.settings import Settings

from scrapy_prioqueue.errors import SettingError
from scrapy_prioqueue.middlewares.retry import backoff_s
from scrapy_prioqueue.queues.politeness import retry_after_s
from scrapy_prioqueue.settings import Backoff, backoff_of

NOW = 1_700_000_000.0
URL = "http://shop.example/"


def answer(status: int = 503, **headers: str) -> Response:
    return Response(URL, status=status, headers={name.replace("_", "-"): value for name, value in headers.items()})


def asked(response: Response, cap_s: float = 3600) -> float:
    return retry_after_s(response, cap_s, lambda: NOW)


def test_each_retry_waits_longer_up_to_a_limit() -> None:
    backoff = Backoff(base_s=1, factor=3, cap_s=20, jitter=0)

    assert [backoff_s(backoff, retry) for retry in (1, 2, 3, 4, 10_000)] == [1, 3, 9, 20, 20]


def test_chance_shortens_a_wait_by_no_more_than_its_part() -> None:
    backoff = Backoff(base_s=8, jitter=0.25)

    assert backoff_s(backoff, 1, lambda: 0.0) == 8
    assert backoff_s(backoff, 1, lambda: 1.0) == 6
    assert 6 <= backoff_s(backoff, 1) <= 8


@pytest.mark.parametrize("status, seconds", [(503, 120), (429, 120), (500, 0), (200, 0)])
def test_retry_after_of_two_codes_is_respected(status: int, seconds: float) -> None:
    assert asked(answer(status, Retry_After="120")) == seconds


def test_retry_after_may_be_a_date_by_the_clock_of_the_server() -> None:
    until = formatdate(NOW + 90, usegmt=True)

    assert asked(answer(Retry_After=until)) == 90
    assert asked(answer(Retry_After=until, Date=formatdate(NOW + 60, usegmt=True))) == 30
    assert asked(answer(Retry_After=formatdate(NOW - 90, usegmt=True))) == 0


@pytest.mark.parametrize("value", ["", "soon", "-5", "1.5", "Thu, 99 Nov 2026 10:00:00 GMT", "²", "é"])
def test_retry_after_that_says_nothing_is_ignored(value: str) -> None:
    assert asked(Response(URL, status=503, headers={"Retry-After": value.encode("latin-1")})) == 0
    assert asked(answer()) == 0


def test_retry_after_is_bounded() -> None:
    assert asked(answer(Retry_After="9" * 400)) == 3600
    assert asked(answer(Retry_After="10"), cap_s=0) == 0


def test_settings_of_the_backoff() -> None:
    def read(value: object) -> Backoff:
        return backoff_of(Settings({"PRIOQUEUE_RETRY_BACKOFF": value}))

    assert backoff_of(Settings()) == Backoff()
    assert read({"base": 2, "cap": 9}) == Backoff(base_s=2, cap_s=9)
    assert read('{"jitter": 0}') == Backoff(jitter=0)
    assert backoff_s(read(None), 3) == 0
    assert read('{"base": 0, "retry_after_cap": 5}') == Backoff(base_s=0, retry_after_cap_s=5)
    with pytest.raises(SettingError, match="jitter must be"):
        read({"jitter": 2})
