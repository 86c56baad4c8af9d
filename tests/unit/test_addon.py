"""Settings that the add-on sets, and those that it leaves unchanged."""

from __future__ import annotations

from typing import Any

import pytest
from scrapy.downloadermiddlewares.retry import RetryMiddleware as ScrapyRetryMiddleware
from scrapy.settings import Settings
from scrapy.utils.conf import build_component_list

from scrapy_prioqueue import Addon, RetryMiddleware

SCRAPY_RETRY = "scrapy.downloadermiddlewares.retry.RetryMiddleware"


def middlewares(**chosen: Any) -> list[Any]:
    settings = Settings(chosen)
    Addon().update_settings(settings)
    return build_component_list(settings.getwithbase("DOWNLOADER_MIDDLEWARES"))


def test_retries_are_made_by_ours_in_the_same_place() -> None:
    before = build_component_list(Settings().getwithbase("DOWNLOADER_MIDDLEWARES"))
    found = middlewares(DOWNLOADER_MIDDLEWARES={"shop.Middleware": 100})

    found.remove("shop.Middleware")
    assert [each if each != "scrapy_prioqueue.RetryMiddleware" else SCRAPY_RETRY for each in found] == before
    assert issubclass(RetryMiddleware, ScrapyRetryMiddleware)


@pytest.mark.parametrize(
    "chosen", [{SCRAPY_RETRY: None}, {SCRAPY_RETRY: 123}, {ScrapyRetryMiddleware: 123}, {RetryMiddleware: 7}]
)
def test_a_choice_of_the_project_stays(chosen: dict[Any, Any]) -> None:
    assert "scrapy_prioqueue.RetryMiddleware" not in middlewares(DOWNLOADER_MIDDLEWARES=chosen)


def test_without_retries_there_are_none() -> None:
    assert "scrapy_prioqueue.RetryMiddleware" not in middlewares(DOWNLOADER_MIDDLEWARES_BASE={})
