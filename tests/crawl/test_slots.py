"""Domains don't wait for each other."""

from __future__ import annotations

import threading

import pytest

from tests.support.crawls import Crawls
from tests.support.site import Page, Site, leaves


@pytest.mark.parametrize("concurrency", [4, 16])
def test_a_domain_with_a_long_queue_does_not_hold_the_others_back(crawls: Crawls, site: Site, concurrency: int) -> None:
    """Reports 109 and 113."""
    gate = threading.Event()
    slow = [f"/slow/{number}" for number in range(40)]
    fast = [f"/fast/{number}" for number in range(5)]
    site.pages = {
        "/": [
            *[site.url(path, host="127.0.0.3") for path in fast],
            *[site.url(path, host="127.0.0.2") for path in slow],
        ],
        **dict.fromkeys(slow, Page(gate=gate)),
        **leaves(*fast),
    }
    settings = {"CONCURRENT_REQUESTS": concurrency, "CONCURRENT_REQUESTS_PER_DOMAIN": 2}

    crawl = crawls.start(settings=settings)
    crawl.wait_for("item", *fast)
    started = sum(page in slow for page in crawl.pages)
    gate.set()
    result = crawl.wait()

    assert started <= 2
    assert sorted(result.pages) == sorted(["/", *slow, *fast])
    assert result.reason == "finished"


def test_a_request_to_a_host_that_can_not_exist_is_refused_and_its_neighbours_are_fetched(
    crawls: Crawls, site: Site
) -> None:
    site.pages = {"/": [f"http://{1_000 * 'a.'}example/", "/near"], **leaves("/near")}

    result = crawls.run(troubles=True)

    assert result.pages == ["/", "/near"]
    assert (result.stats["prioqueue/rejected"], result.reason) == (1, "finished")
    assert result.lines("has 2007 bytes, and 253 are allowed")
