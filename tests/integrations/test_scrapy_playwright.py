"""scrapy-playwright: pages are rendered by Chromium, and keep their page methods on the way through Redis."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

from scrapy import Request
from scrapy.http import Response
from scrapy_playwright.page import PageMethod

from tests.integrations.bookshop import Bookshop, crawl_with_a_kill
from tests.integrations.deployed.books.spiders.books import Books
from tests.support.crawls import Crawls
from tests.support.site import Page, Visit

HANDLER = "scrapy_playwright.handler.ScrapyPlaywrightDownloadHandler"
SETTINGS: dict[str, Any] = {
    "DOWNLOAD_HANDLERS": {"http": HANDLER, "https": HANDLER},
    # The gate is closed until both workers have started their browsers, which takes long on a busy machine.
    "PLAYWRIGHT_DEFAULT_NAVIGATION_TIMEOUT": 120_000,
    "PLAYWRIGHT_LAUNCH_OPTIONS": {
        "executable_path": "/usr/bin/chromium",
        "args": [
            "--no-sandbox",
            "--disable-gpu",
            "--disable-quic",
            "--no-first-run",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
        ],
    },
}


class Rendered(Books):
    """Has each book rendered, in a page that a method of the spider prepares."""

    name = "rendered"

    def parse_list(self, response: Response) -> Iterator[Request]:
        for path in response.css("a.next::attr(href)").getall():
            yield response.follow(path, self.parse_book, meta=self.browser_meta())

    def browser_meta(self) -> dict[str, Any]:
        """Return what tells the browser what to do with a page."""
        return {
            "playwright": True,
            "playwright_page_methods": {
                "wait": PageMethod("wait_for_selector", "p.price"),
                "price": PageMethod("evaluate", "document.querySelector('p.price').textContent"),
            },
            "playwright_page_init_callback": self.prepare,
            "playwright_page_goto_kwargs": {"wait_until": "domcontentloaded"},
        }

    async def prepare(self, page: Any, request: Request) -> None:
        """Set up a page before it is used."""
        await page.add_init_script("window.prepared = true")

    def parse_book(self, response: Response) -> Any:
        methods = response.meta["playwright_page_methods"]
        assert response.css("p.price::text").get() == methods["price"].result
        yield {"title": response.css("h1::text").get(), "price": methods["price"].result}


def test_rendered_pages_and_retries_survive_a_kill(on_redis: Crawls, shop: Bookshop) -> None:
    """Each book fails once; by then its page methods have results, of which one belongs to the browser."""
    failed: set[str] = set()

    def fail_once(visit: Visit) -> Page:
        if visit.path in failed:
            return shop.page(visit.path)
        failed.add(visit.path)
        return Page(status=503, body=shop.html(visit.path), headers={"Content-Type": "text/html"})

    shop.site.pages.update({path: fail_once for path in shop.site.pages if path.startswith("/book/")})

    result = crawl_with_a_kill(on_redis, shop, Rendered, **SETTINGS)

    assert result.stats["playwright/page_count"] > len(shop.books) // 2
    assert result.stats["retry/count"] > 0
    assert not result.stats_under("prioqueue/unserializable")


class PassingOn(Rendered):
    """Opens each book's page, then reloads it in the same page of the browser, which only this worker has."""

    name = "passing-on"

    def browser_meta(self) -> dict[str, Any]:
        """Return likewise, with the browser's page."""
        return {"playwright": True, "playwright_include_page": True}

    def parse_book(self, response: Response) -> Any:
        assert response.request is not None
        yield response.request.replace(callback=self.parse_again, dont_filter=True)

    async def parse_again(self, response: Response) -> AsyncIterator[Any]:
        """Make the item and close the page."""
        await response.meta["playwright_page"].close()
        yield {"title": response.css("h1::text").get(), "price": response.css("p.price::text").get()}


def test_a_page_that_is_passed_on_stays_in_its_worker_and_survives_a_kill(on_redis: Crawls, shop: Bookshop) -> None:
    # Pages that wait for their second download count, too; with the default they would leave no room for others.
    settings = {**SETTINGS, "PLAYWRIGHT_MAX_PAGES_PER_CONTEXT": 100}
    result = crawl_with_a_kill(on_redis, shop, PassingOn, expects="Unable to serialize", **settings)

    assert result.stats["prioqueue/unserializable/playwright.async_api._generated.Page"] >= len(shop.books) // 2
