"""Components for the workers of fault tests: spiders that die, block or have many start requests, and a middleware."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from time import monotonic
from typing import Any
from urllib.parse import urldefrag

from scrapy import Request, signals
from scrapy.crawler import Crawler
from scrapy.http import Response
from scrapy.spidermiddlewares.base import BaseSpiderMiddleware
from shop.items import Product
from shop.spiders.shop import ShopSpider
from shop_site.records import read_pages

TICK_S = 0.01
BALLAST_BYTES = 5000


class PoisonedShop(ShopSpider):
    """Ends its process, without a word, in the callback of the page that the setting `TESTS_POISON` names.

    `TESTS_POISON_SIGNAL` is the number of the signal that ends it: that of a segmentation fault, or the one which the
    system sends when memory runs out.
    """

    name = "poisoned"

    def parse_product(self, response: Any) -> Iterator[Request | Product]:
        if urldefrag(response.url).url == self.settings["TESTS_POISON"]:
            os.kill(os.getpid(), self.settings.getint("TESTS_POISON_SIGNAL", signal.SIGKILL))
        yield from super().parse_product(response)


class StallingShop(ShopSpider):
    """Blocks the loop for `TESTS_STALL_S` seconds in the callback of the page that `TESTS_STALL_AT` names."""

    name = "stalling"

    def parse_product(self, response: Any) -> Iterator[Request | Product]:
        if urldefrag(response.url).url == self.settings["TESTS_STALL_AT"]:
            self.logger.info("The stall begins")
            threading.Event().wait(self.settings.getfloat("TESTS_STALL_S"))
        yield from super().parse_product(response)


class SeededShop(ShopSpider):
    """Starts with every page on the site's list, which the setting `TESTS_PAGES` names."""

    name = "seeded"

    async def start(self) -> AsyncIterator[Any]:
        callbacks = {
            "index": self.parse,
            "category": self.parse_category,
            "offers": self.parse_offers,
            "sitemap": self.parse_sitemap,
            "info": self.parse_info,
        }
        for page in read_pages(Path(self.settings["TESTS_PAGES"])):
            yield Request(page.url, callback=callbacks.get(page.kind, self.parse_product))


class Ballast(BaseSpiderMiddleware):
    """Makes requests so large, even compressed, that they take more memory than the server's buffers."""

    def get_processed_request(self, request: Request, response: Response | None) -> Request:
        return request.replace(meta={**request.meta, "ballast": os.urandom(BALLAST_BYTES)})


class Ticks:
    """An extension that writes down when a timer of `TICK_S` fires, by the monotonic clock that all processes share.

    Args:
        path: of a file that is there when the spider is closed.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._times: list[float] = []

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Ticks:
        """Connect to the signals."""
        ticks = cls(Path(crawler.settings["TESTS_TICKS"]))
        crawler.signals.connect(ticks.tick, signals.spider_opened)
        crawler.signals.connect(ticks.spider_closed, signals.spider_closed)
        return ticks

    def tick(self) -> None:
        self._times.append(monotonic())
        asyncio.get_running_loop().call_later(TICK_S, self.tick)

    def spider_closed(self) -> None:
        self._path.write_text(json.dumps(self._times))
