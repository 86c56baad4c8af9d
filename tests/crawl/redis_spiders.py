"""The spiders of scrapy-redis's example project, on the classes of `scrapy_prioqueue.compat`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from scrapy import Spider
from scrapy.http import Response
from scrapy.linkextractors import LinkExtractor
from scrapy.spiders import Rule

from scrapy_prioqueue.compat import RedisCrawlSpider, RedisSpider
from tests.crawl.spiders import path_of

PIPELINE = "scrapy_prioqueue.compat.RedisPipeline"


class Domains(Spider):
    """Has its domains from an argument."""

    def __init__(self, domain: str = "", **arguments: Any) -> None:
        self.allowed_domains = list(filter(None, domain.split(",")))
        super().__init__(**arguments)


class Following(Domains):
    """Follows all links."""

    name = "mycrawler_redis"
    rules: Sequence[Rule] = (Rule(LinkExtractor(), callback="parse_page", follow=True),)

    def parse_page(self, response: Response) -> dict[str, Any]:
        """Return an item of the page."""
        return {"page": path_of(response)}


class Single(Domains):
    """Follows nothing."""

    name = "myspider_redis"

    def parse(self, response: Response) -> Iterator[Any]:
        """Yield an item of the page and what came with its request."""
        assert response.request is not None
        body = response.request.body.decode()
        yield {"page": path_of(response), "method": response.request.method, "body": body, **response.meta["told"]}


class MyCrawler(Following, RedisCrawlSpider): ...


class MySpider(Single, RedisSpider): ...


class Page(RedisSpider):
    """Makes an item of each page."""

    name = "page_redis"

    def parse(self, response: Response) -> Iterator[Any]:
        """Yield it."""
        yield {"page": path_of(response)}
