"""scrapy-splash: requests go through Splash, for which a server of the test stands in."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

from scrapy import Request
from scrapy.http import Response
from scrapy_splash import SplashRequest, SplashTextResponse

from tests.integrations.bookshop import Bookshop, crawl_with_a_kill, documented_settings
from tests.integrations.deployed.books.spiders.books import Books
from tests.support.crawls import Crawls
from tests.support.site import Page, Visit

SETTINGS = documented_settings("scrapy-splash")


class BySplash(Books):
    """Has each book rendered in one of the ways that there are."""

    name = "by-splash"

    def parse_list(self, response: Response) -> Iterator[Request]:
        for number, url in enumerate(map(response.urljoin, response.css("a.next::attr(href)").getall())):
            if number % 2:
                yield SplashRequest(url, self.parse_book, args={"wait": 0.5, "lua_source": "…"}, priority=number)
            else:
                yield Request(url, self.parse_book, meta={"splash": {"endpoint": "render.html", "args": {"wait": 1}}})

    def parse_book(self, response: Response) -> Any:
        assert isinstance(response, SplashTextResponse)
        return super().parse_book(response)


def test_rendered_pages_survive_a_kill(on_redis: Crawls, shop: Bookshop) -> None:
    def render(visit: Visit) -> Page:
        """Answer as Splash does."""
        return shop.page(urlsplit(json.loads(visit.body)["url"]).path)

    shop.site.pages["/render.html"] = render

    result = crawl_with_a_kill(on_redis, shop, BySplash, **SETTINGS, SPLASH_URL=shop.site.url("/"))

    assert not [visit.path for visit in shop.site.visits if visit.path.startswith("/book/")]
    assert not result.stats_under("prioqueue/unserializable")
