"""Pages that count as new again after a time."""

from __future__ import annotations

from tests.support.crawls import Crawls
from tests.support.site import Site, leaves


def test_a_page_is_fetched_again_by_a_crawl_after_its_time(on_redis: Crawls, site: Site) -> None:
    site.pages = {"/": ["/a"], **leaves("/a")}
    keeps = {"PRIOQUEUE_ON_FINISH": "keep"}

    at_once = {**keeps, "PRIOQUEUE_REVISIT_AFTER": 0}
    never = {**keeps, "PRIOQUEUE_REVISIT_AFTER": -1}
    pages = [sorted(on_redis.start(settings=each).wait().pages) for each in (at_once, at_once, never, never)]

    assert pages == [["/", "/a"], ["/", "/a"], ["/", "/a"], []]
