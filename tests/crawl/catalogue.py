"""A spider that uses many features of Scrapy: callbacks, items, settings, and common additions of projects."""

from __future__ import annotations

import warnings
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any
from xmlrpc.client import loads

from itemloaders.processors import MapCompose, TakeFirst
from scrapy import Field, FormRequest, Item, Request, Spider
from scrapy.crawler import Crawler
from scrapy.http import JsonRequest, Response, TextResponse, XmlRpcRequest
from scrapy.loader import ItemLoader
from scrapy.settings import BaseSettings

from tests.crawl.spiders import download, path_of


class Product(Item):
    page = Field()
    title = Field()
    price = Field()
    stock = Field()
    review = Field()


class ProductLoader(ItemLoader):
    default_output_processor = TakeFirst()
    price_in = MapCompose(lambda text: float(text.strip("£")))


class Catalogue(Spider):
    """Sends a form, follows the links behind it, and completes each item with inline and further requests."""

    name = "catalogue"
    custom_settings = {"ADDONS": {"scrapy_prioqueue.Addon": 500, "tests.crawl.catalogue.CacheAddon": 600}}

    @classmethod
    def update_settings(cls, settings: BaseSettings) -> None:
        super().update_settings(settings)
        settings.set("SPIDER_MIDDLEWARES", {"tests.crawl.catalogue.DeltaFetch": 100}, "spider")

    def __init__(self, site: str, starts: object) -> None:
        super().__init__()
        self.site = site

    async def start(self) -> AsyncIterator[Any]:
        status = await download(self, Request(f"{self.site}status"))
        assert status.status == 200
        yield Request(f"{self.site}search")

    def parse(self, response: Response) -> Iterator[Any]:
        assert isinstance(response, TextResponse)
        with warnings.catch_warnings():
            # Scrapy 2.19 deprecates it.
            warnings.simplefilter("ignore")
            form = FormRequest.from_response(response, formdata={"q": "all"}, callback=self.parse_list)
        yield form

    def parse_list(self, response: Response) -> Iterator[Any]:
        assert isinstance(response, TextResponse)
        yield from response.follow_all(css="a.product", callback=self.parse_product)

    async def parse_product(self, response: Response) -> AsyncIterator[Any]:
        assert isinstance(response, TextResponse)
        loader = ProductLoader(Product(page=path_of(response)), response=response)
        loader.add_css("title", "h1::text")
        loader.nested_css("p.prices").add_css("price", "b::text")
        stock = await download(self, JsonRequest(response.urljoin(f"/stock{path_of(response)}"), data={"n": 1}))
        assert isinstance(stock, TextResponse)
        loader.add_value("stock", stock.json()["stock"])
        reviews = response.urljoin("/reviews")
        call: dict[str, Any] = {"methodname": "best", "params": (path_of(response),)}
        yield XmlRpcRequest(reviews, self.parse_review, cb_kwargs={"item": loader.load_item()}, **call)

    def parse_review(self, response: Response, item: Product) -> Iterator[Any]:
        assert isinstance(response, TextResponse)
        ((item["review"],), _) = loads(response.text)
        yield item


class CacheAddon:
    """Turns on Scrapy's cache of pages."""

    def update_settings(self, settings: BaseSettings) -> None:
        settings.set("HTTPCACHE_ENABLED", True, "addon")


class DeltaFetch:
    """Drops requests for pages that have led to items in an earlier crawl, as scrapy-deltafetch does."""

    def __init__(self, crawler: Crawler) -> None:
        self._folder = Path(crawler.settings["TESTS_FETCHED"])
        self._crawl: str = crawler.settings["PRIOQUEUE_CRAWL_ID"]

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> DeltaFetch:
        return cls(crawler)

    async def process_spider_output(
        self, response: Response, result: AsyncIterator[Any], spider: Spider | None = None
    ) -> AsyncIterator[Any]:
        async for found in result:
            if isinstance(found, Item):
                self._file(found["page"]).write_text(self._crawl)
            if not (isinstance(found, Request) and self._is_old(found)):
                yield found

    def _is_old(self, request: Request) -> bool:
        file = self._file("/" + request.url.split("/", 3)[3])
        return file.exists() and file.read_text() != self._crawl

    def _file(self, path: str) -> Path:
        return self._folder / path.replace("/", "-")
