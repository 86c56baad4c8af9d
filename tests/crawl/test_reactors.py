"""The event loops that Scrapy supports: asyncio's reactor, another reactor, and no reactor."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

import pytest
import scrapy.settings.default_settings

from tests.support.crawls import WITHIN_S, Crawls
from tests.support.site import Page, Site, leaves
from tests.support.waiting import wait_until

ASYNCIO = {"TWISTED_REACTOR": "twisted.internet.asyncioreactor.AsyncioSelectorReactor"}
SELECT = {"TWISTED_REACTOR": "twisted.internet.selectreactor.SelectReactor"}
NONE = {"TWISTED_REACTOR_ENABLED": False}

LOOPS = [
    pytest.param("CrawlerProcess", ASYNCIO, "AsyncioSelectorReactor", id="asyncio"),
    pytest.param("CrawlerProcess", SELECT, "SelectReactor", id="select"),
]
if hasattr(scrapy.settings.default_settings, "TWISTED_REACTOR_ENABLED"):
    LOOPS.append(pytest.param("AsyncCrawlerProcess", NONE, "Not using a Twisted reactor", id="none"))


loops = pytest.mark.parametrize("process, settings, said", LOOPS)


@loops
def test_a_crawl_comes_to_its_end_on_every_loop(
    crawls: Crawls, site: Site, process: str, settings: Mapping[str, Any], said: str
) -> None:
    """Report 53."""
    site.pages = {"/": ["/a", "/b", "/a"], "/a": ["/c"], **leaves("/b", "/c")}

    result = crawls.start(settings=settings, process=process).wait()

    assert said in result.log
    assert sorted(result.pages) == ["/", "/a", "/b", "/c"]
    assert result.stats["dupefilter/filtered"] == 1
    assert result.reason == "finished"


@loops
def test_a_crawl_is_interrupted_and_resumed_on_every_loop(
    on_redis: Crawls, site: Site, process: str, settings: Mapping[str, Any], said: str
) -> None:
    gate = threading.Event()
    numbers = [f"/{number}" for number in range(6)]
    site.pages = {"/": numbers, **dict.fromkeys(numbers, Page(gate=gate))}

    first = on_redis.start(settings={**settings, "CONCURRENT_REQUESTS": 2}, process=process)
    wait_until(lambda: len(first.pages) == 3, what="two pages are held", within=WITHIN_S)
    first.interrupt()
    wait_until(lambda: "Received SIGINT" in first.process.log, what="the signal is noticed", within=WITHIN_S)
    gate.set()
    stopped = first.wait()
    second = on_redis.start(settings=settings, process=process).wait()

    assert said in stopped.log
    assert (stopped.reason, second.reason) == ("shutdown", "finished")
    assert len(stopped.pages) == 3
    assert sorted([*stopped.pages, *second.pages]) == sorted(["/", *numbers])
