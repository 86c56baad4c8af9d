"""A bookshop that two workers crawl, one of which is killed in the middle, and what came out."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import redis
from scrapy import Spider
from shop_chaos.view import FrontierView

from tests.docs.markdown import DOCS, python_blocks
from tests.support.crawls import CrawlResult, Crawls
from tests.support.site import Page, Site
from tests.support.waiting import wait_until

PAGES_AT_A_TIME = 4
"""`CONCURRENT_REQUESTS` of each worker."""

WITHIN_S = 100.0
"""Seconds that either half of a crawl may take on a busy machine; the first half begins with the start of browsers."""

SETTINGS: Mapping[str, Any] = {"CONCURRENT_REQUESTS": PAGES_AT_A_TIME, "PRIOQUEUE_LEASE_TTL": 3}

_LISTS, _BOOKS_PER_LIST, _ANSWERED_AT_ONCE = 4, 8, 5


class Bookshop:
    """A start page, lists of books, and a page for each book, in HTML.

    A few pages of books are answered at once, all others when the gate is open.

    Args:
        site: serves it.
    """

    def __init__(self, site: Site) -> None:
        self.site = site
        self.gate = threading.Event()
        self.held = 0
        self._answered = 0
        self._bodies = {"/": _links(f"/list/{number}" for number in range(_LISTS))}
        self.books: list[dict[str, str]] = []
        for number in range(_LISTS * _BOOKS_PER_LIST):
            self.books.append({"title": f"Book {number}", "price": f"{number}.50"})
            self._bodies[f"/book/{number}"] = _book(**self.books[-1])
        for number in range(_LISTS):
            numbers = range(number * _BOOKS_PER_LIST, (number + 1) * _BOOKS_PER_LIST)
            self._bodies[f"/list/{number}"] = _links(f"/book/{each}" for each in numbers)
        site.pages.update({path: lambda visit: self.page(visit.path) for path in self._bodies})

    def page(self, path: str, body: bytes | None = None, **headers: str) -> Page:
        """Return a page, as the site or another server shows it; one of a book counts as visited.

        Args:
            path: of the page.
            body: what is sent for it, None for its HTML.
            headers: besides its type.
        """
        if path not in self._bodies:
            return Page(status=404)
        gate = None
        if path.startswith("/book/") and not self.gate.is_set():
            self._answered += 1
            gate = self.gate if self._answered > _ANSWERED_AT_ONCE else None
            self.held += gate is not None
        return Page(body=body or self.html(path), headers={"Content-Type": "text/html", **headers}, gate=gate)

    def html(self, path: str) -> bytes:
        """Return the HTML of a page."""
        return self._bodies[path].encode()


def crawl_with_a_kill(
    crawls: Crawls, shop: Bookshop, spider: type[Spider], *, expects: str = "ScrapyDeprecationWarning", **settings: Any
) -> CrawlResult:
    """Crawl the shop with two workers, kill one while both are busy, and check that nothing is lost.

    Args:
        crawls: of the shop's site.
        shop: whose gate is closed.
        spider: makes an item of each book.
        expects: regular expression of the warnings that the log may have; by default those that are about packages.
        settings: of the workers.

    Returns:
        The crawl of the worker that lives on.
    """
    client = redis.Redis.from_url(crawls.settings["PRIOQUEUE_REDIS_URL"])
    frontier = FrontierView(client, crawls.settings["PRIOQUEUE_NAME"])
    victim, other = (
        crawls.start(spider=spider, settings={**SETTINGS, **settings, "PRIOQUEUE_WORKER_ID": name})
        for name in ("victim", "other")
    )
    wait_until_both_are_busy(shop)
    assert len(frontier.leases("victim")) >= PAGES_AT_A_TIME
    victim.kill()
    shop.gate.set()
    result = other.wait(within=WITHIN_S, troubles=True)

    assert [line for line in result.troubles if not re.search(expects, line)] == []
    check_nothing_is_lost(shop, [*victim.events("item"), *result.items], frontier)
    assert (result.exit_code, result.reason) == (0, "finished")
    return result


def wait_until_both_are_busy(shop: Bookshop) -> None:
    """Wait until each of two workers has as many pages in progress as it may have."""
    wait_until(lambda: shop.held == 2 * PAGES_AT_A_TIME, what="both workers wait for pages", within=WITHIN_S)


def check_nothing_is_lost(shop: Bookshop, items: Sequence[Mapping[str, Any]], frontier: FrontierView) -> None:
    """Check that there is a complete item for each book, and that the frontier has nothing left.

    A book on which the killed worker was may have two equal items.
    """
    found = {item["title"]: dict(item) for item in items}
    assert [found.pop(book["title"], None) for book in shop.books] == shop.books
    assert not found
    counts = frontier.counts()
    assert (counts["done"], counts.get("dead", 0)) == (counts["accepted"], 0)


def documented_settings(package: str) -> dict[str, Any]:
    """Return the settings that docs/integrations.md gives for a package."""
    *_, block = python_blocks(DOCS / "integrations.md", package)
    found: dict[str, Any] = {}
    exec(block, {}, found)
    return found


def _links(paths: Iterable[str]) -> str:
    return "<html><body>" + "".join(f'<a class="next" href="{path}">more</a>' for path in paths) + "</body></html>"


def _book(title: str, price: str) -> str:
    """Return the page of a book; a script adds its price in the browser."""
    return (
        f"<html><head><meta charset='utf-8'></head><body><h1>{title}</h1><p data-price='{price}'></p>"
        "<script>var p = document.querySelector('p'); p.className = 'price'; p.textContent = p.dataset.price;</script>"
        "</body></html>"
    )
