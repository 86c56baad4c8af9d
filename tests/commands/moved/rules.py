"""A CrawlSpider, whose requests have strings of lxml in their meta."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from scrapy import Request
from scrapy.http import HtmlResponse
from scrapy.linkextractors import LinkExtractor
from scrapy.spiders import CrawlSpider, Rule

TEXTS = {"http://shop.example/1": "Bücher", "http://shop.example/2": ""}


class Marked(str):
    """A text with an attribute."""

    def __init__(self, text: str) -> None:
        self.origin = text


class Linked(CrawlSpider):
    """Follows every link."""

    name = "linked"
    rules = (Rule(LinkExtractor(), callback="parse_product"),)

    def parse_product(self, response: Any) -> None:
        """Do nothing."""


def followed(spider: Any) -> Iterator[Request]:
    """Yield the requests of a page's links, as a worker schedules them."""
    body = "".join(f"<a href='{url}'>{text}</a>" for url, text in TEXTS.items())
    page = HtmlResponse("http://shop.example/", body=body, encoding="utf-8", request=Request("http://shop.example/"))
    yield from spider._requests_to_follow(page)  # noqa: SLF001 - the name in all versions
