"""Sites get no more requests than limits, `Retry-After`, `Crawl-delay` and AutoThrottle allow."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest

from tests.support.crawls import Crawls
from tests.support.site import Page, Site, Visit, in_turn, leaves, link

pytestmark = pytest.mark.real_time

HOST = "127.0.0.1"
STRETCH = 1.01
SLACK_S = 0.02
"""How much later than it started a request may come to the site, on a busy machine."""


def times(site: Site, *, host: str = HOST) -> list[float]:
    """Return when a host was asked for a page, in order."""
    return [visit.time_s for visit in site.visits if visit.host == host and visit.path != "/robots.txt"]


def most_within(seconds: float, arrivals: Sequence[float]) -> int:
    """Return the largest number of arrivals in any window of that length."""
    return max(sum(first <= each < first + seconds for each in arrivals) for first in arrivals)


def quickest(count: int, arrivals: Sequence[float]) -> float:
    """Return the shortest time in which so many arrivals follow another; a machine that stalls makes others longer."""
    return min(later - first for first, later in zip(arrivals, arrivals[count:], strict=False))


def pages(count: int) -> dict[str, Any]:
    """Return a page with so many links, and what they lead to."""
    paths = [f"/{number}" for number in range(count)]
    return {"/": paths, **leaves(*paths)}


def test_the_site_sees_the_rate_and_nearly_all_of_it(crawls: Crawls, site: Site) -> None:
    site.pages = pages(100)

    result = crawls.run(settings={"PRIOQUEUE_SLOTS": {HOST: {"delay": 0.05}}})

    arrivals = times(site)
    assert len(arrivals) == 101
    assert most_within(2.0, arrivals) <= 2.0 / 0.05 + 3
    assert quickest(40, arrivals) <= 40 * 0.05 / 0.98 + SLACK_S
    assert result.reason == "finished"


def test_two_workers_keep_to_one_rate(on_redis: Crawls, site: Site) -> None:
    site.pages = pages(100)
    settings = {"PRIOQUEUE_SLOT_DELAY": 0.05}

    crawls = [on_redis.start(settings=settings) for _ in range(2)]
    results = [crawl.wait() for crawl in crawls]

    arrivals = times(site)
    assert len(arrivals) == 101
    assert most_within(2.0, arrivals) <= 2.0 / 0.05 + 3
    assert quickest(40, arrivals) <= 40 * 0.05 / 0.98 + 2 * SLACK_S
    assert [result.reason for result in results] == ["finished"] * 2


def test_a_slot_that_waits_keeps_no_other_back(crawls: Crawls, site: Site) -> None:
    other = site.hosts[1]
    fast = [site.url(f"/fast/{number}", host=other) for number in range(30)]
    slow = [link(f"/{number}", priority=1) for number in range(8)]
    site.pages = {
        "/": [*slow, *fast],
        **leaves(*(f"/{number}" for number in range(8)), *(f"/fast/{number}" for number in range(30))),
    }

    crawls.run(settings={"PRIOQUEUE_SLOTS": {HOST: {"delay": 0.3}}, "CONCURRENT_REQUESTS": 4})

    assert times(site)[-1] - times(site)[1] >= 6 * 0.3
    assert times(site, host=other)[-1] - times(site)[0] < 6 * 0.3


def test_a_slot_that_waits_gets_its_turns_while_slow_pages_of_a_worse_tier_take_all_places(
    crawls: Crawls, site: Site
) -> None:
    limited, slow = [f"/{number}" for number in range(10)], [f"/slow/{number}" for number in range(20)]
    elsewhere = [site.url(path, host=site.hosts[1]) for path in slow]
    site.pages = {
        "/": [*(link(path, meta={"prioqueue_tier": "high"}) for path in limited), *elsewhere],
        **{path: Page(delay_s=0.5) for path in (*limited, *slow)},
    }

    crawls.run(settings={"PRIOQUEUE_SLOTS": {HOST: {"delay": 0.2}}, "CONCURRENT_REQUESTS": 4})

    arrivals = times(site)[1:]
    # It was three times as long; a busy machine makes it somewhat longer than it should be.
    assert arrivals[-1] - arrivals[0] <= 9 * 0.2 * STRETCH * 1.5


def test_a_burst_goes_out_at_once_and_then_the_rate_holds(crawls: Crawls, site: Site) -> None:
    site.pages = pages(9)

    crawls.run(settings={"PRIOQUEUE_SLOTS": {HOST: {"delay": 0.3, "burst": 5}}})

    arrivals = times(site)
    assert arrivals[4] - arrivals[1] < 0.3
    assert arrivals[-1] - arrivals[0] >= 5 * 0.3 - 0.2


def test_all_workers_together_keep_to_the_concurrency_of_a_slot(on_redis: Crawls, site: Site) -> None:
    paths = [f"/{number}" for number in range(16)]
    site.pages = {"/": paths, **{path: Page(delay_s=0.2) for path in paths}}
    settings = {"PRIOQUEUE_SLOTS": {HOST: {"concurrency": 2}}}

    crawls = [on_redis.start(settings=settings) for _ in range(2)]
    for crawl in crawls:
        crawl.wait()

    assert most_within(0.2 - SLACK_S, times(site)[1:]) <= 2


def test_the_concurrency_of_a_slot_is_used(crawls: Crawls, site: Site) -> None:
    paths = [f"/{number}" for number in range(10)]
    site.pages = {"/": paths, **{path: Page(delay_s=0.4) for path in paths}}

    crawls.run(settings={"PRIOQUEUE_SLOTS": {HOST: {"concurrency": 2}}})

    arrivals = times(site)[1:]
    assert most_within(0.4 - SLACK_S, arrivals) <= 2
    # A request has its place until its callback has ended, which Scrapy 2.13 begins a tenth of a second late.
    assert arrivals[-1] - arrivals[0] <= 4 * 0.4 * 1.5


# What a site asks for


def test_a_site_that_asks_to_be_left_alone_is_left_alone_and_others_are_not(crawls: Crawls, site: Site) -> None:
    other = site.hosts[1]
    paths = [f"/{number}" for number in range(6)]
    elsewhere = [site.url(f"/fast/{number}", host=other) for number in range(6)]
    site.pages = {
        "/": [link("/busy", priority=10), *paths, *elsewhere],
        "/busy": in_turn(Page(status=429, headers={"Retry-After": "2"}), Page()),
        **leaves(*paths, *(f"/fast/{number}" for number in range(6))),
    }

    result = crawls.run(settings={"CONCURRENT_REQUESTS": 1})

    asked = next(visit.time_s for visit in site.visits if visit.path == "/busy")
    later = [each for each in times(site) if each > asked]
    assert len(later) == 7
    assert later[0] - asked >= 2 - SLACK_S
    assert times(site, host=other)[-1] - asked < 1.5
    assert result.reason == "finished"


def test_a_site_that_asks_to_be_left_alone_is_left_alone_by_all_workers(on_redis: Crawls, site: Site) -> None:
    paths = [f"/{number}" for number in range(60)]
    left: list[float] = []

    def busy(visit: Visit) -> Page:
        if left:
            return Page()
        left.append(visit.time_s)
        return Page(status=503, headers={"Retry-After": "3"})

    site.pages = {"/": paths, **{path: Page(delay_s=0.05) for path in paths}, paths[30]: busy}

    crawls = [on_redis.start(settings={"CONCURRENT_REQUESTS": 2}) for _ in range(2)]
    for crawl in crawls:
        crawl.wait()

    # What the other worker had started, and had leased, when it was told.
    assert not [each for each in times(site) if left[0] + 1 < each < left[0] + 3 - SLACK_S]
    assert max(times(site)) > left[0] + 3 - SLACK_S


def test_crawl_delay_is_kept_where_it_is_asked_for(crawls: Crawls, site: Site) -> None:
    site.pages = {**pages(4), "/robots.txt": Page(body=b"User-agent: *\nCrawl-delay: 0.6\n")}

    crawls.run(settings={"ROBOTSTXT_OBEY": True, "PRIOQUEUE_ROBOTSTXT_CRAWL_DELAY": True})

    arrivals = times(site)
    assert len(arrivals) == 5
    # Together: behind a page that a busy machine has sent late the gap is shorter.
    assert arrivals[-1] - arrivals[1] >= 3 * (0.6 - 0.06) - 0.3


def test_crawl_delay_is_kept_from_the_first_page_on(crawls: Crawls, site: Site) -> None:
    site.pages = {**pages(6), "/robots.txt": Page(body=b"User-agent: *\nCrawl-delay: 0.5\n", delay_s=0.2)}
    urls = [site.url(f"/{number}") for number in range(6)]

    crawls.run(settings={"ROBOTSTXT_OBEY": True, "PRIOQUEUE_ROBOTSTXT_CRAWL_DELAY": True}, urls=urls)

    arrivals = times(site)
    # The robots.txt, and then the pages.
    assert len(arrivals) == 7
    # Behind a page that a busy machine has sent late the gap is shorter; the first one was hundredths of a second.
    assert min(after - before for before, after in zip(arrivals, arrivals[1:], strict=False)) >= 0.5 / 2
    assert arrivals[-1] - arrivals[0] >= 6 * (0.5 - 0.06)


def test_crawl_delay_is_kept_while_another_worker_reads_a_slow_robots_txt(on_redis: Crawls, site: Site) -> None:
    paths = [f"/{number}" for number in range(7)]
    robots = Page(body=b"User-agent: *\nCrawl-delay: 0.7\n", delay_s=1.0)
    site.pages = {**leaves(*paths), "/robots.txt": robots}
    settings = {"ROBOTSTXT_OBEY": True, "PRIOQUEUE_ROBOTSTXT_CRAWL_DELAY": True}

    crawls = [on_redis.start(*paths, settings=settings) for _ in range(2)]
    for crawl in crawls:
        crawl.wait()

    arrivals = times(site)
    assert len(arrivals) == len(paths)
    # Behind a page that a busy machine has sent late the gap is shorter.
    assert min(after - before for before, after in pairwise(arrivals)) >= 0.7 / 2


def test_a_site_without_a_crawl_delay_is_fetched_at_full_speed(crawls: Crawls, site: Site) -> None:
    paths = [f"/{number}" for number in range(12)]
    site.pages = {"/": paths, **{path: Page(delay_s=0.5) for path in paths}}

    crawls.run(settings={"ROBOTSTXT_OBEY": True, "PRIOQUEUE_ROBOTSTXT_CRAWL_DELAY": True})

    # Eight at a time, as Scrapy has it, not one.
    assert times(site)[-1] - times(site)[1] <= 0.5 * 6


def test_crawl_delay_is_not_kept_otherwise(crawls: Crawls, site: Site) -> None:
    site.pages = {**pages(4), "/robots.txt": Page(body=b"User-agent: *\nCrawl-delay: 20\n")}

    crawls.run(settings={"ROBOTSTXT_OBEY": True})

    assert len(times(site)) == 5


def test_the_delay_follows_the_latency_where_that_is_asked_for(crawls: Crawls, site: Site) -> None:
    paths = [f"/{number}" for number in range(14)]
    site.pages = {"/": paths, **{path: Page(delay_s=0.4) for path in paths}}

    crawls.run(settings={"PRIOQUEUE_AUTOTHROTTLE": {"start_delay": 0.2, "max_delay": 5}})

    # The first are not answered before the next are due.
    arrivals = times(site)
    assert arrivals[-1] - arrivals[-2] >= 0.4 * 0.8


@pytest.mark.parametrize("workers", [1, 2])
def test_while_robots_txt_is_slow_nothing_piles_up_behind_it(on_redis: Crawls, site: Site, workers: int) -> None:
    site.pages = {**pages(20), "/robots.txt": Page(body=b"User-agent: *\n", delay_s=1.0)}
    settings = {"ROBOTSTXT_OBEY": True, "PRIOQUEUE_SLOTS": {HOST: {"delay": 0.1}}}

    crawls = [on_redis.start(*(f"/{number}" for number in range(20)), settings=settings) for _ in range(workers)]
    for crawl in crawls:
        crawl.wait()

    arrivals = times(site)
    assert len(arrivals) == 20
    assert most_within(0.5, arrivals) <= 5 + 1 + workers
