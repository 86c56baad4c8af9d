"""The spider of a project that is deployed to scrapyd."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

from scrapy import Request, Spider
from scrapy.http import Response, TextResponse


class Books(Spider):
    """Makes an item of each book."""

    name = "books"
    site: str

    async def start(self) -> AsyncIterator[Request]:
        yield Request(self.site)

    def parse(self, response: Response) -> Iterator[Request]:
        assert isinstance(response, TextResponse)
        yield from response.follow_all(css="a.next", callback=self.parse_list)

    def parse_list(self, response: Response) -> Iterator[Request]:
        assert isinstance(response, TextResponse)
        yield from response.follow_all(css="a.next", callback=self.parse_book)

    def parse_book(self, response: Response) -> Iterator[Any]:
        yield {"title": response.css("h1::text").get(), "price": response.css("p::attr(data-price)").get()}
