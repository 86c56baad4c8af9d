"""`start()`: how it is read, what it may yield, and that its requests are fetched once per crawl."""

from __future__ import annotations

import threading

from tests.crawl.spiders import Consumer, FailingStarter, IdleFiller, SlowStarter
from tests.support.crawls import WITHIN_S, Crawls
from tests.support.site import Page, Site, leaves, link
from tests.support.waiting import wait_until


def test_a_start_that_takes_its_time_is_read_to_its_end(crawls: Crawls, site: Site) -> None:
    site.pages = leaves("/a", "/b", "/c")

    result = crawls.run("/a", "/b", "/c", spider=SlowStarter)

    assert result.pages == ["/a", "/b", "/c"]
    assert sorted(item["page"] for item in result.items) == ["/a", "/b", "/c", "before a", "before b", "before c"]
    assert result.reason == "finished"


def test_an_exception_in_start_does_not_lose_what_was_yielded(crawls: Crawls, site: Site) -> None:
    site.pages = {"/a": ["/child"], **leaves("/b", "/child")}

    result = crawls.run("/a", "/b", spider=FailingStarter, troubles=True)
    scrapys = crawls.by_scrapy.run("/a", "/b", spider=FailingStarter, troubles=True)

    assert sorted(result.pages) == ["/a", "/b", "/child"]
    assert len(result.lines("Error while reading start items and requests")) == 1
    assert result.reason == scrapys.reason


def test_an_idle_spider_may_continue_with_requests_of_its_own(crawls: Crawls, site: Site) -> None:
    site.pages = {"/": [], "/more-1": ["/child"], **leaves("/more-2", "/child")}

    result = crawls.run(spider=IdleFiller)

    assert result.pages == ["/", "/more-1", "/child", "/more-2"]
    assert result.reason == "finished"


def test_start_requests_are_made_once_for_all_workers(on_redis: Crawls, site: Site) -> None:
    gate = threading.Event()
    site.pages = {"/a": Page(gate=gate), **leaves("/b")}
    starts = ["/a", link("/b", dont_filter=True), link("/b", dont_filter=True)]

    workers = [on_redis.start(*starts) for _ in range(2)]
    for worker in workers:
        worker.wait_for("scheduled", "/a", "/b")
    gate.set()
    results = [worker.wait() for worker in workers]

    assert (site.count("/a"), site.count("/b")) == (1, 2)
    assert [result.reason for result in results] == ["finished", "finished"]


def test_start_requests_are_not_made_again_when_a_crawl_is_resumed(on_redis: Crawls, site: Site) -> None:
    starts = [link("/a", dont_filter=True), link("/b", dont_filter=True), link("/b", dont_filter=True), "/c"]
    site.pages = leaves("/a", "/b", "/c")

    first = on_redis.run(*starts, settings={"CLOSESPIDER_PAGECOUNT": 1, "CONCURRENT_REQUESTS": 1})
    second = on_redis.run(*starts)

    assert first.reason == "closespider_pagecount"
    assert (site.count("/a"), site.count("/b"), site.count("/c")) == (1, 2, 1)
    assert second.stats["prioqueue/start/repeated"] == 3
    (line,) = second.lines("is not fetched again")
    assert f"INFO: Start request <GET {site.url('/a')}> is not fetched again" in line
    assert 'PRIOQUEUE_START = "each"' in line


def test_each_start_request_counts_whoever_yields_it_and_again_after_a_restart(on_redis: Crawls, site: Site) -> None:
    each = on_redis.having(PRIOQUEUE_START="each")
    site.pages = leaves("/a", "/b")

    workers = [each.start(*starts, spider=Consumer) for starts in (["/a"], ["/a", "/b", "/a"])]
    wait_until(lambda: site.count("/a") == 3, what="each message is fetched", within=WITHIN_S)
    for worker in workers:
        worker.interrupt()
    results = [worker.wait() for worker in workers]
    again = each.start("/a", spider=Consumer)
    again.wait_for("item", "/a")
    again.interrupt()
    results.append(again.wait())

    assert (site.count("/a"), site.count("/b")) == (4, 1)
    assert [result.reason for result in results] == ["shutdown"] * 3
    assert not any("prioqueue/start/repeated" in result.stats for result in results)


def test_filtered_start_requests_stay_filtered_where_each_counts(crawls: Crawls, site: Site) -> None:
    site.pages = leaves("/a", "/b")
    starts = ["/a", "/a", link("/b", dont_filter=True), link("/b", dont_filter=True)]

    result = crawls.run(*starts, settings={"PRIOQUEUE_START": "each"})

    assert (site.count("/a"), site.count("/b")) == (1, 2)
    assert result.stats["dupefilter/filtered"] == 1


def test_more_start_requests_than_the_outbox_takes_are_all_made(crawls: Crawls, site: Site) -> None:
    """Report 59."""
    starts = [f"/{number}" for number in range(60)]
    site.pages = leaves(*starts)

    result = crawls.run(*starts, settings={"PRIOQUEUE_OUTBOX_LIMIT": 5})

    assert sorted(result.pages) == sorted(starts)
