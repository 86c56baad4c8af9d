"""Requests that are not marked as seen."""

from __future__ import annotations

from collections import Counter
from typing import Any

from tests.crawl.spiders import Follower
from tests.support.crawls import Crawls
from tests.support.site import Link, Site, leaves, link, moved


def listing(url: str, **arguments: Any) -> Link:
    return link(url, meta={"prioqueue_dont_record": True}, **arguments)


def test_listings_are_fetched_in_each_run_and_details_once(on_redis: Crawls, site: Site) -> None:
    crawls = on_redis.having(PRIOQUEUE_ON_FINISH="keep")
    site.pages = {
        "/": ["/detail-1", listing("/page-2", copies_meta=True), "/detail-2"],
        "/page-2": [link("/detail-2", copies_meta=True), link("/detail-3", copies_meta=True), listing("/moves")],
        "/moves": moved("/moved"),
        "/moved": ["/detail-4"],
        **leaves("/detail-1", "/detail-2", "/detail-3", "/detail-4", "/detail-5"),
    }
    first = crawls.run(listing("/"))
    site.pages["/moved"] = ["/detail-4", "/detail-5"]
    second = crawls.run(listing("/"))

    listings = ["/", "/page-2", "/moves", "/moved"]
    assert Counter(first.pages) == Counter([*listings, *(f"/detail-{number}" for number in (1, 2, 3, 4))])
    assert Counter(second.pages) == Counter([*listings, "/detail-5"])
    assert second.stats["dupefilter/filtered"] == 5


def test_within_a_run_a_listing_is_fetched_once(crawls: Crawls, site: Site) -> None:
    site.pages = {
        "/": [listing("/list"), listing("/list"), "/other", "/list-2"],
        "/other": [listing("/list"), listing("/list-2")],
        **leaves("/list", "/list-2"),
    }

    result = crawls.run(settings={"PRIOQUEUE_SEEN_CACHE": 1})

    assert Counter(result.pages) == {"/": 1, "/list": 1, "/other": 1, "/list-2": 2}
    assert result.stats["dupefilter/filtered"] == 2
    assert result.stats["scheduler/enqueued"] == 5
    assert sorted(result.dropped) == [site.url("/list")] * 2
    assert result.reason == "finished"


def test_a_listing_that_start_yields_is_not_fetched_again_on_resume(on_redis: Crawls, site: Site) -> None:
    site.pages = {"/list": ["/a", "/b"], **leaves("/a", "/b")}
    settings = {"CLOSESPIDER_PAGECOUNT": 1, "CONCURRENT_REQUESTS": 1}

    first = on_redis.run(listing("/list"), spider=Follower, settings=settings)
    second = on_redis.run(listing("/list"))

    assert first.pages == ["/list"]
    assert sorted(second.pages) == ["/a", "/b"]
    assert second.stats["dupefilter/filtered"] == 1
