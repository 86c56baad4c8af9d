"""Delayed requests."""

from __future__ import annotations

import time

import pytest

from tests.support.crawls import Crawls
from tests.support.site import Page, Site, leaves, link

DELAY_S = 1.5


def test_a_delayed_request_waits_at_any_priority_and_the_crawl_waits_for_it(crawls: Crawls, site: Site) -> None:
    site.pages = {
        "/": [link("/late", priority=100, meta={"prioqueue_delay": DELAY_S}), "/early"],
        **leaves("/late", "/early"),
    }

    result = crawls.start().wait()

    assert result.pages == ["/", "/early", "/late"]
    times = {visit.path: visit.time_s for visit in site.visits}
    assert times["/late"] - times["/"] >= DELAY_S
    assert result.reason == "finished"
    assert not result.troubles


def test_a_request_waits_for_a_moment(crawls: Crawls, site: Site) -> None:
    moment = time.time() + 2
    site.pages = {"/": [link("/late", meta={"prioqueue_not_before": moment})], **leaves("/late")}

    result = crawls.start().wait()

    assert result.pages == ["/", "/late"]
    assert time.time() >= moment


def test_requests_found_on_a_delayed_page_are_not_delayed(crawls: Crawls, site: Site) -> None:
    site.pages = {
        "/": [link("/late", meta={"prioqueue_delay": 0.2})],
        "/late": Page(["/child"]),
        **leaves("/child"),
    }

    result = crawls.start().wait()

    assert result.pages == ["/", "/late", "/child"]


@pytest.mark.parametrize("delay", [float("inf"), "soon", True])
def test_a_delay_that_is_none_is_refused_with_a_reason(crawls: Crawls, site: Site, delay: object) -> None:
    site.pages = {"/": [link("/late", meta={"prioqueue_delay": delay}), "/early"], **leaves("/late", "/early")}

    result = crawls.start().wait(troubles=True)

    assert result.pages == ["/", "/early"]
    assert result.stats["prioqueue/rejected"] == 1
    assert len(result.lines(f"meta['prioqueue_delay'] = {delay!r} can't be used")) == 1


def test_delayed_requests_are_left_for_the_next_run(on_redis: Crawls, site: Site) -> None:
    site.pages = {"/": [link("/late", meta={"prioqueue_delay": 3}), "/early"], **leaves("/late", "/early")}

    first = on_redis.start(settings={"CLOSESPIDER_PAGECOUNT": 1}).wait()
    second = on_redis.start().wait()

    assert "/late" not in first.pages
    assert len(first.lines("1 delayed")) == 1
    assert second.pages.count("/late") == 1
    assert second.reason == "finished"


def test_a_misspelt_key_is_reported(crawls: Crawls, site: Site) -> None:
    site.pages = {"/": [link("/late", meta={"prioqueue_delayed": 3600})], **leaves("/late")}

    result = crawls.run()

    assert result.pages == ["/", "/late"]
    assert len(result.lines("did you mean prioqueue_delay?")) == 1
