"""Requests over a budget, and the counted costs of others."""

from __future__ import annotations

from typing import Any

from tests.crawl.spiders import Mannered
from tests.support.crawls import Crawls
from tests.support.site import Page, Site, in_turn, leaves, link

HOST = "127.0.0.1"


def pages(count: int, **arguments: Any) -> dict[str, Any]:
    """Return a page with so many links, and what they lead to."""
    paths = [f"/{number}" for number in range(count)]
    return {"/": [link(path, **arguments) for path in paths], **{path: Page(body=b"[]") for path in paths}}


def test_a_site_is_fetched_up_to_its_budget_and_the_rest_are_dead_letters(crawls: Crawls, site: Site) -> None:
    site.pages = pages(10)

    result = crawls.run(settings={"PRIOQUEUE_BUDGETS": {HOST: {"pages": 4}}})

    assert len(result.pages) == 4
    assert result.reason == "finished"
    assert result.stats["prioqueue/dead/budget"] == 7
    assert result.stats["prioqueue/letters/crawl"] == 7
    assert result.stats[f"prioqueue/budget/{HOST}/pages"] == 4
    assert len(result.lines("is used up")) == 1


def test_advice_about_a_used_up_budget_is_logged(on_redis: Crawls, in_memory: Crawls, site: Site) -> None:
    site.pages = pages(2)
    settings = {"PRIOQUEUE_BUDGETS": {HOST: {"pages": 1}}}

    assert on_redis.run(settings=settings).lines(f"scrapy frontier budget {HOST} --pages N")
    assert in_memory.run(settings=settings).lines("raise PRIOQUEUE_BUDGETS for the next crawl")


def test_twenty_at_a_time_fetch_no_page_too_many(on_redis: Crawls, site: Site) -> None:
    site.pages = pages(60)
    # One that starts late must not begin a crawl of its own.
    settings = {"PRIOQUEUE_BUDGETS": {"*": {"pages": 20}}, "PRIOQUEUE_CRAWL_ID": "one"}

    crawls = [on_redis.start(settings=settings) for _ in range(2)]
    results = [crawl.wait() for crawl in crawls]

    assert len(site.visits) == 20
    assert sum(result.stats.get("prioqueue/dead/budget", 0) for result in results) == 41


def test_bytes_and_seconds_are_what_was_downloaded_and_how_long_it_took(crawls: Crawls, site: Site) -> None:
    site.pages = {"/": Page(body=b"[]" + b" " * 998, delay_s=0.3)}

    result = crawls.run(settings={"PRIOQUEUE_BUDGETS": {"*": {"bytes": 1e6}}})

    assert result.stats[f"prioqueue/budget/{HOST}/bytes"] == 1000
    assert 0.3 <= result.stats[f"prioqueue/budget/{HOST}/seconds"] < result.stats["elapsed_time_seconds"]


def test_a_budget_of_bytes_ends_it(crawls: Crawls, site: Site) -> None:
    paths = [f"/{number}" for number in range(10)]
    # Bytes count when a callback has ended, and Scrapy 2.13 begins it a tenth of a second after the download.
    site.pages = {"/": paths, **{path: Page(body=b"[]" + b" " * 998, delay_s=0.25) for path in paths}}

    result = crawls.run(
        settings={"PRIOQUEUE_BUDGETS": {"*": {"bytes": 3_500}}, "CONCURRENT_REQUESTS": 1},
    )

    # What is prefetched is leased already.
    assert 4 <= len(result.pages) <= 6
    assert result.stats["prioqueue/dead/budget"] == 11 - len(result.pages)


def test_each_of_a_requests_budgets_must_fit(crawls: Crawls, site: Site) -> None:
    wide, narrow = {"prioqueue_budget": ["acme"]}, {"prioqueue_budget": ["job-1", "acme"]}
    site.pages = {
        "/": [
            *(link(f"/narrow/{number}", meta=narrow, priority=1) for number in range(5)),
            *(link(f"/wide/{number}", meta=wide) for number in range(5)),
        ],
        **leaves(*(f"/{kind}/{number}" for kind in ("narrow", "wide") for number in range(5))),
    }

    result = crawls.run(settings={"PRIOQUEUE_BUDGETS": {"acme": {"pages": 6}, "job-1": {"pages": 2}}})

    assert sum(path.startswith("/narrow") for path in result.pages) == 2
    assert sum(path.startswith("/wide") for path in result.pages) == 4
    assert result.stats["prioqueue/dead/budget"] == 4


def test_renders_have_a_cap_of_their_own(crawls: Crawls, site: Site) -> None:
    site.pages = {
        "/": [*(link(f"/r/{number}", meta={"prioqueue_render": True}) for number in range(5)), "/plain"],
        **leaves(*(f"/r/{number}" for number in range(5)), "/plain"),
    }

    result = crawls.run(settings={"PRIOQUEUE_BUDGETS": {"*": {"renders": 2}}})

    assert sum(path.startswith("/r/") for path in result.pages) == 2
    assert "/plain" in result.pages
    assert result.stats[f"prioqueue/budget/{HOST}/renders"] == 2


def test_retries_redirects_and_what_is_put_back_count_as_pages(crawls: Crawls, site: Site) -> None:
    site.pages = {
        "/": ["/failing", "/moved"],
        "/failing": in_turn(Page(status=503), Page()),
        "/moved": Page(status=302, headers={"Location": "/target"}),
        **leaves("/target"),
    }

    result = crawls.run(settings={"PRIOQUEUE_BUDGETS": {"*": {"pages": 100}}})

    assert result.stats[f"prioqueue/budget/{HOST}/pages"] == 5


def test_a_request_put_back_keeps_its_budget(crawls: Crawls, site: Site) -> None:
    site.pages = {"/": [link("/closing", callback="parse_and_close", meta={"prioqueue_budget": "acme"})]}
    site.pages["/closing"] = Page()

    result = crawls.run(spider=Mannered, settings={"PRIOQUEUE_BUDGETS": {"*": {"pages": 100}}}, troubles=True)

    assert result.stats["prioqueue/budget/acme/pages"] == 1


def test_a_budget_that_has_no_name_makes_the_request_be_refused(crawls: Crawls, site: Site) -> None:
    site.pages = {"/": [link("/1", meta={"prioqueue_budget": 5}), "/2"], **leaves("/1", "/2")}

    result = crawls.run(settings={"PRIOQUEUE_BUDGETS": {"*": {"pages": 100}}}, troubles=True)

    assert result.pages == ["/", "/2"]
    assert result.stats["prioqueue/rejected"] == 1
    assert result.lines("meta['prioqueue_budget'] = 5 can't be used: it must be a name, or a list of names")
