"""The order of requests is the one that Scrapy documents, and that of its own scheduler on the same site."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import scrapy

from tests.support.crawls import Crawls
from tests.support.site import Link, Page, Site, leaves, link

FIFO_QUEUES = {
    "SCHEDULER_MEMORY_QUEUE": "scrapy.squeues.FifoMemoryQueue",
    "SCHEDULER_DISK_QUEUE": "scrapy.squeues.PickleFifoDiskQueue",
}

SERVES_START_REQUESTS_FIRST = scrapy.__version__ == "2.13.0"
"""That release did so; 2.13.4 and 2.19 serve them after others of equal priority, as we do on any."""


def order_of(
    crawls: Crawls,
    site: Site,
    links: Sequence[Link],
    starts: Sequence[Link] = (),
    settings: Mapping[str, Any] | None = None,
) -> Sequence[str]:
    """Return the pages in the order fetched, one at a time, after all of them were scheduled.

    The page "/first" has the links, and answers only when "/second" has been scheduled.
    That comes next, and answers only when everything has been scheduled.
    """
    gates = [threading.Event(), threading.Event()]
    paths = [each if isinstance(each, str) else each["url"] for each in (*starts, *links)]
    site.pages = {"/first": Page(links, gate=gates[0]), "/second": Page(gate=gates[1]), **leaves(*paths)}
    settings = {"PRIOQUEUE_TIERS": ["urgent", "high", "normal", "low"], **(settings or {})}
    best = {"meta": {"prioqueue_tier": settings["PRIOQUEUE_TIERS"][0]}}
    held = [link("/first", priority=10**8, **best), link("/second", priority=10**7, **best)]

    crawl = crawls.start(*held, *starts, settings={"CONCURRENT_REQUESTS": 1, **settings})
    crawl.wait_for("scheduled", "/second")
    gates[0].set()
    crawl.wait_for("asked", "/second")
    crawl.wait_for("scheduled", *paths)
    gates[1].set()
    pages = crawl.wait().pages
    assert list(pages[:2]) == ["/first", "/second"]
    return pages[2:]


def test_a_higher_priority_goes_first_and_the_newest_among_equals(crawls: Crawls, site: Site) -> None:
    links = ["/a", link("/low", priority=-3), "/b", link("/high", priority=2), link("/top", priority=10**6), "/c"]

    ours, scrapys = order_of(crawls, site, links), order_of(crawls.by_scrapy, site, links)

    assert ours == ["/top", "/high", "/c", "/b", "/a", "/low"]
    assert ours == scrapys


def test_start_requests_go_after_others_of_their_priority_and_in_the_order_yielded(crawls: Crawls, site: Site) -> None:
    """Report 103: seeds of several priorities."""
    starts = ["/s1", link("/s-low", priority=-5), "/s2", link("/s-high", priority=5), "/s3"]
    links = ["/a", link("/high", priority=5), "/b"]

    ours, scrapys = order_of(crawls, site, links, starts), order_of(crawls.by_scrapy, site, links, starts)

    assert ours == ["/high", "/s-high", "/b", "/a", "/s1", "/s2", "/s3", "/s-low"]
    assert ours == scrapys or SERVES_START_REQUESTS_FIRST


def test_fifo_order_serves_the_oldest_first(crawls: Crawls, site: Site) -> None:
    links = ["/a", link("/low", priority=-1), "/b", "/c"]

    by_our_setting = order_of(crawls, site, links, settings={"PRIOQUEUE_ORDER": "fifo"})

    assert by_our_setting == ["/a", "/b", "/c", "/low"]


def test_fifo_queues_of_scrapys_settings_are_followed(crawls: Crawls, site: Site) -> None:
    links, starts = ["/a", link("/low", priority=-1), "/b", "/c"], ["/s1", "/s2"]

    ours = order_of(crawls, site, links, starts, FIFO_QUEUES)
    scrapys = order_of(crawls.by_scrapy, site, links, starts, FIFO_QUEUES)

    assert ours == ["/a", "/b", "/c", "/s1", "/s2", "/low"]
    assert ours == scrapys or SERVES_START_REQUESTS_FIRST


def test_without_a_queue_of_their_own_start_requests_are_ordered_as_all_others(crawls: Crawls, site: Site) -> None:
    links, starts = ["/a", "/b"], ["/s1", "/s2"]
    settings = {"SCHEDULER_START_MEMORY_QUEUE": None, "SCHEDULER_START_DISK_QUEUE": None}

    ours = order_of(crawls, site, links, starts, settings)
    scrapys = order_of(crawls.by_scrapy, site, links, starts, settings)

    assert ours == ["/b", "/a", "/s2", "/s1"]
    assert ours == scrapys


def test_a_lifo_queue_of_start_requests_is_followed(crawls: Crawls, site: Site) -> None:
    links, starts = ["/a", "/b"], ["/s1", "/s2"]
    settings = {**FIFO_QUEUES, "SCHEDULER_START_MEMORY_QUEUE": "scrapy.squeues.LifoMemoryQueue"}

    ours = order_of(crawls, site, links, starts, settings)
    scrapys = order_of(crawls.by_scrapy, site, links, starts, settings)

    assert ours == ["/a", "/b", "/s2", "/s1"]
    assert ours == scrapys or SERVES_START_REQUESTS_FIRST


def test_requests_that_can_not_be_stored_keep_their_place_in_the_order(crawls: Crawls, site: Site) -> None:
    links = ["/a", link("/low", priority=-3), link("/high", priority=2), link("/top", priority=9)]
    links += [link(f"/own{priority}", priority=priority, is_unstorable=True) for priority in (-1, 1, 5)]

    order = order_of(crawls, site, links)

    assert order == ["/top", "/own5", "/high", "/own1", "/a", "/own-1", "/low"]


def test_a_tier_outranks_every_priority(crawls: Crawls, site: Site) -> None:
    def in_tier(tier: str, priority: int) -> Link:
        return link(f"/{tier}{priority}", priority=priority, meta={"prioqueue_tier": tier})

    links = [
        in_tier("low", 2**44 - 1),
        "/plain",
        in_tier("urgent", -(2**44) + 1),
        in_tier("high", 0),
        in_tier("high", 1),
    ]

    assert order_of(crawls, site, links) == [f"/urgent{-(2**44) + 1}", "/high1", "/high0", "/plain", f"/low{2**44 - 1}"]


def test_rules_give_tiers_by_url_and_by_callback(crawls: Crawls, site: Site) -> None:
    rules = [
        {"tier": "high", "url": "/product/"},
        {"tier": "low", "callback": "parse_listing"},
        {"tier": "urgent", "url": "/login$", "callback": "parse"},
    ]
    links = [
        link("/product/1", callback="parse_listing"),
        "/login",
        link("/listing", callback="parse_listing"),
        "/other",
        link("/product/2", meta={"prioqueue_tier": "low"}),
        link("/listing/login", callback="parse_listing"),
    ]

    found = order_of(crawls, site, links, settings={"PRIOQUEUE_TIER_RULES": rules})

    assert found == ["/login", "/product/1", "/other", "/listing/login", "/product/2", "/listing"]


def test_tiers_of_ones_own_replace_the_four(crawls: Crawls, site: Site) -> None:
    settings = {"PRIOQUEUE_TIERS": ["now", "later"], "PRIOQUEUE_DEFAULT_TIER": "later"}
    links = [link("/now", meta={"prioqueue_tier": "now"}), "/later"]

    assert order_of(crawls, site, links, settings=settings) == ["/now", "/later"]


@pytest.mark.parametrize(
    "meta, rules",
    [
        pytest.param({"prioqueue_tier": "urgent"}, [], id="tier-from-meta"),
        pytest.param({}, [{"tier": "urgent", "url": "/(moved|failing)$"}], id="tier-from-a-rule"),
    ],
)
def test_a_tier_travels_with_redirects_and_retries(
    crawls: Crawls, site: Site, meta: Mapping[str, str], rules: Sequence[Mapping[str, str]]
) -> None:
    gate = threading.Event()
    answers = iter([Page(status=503)])
    site.pages = {
        "/first": [
            link("/moved", meta=meta),
            link("/failing", meta=meta),
            link("/held", priority=99),
            link("/x", priority=50),
        ],
        "/moved": Page(status=302, headers={"Location": "/target"}),
        "/failing": lambda _: next(answers, Page()),
        "/held": Page(gate=gate),
        **leaves("/target", "/x"),
    }
    settings = {"CONCURRENT_REQUESTS": 1, "PRIOQUEUE_TIER_RULES": rules}

    crawl = crawls.start("/first", settings=settings)
    crawl.wait_for("scheduled", "/target")
    crawl.wait_for("asked", "/held")
    gate.set()
    pages = crawl.wait().pages

    assert pages.index("/x") == len(pages) - 1
    assert pages.count("/failing") == 2
    assert sorted(pages) == sorted(["/first", "/moved", "/target", "/failing", "/failing", "/held", "/x"])


def test_a_tier_given_by_a_rule_is_not_inherited_by_a_child_that_copies_meta(crawls: Crawls, site: Site) -> None:
    gate = threading.Event()
    site.pages = {
        "/first": [link("/product/1"), link("/held", priority=9), link("/x", priority=5)],
        "/product/1": [link("/child", copies_meta=True)],
        "/held": Page(gate=gate),
        **leaves("/child", "/x"),
    }
    settings = {"CONCURRENT_REQUESTS": 1, "PRIOQUEUE_TIER_RULES": [{"tier": "urgent", "url": "/product/"}]}

    crawl = crawls.start("/first", settings=settings)
    crawl.wait_for("scheduled", "/child")
    gate.set()

    # Scrapy from 2.18 on warns of what the child has copied.
    assert crawl.wait(troubles=True).pages == ["/first", "/product/1", "/held", "/x", "/child"]
