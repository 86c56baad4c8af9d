"""scrapy-zyte-api: requests go through Zyte API, for which a server of the test stands in."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

from scrapy import Request
from scrapy.http import Response
from scrapy_zyte_api.responses import ZyteAPITextResponse

from tests.integrations.bookshop import Bookshop, crawl_with_a_kill, documented_settings
from tests.integrations.deployed.books.spiders.books import Books
from tests.support.crawls import Crawls
from tests.support.site import Page, Visit

SETTINGS = documented_settings("scrapy-zyte-api") | {"ZYTE_API_KEY": "a key of a test"}


class ByZyte(Books):
    """Has each book fetched in one of the ways that there are."""

    name = "by-zyte"

    def parse(self, response: Response) -> Iterator[Request]:
        assert isinstance(response, ZyteAPITextResponse)
        return super().parse(response)

    def parse_list(self, response: Response) -> Iterator[Request]:
        actions = [{"action": "waitForSelector", "selector": {"type": "css", "value": "p"}}]
        metas: list[dict[str, Any]] = [
            {},
            {"zyte_api_automap": {"browserHtml": True, "actions": actions}},
            {"zyte_api": {"browserHtml": True, "geolocation": "DE"}},
        ]
        for number, path in enumerate(response.css("a.next::attr(href)").getall()):
            yield response.follow(path, self.parse_book, meta=metas[number % 3])


def test_requests_through_zyte_api_survive_a_kill(on_redis: Crawls, shop: Bookshop) -> None:
    def extract(visit: Visit) -> Page:
        """Answer as Zyte API does."""
        order = json.loads(visit.body)
        path = urlsplit(order["url"]).path or "/"
        answer: dict[str, Any] = {"url": order["url"], "statusCode": 200}
        if "browserHtml" in order:
            answer["browserHtml"] = shop.html(path).decode()
        if "httpResponseBody" in order:
            answer["httpResponseBody"] = b64encode(shop.html(path)).decode()
            answer["httpResponseHeaders"] = [{"name": "Content-Type", "value": "text/html"}]
        return shop.page(path, json.dumps(answer).encode(), **{"Content-Type": "application/json"})

    shop.site.pages["/v1/extract"] = extract

    result = crawl_with_a_kill(on_redis, shop, ByZyte, **SETTINGS, ZYTE_API_URL=shop.site.url("/v1/"))

    assert {visit.path for visit in shop.site.visits} == {"/v1/extract"}
    assert result.stats["scrapy-zyte-api/request_args/browserHtml"] > 0
    assert not result.stats_under("prioqueue/unserializable")
