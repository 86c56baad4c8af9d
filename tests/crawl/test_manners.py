"""Features that work with Scrapy's own scheduler: redirects, errors, callbacks and requests of all kinds."""

from __future__ import annotations

from typing import Any

import pytest

from tests.crawl.spiders import Mannered
from tests.support.crawls import CrawlResult, Crawls
from tests.support.site import Page, Site, Visit, in_turn, leaves, link, moved


def items(result: CrawlResult) -> list[Any]:
    return sorted(result.items, key=lambda item: str(item["page"]))


def test_redirects_and_retries_come_to_their_callbacks(crawls: Crawls, site: Site) -> None:
    site.pages = {
        "/": ["/moved", "/failing", "/hopeless", "/gone"],
        "/moved": moved("/target"),
        "/failing": in_turn(Page(status=503), Page(status=500), Page()),
        "/hopeless": Page(status=500),
        **leaves("/target"),
    }

    result = crawls.run(troubles=True)

    assert [item["page"] for item in items(result)] == ["/", "/failing", "/target"]
    assert (site.count("/failing"), site.count("/hopeless"), site.count("/gone")) == (3, 3, 1)
    assert result.reason == "finished"


def test_a_page_that_redirects_to_itself_with_a_cookie_comes_to_its_callback_once(crawls: Crawls, site: Site) -> None:
    """Report 16."""

    def wall(visit: Visit) -> Page:
        return Page() if "pass=1" in visit.headers.get("cookie", "") else moved("/wall", **{"Set-Cookie": "pass=1"})

    site.pages = {"/": ["/wall"], "/wall": wall}

    result = crawls.run()

    assert [item["page"] for item in items(result)] == ["/", "/wall"]
    assert site.count("/wall") == 2


def test_an_endless_redirect_ends_at_redirect_max_times(crawls: Crawls, site: Site) -> None:
    site.pages = {"/": [link("/loop", dont_filter=True)], "/loop": moved("/loop")}

    result = crawls.run(settings={"REDIRECT_MAX_TIMES": 3})

    assert site.count("/loop") == 4
    assert result.reason == "finished"


def test_requests_forbidden_by_robots_txt_are_neither_fetched_nor_left_over(crawls: Crawls, site: Site) -> None:
    site.pages = {
        "/": ["/allowed", "/forbidden/1", "/forbidden/2"],
        "/robots.txt": Page(body=b"User-agent: *\nDisallow: /forbidden/\n"),
        **leaves("/allowed", "/forbidden/1", "/forbidden/2"),
    }

    result = crawls.run(settings={"ROBOTSTXT_OBEY": True})

    assert [page for page in result.pages if page != "/robots.txt"] == ["/", "/allowed"]
    assert result.reason == "finished"


def test_offsite_requests_are_not_fetched_and_not_left_over(crawls: Crawls, site: Site) -> None:
    """Report 115."""
    site.pages = {"/": ["/here", site.url("/there", host="127.0.0.2")], **leaves("/here", "/there")}

    result = crawls.run(allowed_domains=["127.0.0.1"])

    assert sorted(result.pages) == ["/", "/here"]
    assert result.reason == "finished"


def test_a_callback_that_raises_keeps_the_children_it_has_yielded(crawls: Crawls, site: Site) -> None:
    site.pages = {"/": [link("/fails", callback="parse_and_fail")], "/fails": ["/child"], **leaves("/child")}

    result = crawls.run(spider=Mannered, troubles=True)

    assert [item["page"] for item in items(result)] == ["/", "/child"]
    assert len(result.lines("Spider error processing")) == 1
    assert result.reason == "finished"


def test_callbacks_may_be_async_and_errbacks_are_called(crawls: Crawls, site: Site) -> None:
    site.pages = {
        "/": [
            link("/in-turn", callback="parse_in_turn"),
            link("/to-list", callback="parse_to_list"),
            link("/with", callback="parse_with", cb_kwargs={"number": 1, "nested": {"list": [1]}}),
            link("/missing", errback="on_error"),
        ],
        "/in-turn": ["/child-1", "/child-2"],
        "/to-list": ["/child-3"],
        **leaves("/with", "/child-1", "/child-2", "/child-3"),
    }

    result = crawls.run(spider=Mannered)

    assert items(result) == [
        {"page": "/"},
        {"page": "/child-1"},
        {"page": "/child-2"},
        {"page": "/child-3"},
        {"page": "/in-turn"},
        {"page": "/missing", "error": "HttpError"},
        {"page": "/to-list"},
        {"page": "/with", "number": 1, "nested": {"list": [1]}},
    ]


def test_requests_of_other_classes_stay_what_they_are(crawls: Crawls, site: Site) -> None:
    """Report 40."""
    site.pages = {**leaves("/", "/form", "/json", "/own")}

    result = crawls.run(link("/", callback="parse_forms"), spider=Mannered)

    assert items(result) == [
        {"page": "/form", "kind": "scrapy.http.request.form.FormRequest"},
        {"page": "/json", "kind": "scrapy.http.request.json_request.JsonRequest"},
        {"page": "/own", "label": "L"},
    ]
    sent = {visit.path: (visit.method, visit.body) for visit in site.visits}
    assert sent["/form"] == ("POST", b"a=1")
    assert sent["/json"] == ("POST", b'{"b": [2]}')


def test_requests_that_cannot_be_stored_are_crawled_from_memory(crawls: Crawls, site: Site) -> None:
    """Reports 36, 37 and 39."""
    site.pages = {
        "/": [],
        "/lambda": ["/child"],
        **leaves("/selector", "/file", "/plain", "/child"),
    }

    result = crawls.run(link("/", callback="parse_and_store_nothing"), spider=Mannered)

    assert items(result) == [
        {"page": "/child"},
        {"page": "/file", "is_same": True},
        {"page": "/lambda"},
        {"page": "/plain"},
        {"page": "/selector"},
    ]
    assert result.stats.get("scheduler/unserializable") == (3 if crawls.are_shared else None)
    assert len(result.lines("Unable to serialize request")) == crawls.are_shared
    assert result.reason == "finished"


def test_a_request_that_could_not_be_stored_leaves_no_fingerprint_behind(on_redis: Crawls, site: Site) -> None:
    """Report 36."""
    site.pages = {"/plain": ["/lambda"], **leaves("/", "/lambda", "/selector", "/file")}
    start = link("/", callback="parse_and_store_nothing")

    first = on_redis.run(start, spider=Mannered, settings={"CLOSESPIDER_PAGECOUNT": 1, "CONCURRENT_REQUESTS": 1})
    second = on_redis.run(start, spider=Mannered)

    assert first.lines("Did not fetch 3 requests that only this worker has")
    assert sorted(second.pages) == ["/", "/file", "/lambda", "/plain", "/selector"]


def test_a_download_delay_is_kept_and_every_page_comes(crawls: Crawls, site: Site) -> None:
    """Report 115."""
    numbers = [f"/{number}" for number in range(5)]
    site.pages = {"/": numbers, **leaves(*numbers)}

    crawls.run(settings={"DOWNLOAD_DELAY": 0.4})

    times = [visit.time_s for visit in site.visits]
    assert len(times) == 6
    assert times[-1] - times[0] > 4 * 0.2


def test_a_spider_closed_by_its_callback_keeps_the_rest_for_the_next_run(on_redis: Crawls, site: Site) -> None:
    site.pages = {"/": [link("/close", callback="parse_and_close")], "/close": ["/child"], **leaves("/child")}

    first = on_redis.run(spider=Mannered)
    second = on_redis.run(spider=Mannered)

    assert (first.reason, second.reason) == ("enough", "finished")
    assert first.pages == ["/", "/close"]
    assert sorted(second.pages) == ["/child", "/close"]


@pytest.mark.parametrize("concurrency", [1, 8])
def test_a_limit_of_pages_leaves_the_rest_for_the_next_run(on_redis: Crawls, site: Site, concurrency: int) -> None:
    numbers = [f"/{number}" for number in range(30)]
    site.pages = {"/": numbers, **leaves(*numbers)}
    settings = {"CONCURRENT_REQUESTS": concurrency}

    first = on_redis.run(settings={"CLOSESPIDER_PAGECOUNT": 10, **settings})
    second = on_redis.run(settings=settings)

    assert (first.reason, second.reason) == ("closespider_pagecount", "finished")
    # Scrapy closes in a later turn of the loop: what was running then may have been answered and replaced.
    assert 10 <= len(first.pages) <= 10 + 2 * concurrency
    assert sorted([*first.pages, *second.pages]) == sorted(["/", *numbers])
    assert second.lines("Resumed crawl in frontier")
