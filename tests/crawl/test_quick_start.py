"""The project of the quick start, with only its addresses changed, with two workers and a kill."""

from __future__ import annotations

import linecache
import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from tests.support.crawls import WITHIN_S, Crawls
from tests.support.site import Page, Site, Visit
from tests.support.waiting import wait_until

PAGE = Path(__file__).parents[2] / "docs" / "quickstart.md"
SPIDER, SETTINGS = re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
BOOKS_PER_PAGE, LAST = 5, 6


def names_of(source: str) -> Mapping[str, Any]:
    names: dict[str, Any] = {"__name__": __name__}
    # Scrapy reads the source of callbacks.
    linecache.cache[str(PAGE)] = (len(source), None, source.splitlines(keepends=True), str(PAGE))
    exec(compile(source, str(PAGE), "exec"), names)
    return names


class Books(names_of(SPIDER)["BooksSpider"]):  # type: ignore[misc]
    """That of the page, on the site of this test."""

    def __init__(self, site: str, starts: object, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.start_urls = [site]


def listing(number: int, _: Visit) -> Page:
    books = range(number * BOOKS_PER_PAGE, (number + 1) * BOOKS_PER_PAGE)
    pods = "".join(f'<article class="product_pod"><h3><a href="/book/{book}">…</a></h3></article>' for book in books)
    following = f'<li class="next"><a href="/page/{number + 1}">next</a></li>' if number < LAST else ""
    return html(pods + following)


def book(number: int, _: Visit) -> Page:
    return html(f'<h1>Book {number}</h1><p class="price_color">£{number}.00</p>', delay_s=0.1)


def html(body: str, **arguments: Any) -> Page:
    return Page(body=f"<html><body>{body}</body></html>".encode(), headers={"Content-Type": "text/html"}, **arguments)


def test_two_workers_share_the_crawl_of_the_quick_start_and_a_kill_loses_no_book(on_redis: Crawls, site: Site) -> None:
    count = (LAST + 1) * BOOKS_PER_PAGE
    site.pages = {
        "/": partial(listing, 0),
        **{f"/page/{number}": partial(listing, number) for number in range(1, LAST + 1)},
        **{f"/book/{number}": partial(book, number) for number in range(count)},
    }
    theirs = {name: value for name, value in names_of(SETTINGS).items() if name.isupper()}
    crawls = on_redis.having(**{**theirs, **on_redis.settings, "CONCURRENT_REQUESTS": 2})
    first = crawls.start(spider=Books)
    wait_until(lambda: first.events("item"), what="the first has an item", within=WITHIN_S)
    second = crawls.start(spider=Books)
    wait_until(lambda: first.events("item")[2:] and second.events("item"), what="both have items", within=WITHIN_S)

    first.kill()
    first = crawls.start(spider=Books)
    results = [first.wait(), second.wait()]

    assert {visit.path for visit in site.visits} == set(site.pages)
    assert set(theirs) == {"SCHEDULER", "PRIOQUEUE_REDIS_URL"}
    assert [result.reason for result in results] == ["finished", "finished"]
    assert all(result.items[0]["title"].startswith("Book ") for result in results if result.items)
    assert "Joined crawl in frontier" in results[0].log
