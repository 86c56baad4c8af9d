"""Which requests are dropped as duplicates, by which filter, and how that is logged and counted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from tests.support.crawls import CrawlResult, Crawls
from tests.support.servers import RedisServer
from tests.support.site import Site, leaves, link

FOUND_AT_ONCE: Mapping[str, Any] = {}
FOUND_BY_THE_FRONTIER = {"PRIOQUEUE_SEEN_CACHE": 0}


@pytest.fixture
def repetitive(site: Site) -> Site:
    """A site with three links that are duplicates, and one that would be if it were filtered."""
    site.pages = {"/": ["/a", "/b", "/a", "/c"], "/c": ["/b", "/a", link("/b", dont_filter=True)], **leaves("/a", "/b")}
    return site


def paths(result: CrawlResult) -> list[str]:
    return sorted(url.rpartition("/")[2] for url in result.dropped)


@pytest.mark.parametrize("settings", [FOUND_AT_ONCE, FOUND_BY_THE_FRONTIER], ids=["cache", "frontier"])
def test_duplicates_are_dropped_counted_and_signalled_once_each(
    crawls: Crawls, repetitive: Site, settings: Mapping[str, Any]
) -> None:
    """Reports 21 and 100."""
    result = crawls.run(settings=settings)

    assert sorted(result.pages) == ["/", "/a", "/b", "/b", "/c"]
    assert result.stats["dupefilter/filtered"] == 3
    assert paths(result) == ["a", "a", "b"]
    assert result.stats["scheduler/enqueued"] == result.stats["scheduler/dequeued"] == 5
    assert len(result.lines("Filtered duplicate request")) == 1


def test_a_bloom_filter_says_at_the_start_what_it_may_lose(on_redis: Crawls, repetitive: Site) -> None:
    result = on_redis.run(settings={**FOUND_BY_THE_FRONTIER, "PRIOQUEUE_SEEN": "bloom"})

    assert sorted(result.pages) == ["/", "/a", "/b", "/b", "/c"]
    assert result.stats["dupefilter/filtered"] == 3
    (line,) = result.lines("Bloom filter")
    assert "up to 1 % of new pages" in line


def test_counts_and_signals_are_those_of_scrapy(crawls: Crawls, repetitive: Site) -> None:
    ours, scrapys = crawls.run(), crawls.by_scrapy.run()
    kind = "redis" if "scheduler/enqueued/redis" in ours.stats else "memory"

    assert sorted(ours.pages) == sorted(scrapys.pages)
    assert paths(ours) == paths(scrapys)
    assert sorted(ours.scheduled) == sorted(scrapys.scheduled)
    assert ours.stats["dupefilter/filtered"] == scrapys.stats["dupefilter/filtered"]
    assert ours.stats_under("scheduler/") == {
        name.replace("memory", kind): value for name, value in scrapys.stats_under("scheduler/").items()
    }
    assert ours.reason == scrapys.reason == ours.stats["finish_reason"] == "finished"
    assert ours.stats["item_scraped_count"] == scrapys.stats["item_scraped_count"]


@pytest.mark.parametrize("settings", [FOUND_AT_ONCE, FOUND_BY_THE_FRONTIER], ids=["cache", "frontier"])
def test_dupefilter_debug_logs_every_duplicate(crawls: Crawls, repetitive: Site, settings: Mapping[str, Any]) -> None:
    """Report 21."""
    result = crawls.run(settings={"DUPEFILTER_DEBUG": True, **settings})

    assert len(result.lines("Filtered duplicate request")) == 3


def test_a_filter_of_the_users_own_is_honoured(crawls: Crawls, site: Site) -> None:
    """Report 8."""
    site.pages = {"/": ["/aa", "/bb", "/ccc"], **leaves("/aa", "/bb", "/ccc")}

    result = crawls.run(settings={"DUPEFILTER_CLASS": "tests.crawl.spiders.LengthDupeFilter"})

    assert len(result.pages) == 3 and "/ccc" in result.pages
    assert len(result.dropped) == 1
    assert result.lines("Duplicates are filtered by tests.crawl.spiders.LengthDupeFilter, for this process")


@pytest.mark.parametrize("starts", [["/broken", "/"], ["/"]], ids=["start-request", "link"])
def test_a_filter_that_raises_leaves_the_crawl_open(
    on_redis: Crawls, site: Site, redis_server: RedisServer, frontier_name: str, starts: list[str]
) -> None:
    site.pages = {"/": ["/a", "/broken", "/b"], **leaves("/a", "/b", "/broken")}
    filtering = {"DUPEFILTER_CLASS": "tests.crawl.spiders.SometimesBrokenDupeFilter"}
    client: Any = redis_server.client()
    state = f"{{prioqueue:{frontier_name}}}:state"

    broken = on_redis.start(*starts, settings=filtering).wait(troubles=True)

    assert sorted(broken.pages) == ["/", "/a", "/b"]
    assert broken.stats["finish_reason"] == "shutdown"
    assert broken.lines("the crawl is not over")
    assert client.hget(state, "phase") == b"open"
    mended = on_redis.run(*starts)
    assert "/broken" in mended.pages
    assert mended.stats["finish_reason"] == "finished"
    assert client.hget(state, "phase") == b"ended"


def test_a_page_with_a_request_that_has_no_fingerprint_becomes_a_dead_letter(crawls: Crawls, site: Site) -> None:
    site.pages = {"/": ["/a", "/broken", "/b"], **leaves("/a", "/b")}

    result = crawls.run(
        *("/broken", "/"),
        settings={"REQUEST_FINGERPRINTER_CLASS": "tests.crawl.spiders.SometimesBrokenFingerprinter"},
        troubles=True,
    )

    assert sorted(result.pages) == ["/", "/a", "/b"]
    assert result.stats["prioqueue/errors"] == 2
    assert len(result.lines("ValueError: the fingerprinter of a test fails")) >= 2
    (line,) = result.lines("becomes a dead letter (callback)")
    assert "/broken> was not stored: ValueError" in line
    assert result.reason == "shutdown"


def test_a_subclass_of_ours_gives_requests_an_identity_of_its_own(crawls: Crawls, site: Site) -> None:
    site.pages = {"/": ["/a?1", "/a?2", "/b"], **leaves("/a?1", "/a?2", "/b")}

    result = crawls.run(settings={"DUPEFILTER_CLASS": "tests.crawl.spiders.PathDupeFilter"})

    assert sorted(page.partition("?")[0] for page in result.pages) == ["/", "/a", "/b"]
    assert paths(result) in (["a?1"], ["a?2"])


def test_scrapys_stock_filter_filters_and_is_warned_of_once(crawls: Crawls, repetitive: Site) -> None:
    """Report 8."""
    result = crawls.run(settings={"DUPEFILTER_CLASS": "scrapy.dupefilters.RFPDupeFilter"})

    assert paths(result) == ["a", "a", "b"]
    assert len(result.lines("filters duplicates of this process only")) == 1


def test_base_dupefilter_switches_filtering_off(
    on_redis: Crawls, repetitive: Site, redis_server: RedisServer, frontier_name: str
) -> None:
    """Report 7."""
    site, client = repetitive, redis_server.client()
    crawl = on_redis.start(
        settings={"DUPEFILTER_CLASS": "scrapy.dupefilters.BaseDupeFilter", "PRIOQUEUE_ON_FINISH": "keep"}
    )
    result = crawl.wait()

    assert (site.count("/a"), site.count("/b"), site.count("/c")) == (3, 3, 1)
    assert not result.dropped
    assert not client.keys(f"{{prioqueue:{frontier_name}}}:seen:*")


def test_our_filter_works_under_scrapys_own_scheduler(in_memory: Crawls, repetitive: Site) -> None:
    result = in_memory.by_scrapy.run(settings={"DUPEFILTER_CLASS": "scrapy_prioqueue.DupeFilter"})

    assert sorted(result.pages) == ["/", "/a", "/b", "/b", "/c"]
    assert paths(result) == ["a", "a", "b"]


def test_the_addon_sets_everything_up(on_redis: Crawls, repetitive: Site, frontier_name: str) -> None:
    settings = {name: value for name, value in on_redis.settings.items() if name != "SCHEDULER"}

    result = on_redis.by_scrapy.run(settings={**settings, "ADDONS": {"scrapy_prioqueue.Addon": 500}})

    assert result.lines(f"New crawl in frontier {frontier_name} at redis://")
    assert paths(result) == ["a", "a", "b"]


def test_two_workers_filter_each_others_duplicates(on_redis: Crawls, site: Site) -> None:
    numbers = [f"/{number}" for number in range(40)]
    site.pages = {"/": numbers, **dict.fromkeys(numbers, numbers)}

    workers = [on_redis.start(), on_redis.start()]
    results = [worker.wait() for worker in workers]

    assert sorted(page for result in results for page in result.pages) == sorted(["/", *numbers])
    assert sum(result.stats.get("dupefilter/filtered", 0) for result in results) == 40 * 40 + 1
    assert sum(len(result.dropped) for result in results) == 40 * 40 + 1
