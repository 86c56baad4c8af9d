"""scrapy-poet: callbacks get page objects, items and the classes in `inject`, and may ask for a retry."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import ClassVar

import pytest
from scrapy import Request, Spider
from scrapy.http import Response
from scrapy.settings import Settings
from scrapy_poet import DummyResponse, DynamicDeps, callback_for
from web_poet import WebPage, field, handle_urls
from web_poet.exceptions import Retry

from tests.commands.conftest import run_command
from tests.integrations.bookshop import Bookshop, crawl_with_a_kill, documented_settings
from tests.support.crawls import Crawls

SETTINGS = documented_settings("scrapy-poet")


@dataclass
class Book:
    """A book of the shop."""

    title: str
    price: str


class ListPage(WebPage):  # type: ignore[misc]
    """A page of links."""

    @property
    def links(self) -> list[str]:
        """The pages that it leads to."""
        return list(map(self.urljoin, self.css("a.next::attr(href)").getall()))


@handle_urls("")
class BookPage(WebPage[Book]):  # type: ignore[misc]
    """A page of a book."""

    tried: ClassVar[set[str]] = set()

    @field  # type: ignore[untyped-decorator]
    def title(self) -> str:
        """Its heading; some pages are fetched again for it."""
        if self.url not in self.tried and str(self.url).endswith(("1", "2", "3")):
            self.tried.add(self.url)
            raise Retry
        return str(self.css("h1::text").get())

    @field  # type: ignore[untyped-decorator]
    def price(self) -> str:
        """What the book costs."""
        return str(self.css("p::attr(data-price)").get())


class Injected(Spider):
    """Parses pages by page objects only: as arguments of callbacks, by `callback_for`, and by `inject`."""

    name = "injected"
    site: str

    async def start(self) -> AsyncIterator[Request]:
        yield Request(self.site, self.parse_shop)

    def parse_shop(self, response: DummyResponse, page: ListPage) -> Iterator[Request]:
        for url in page.links:
            yield Request(url, self.parse_list)

    def parse_list(self, response: Response, page: ListPage) -> Iterator[Request]:
        for number, url in enumerate(page.links):
            if number % 3 == 0:
                yield Request(url, self.parse_page)
            elif number % 3 == 1:
                yield Request(url, self.parse_item)
            else:
                yield Request(url, self.parse_injected, meta={"inject": [Book]})

    parse_page = callback_for(BookPage)

    def parse_item(self, response: DummyResponse, book: Book) -> Iterator[Book]:
        yield book

    def parse_injected(self, response: DummyResponse, found: DynamicDeps) -> Iterator[Book]:
        yield found[Book]


def test_page_objects_survive_a_kill(on_redis: Crawls, shop: Bookshop) -> None:
    result = crawl_with_a_kill(on_redis, shop, Injected, **SETTINGS)

    assert result.stats["retry/count"] > 0
    assert not result.stats_under("prioqueue/unserializable")


def test_commands_compute_the_same_fingerprints(
    on_redis: Crawls, shop: Bookshop, capsys: pytest.CaptureFixture[str]
) -> None:
    shop.gate.set()
    settings = {**SETTINGS, "PRIOQUEUE_ON_FINISH": "keep"}
    on_redis.run(spider=Injected, settings=settings)
    project = {**on_redis.settings, **settings, "SPIDER_MODULES": [__name__]}

    for callback in ("parse_item", "parse_shop"):
        assert run_command(("push", shop.site.url("/book/1"), "--callback", callback), Settings(project)) == 0

    pushed = [line.partition(", into ")[0] for line in capsys.readouterr().out.splitlines()]
    assert pushed == ["0 pushed, 1 seen before", "1 pushed"]
