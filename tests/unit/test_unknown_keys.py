"""Keys in `meta` that look like the scheduler's are logged once; all others are the user's own."""

from __future__ import annotations

from typing import Any

import pytest
from scrapy import Request, Spider

from scrapy_prioqueue.queues.meta import UnknownKeys


def logged(caplog: pytest.LogCaptureFixture, *metas: dict[Any, Any]) -> list[str]:
    """Return what is logged of requests with these `meta`."""
    unknown = UnknownKeys(Spider("books"))
    for meta in metas:
        unknown.look(Request("https://a.example/", meta=meta))
    return [record.getMessage() for record in caplog.records]


def test_a_misspelt_key_is_logged_once_with_the_right_one(caplog: pytest.LogCaptureFixture) -> None:
    (message,) = logged(caplog, {"prioqueue_teir": "high"}, {"prioqueue_teir": "low", "depth": 1})

    assert "'prioqueue_teir'" in message
    assert "did you mean prioqueue_tier?" in message
    assert "<GET https://a.example/>" in message


def test_other_keys_are_silent(caplog: pytest.LogCaptureFixture) -> None:
    used = {"prioqueue_tier": "high", "prioqueue_delay": 3, "prioqueue_requeue_times": 1, "depth": 1, 7: 8}

    assert logged(caplog, used, {"download_slot": "own"}) == []


def test_a_spider_that_names_keys_by_page_is_checked_up_to_a_thousand(caplog: pytest.LogCaptureFixture) -> None:
    many = [{f"page-{number}": number} for number in range(2000)]

    assert logged(caplog, *many, {"prioqueue_teir": "high"}) == []
