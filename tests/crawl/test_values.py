"""Common values in requests are shared by workers and survive kills."""

from __future__ import annotations

import enum
import re
import threading
from collections import OrderedDict, defaultdict
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any
from urllib.parse import urlsplit

from scrapy import Field, Item, Request
from scrapy.http import Response
from scrapy.linkextractors import LinkExtractor
from scrapy.spiders import CrawlSpider, Rule

from tests.crawl.spiders import path_of
from tests.support.crawls import WITHIN_S, Crawls
from tests.support.site import Page, Site
from tests.support.waiting import wait_until

BOOKS = 8


class Author(Item):
    name = Field()
    books = Field()


@dataclass
class Book:
    url: str
    tags: list[Any] = field(default_factory=list)


class Kind(enum.Enum):
    NOVEL = "novel"


class Rendered(Request):
    """Keeps an attribute to itself, as requests of scrapy-selenium do."""

    def __init__(self, *args: Any, wait_time: int | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.wait_time = wait_time


class Shop(CrawlSpider):
    """Follows links by its rule, and takes everything along to the details of each book."""

    name = "shop"
    rules = (Rule(LinkExtractor(allow="/book/"), callback="parse_book", follow=True),)

    def __init__(self, site: str, starts: Sequence[str]) -> None:
        super().__init__()
        self.site = site
        self.starts = starts

    async def start(self) -> AsyncIterator[Any]:
        for path in self.starts:
            yield Request(self.site.rstrip("/") + path)

    def parse_book(self, response: Response) -> Iterator[Any]:
        yield {"page": path_of(response), "text": response.meta["link_text"]}
        url = response.url.replace("book", "detail")
        meta = {**self.put(url), "handle_httpstatus_list": range(400, 500)}
        kept = {"meta": meta, "cb_kwargs": {"book": Book(url)}}
        yield Rendered(url, self.parse_detail, wait_time=3, errback=self.on_error, **kept)

    def put(self, url: str) -> dict[str, Any]:
        """Return what the details are to have in their meta."""
        return {
            "author": Author(name="A", books=[Book(url), Author(name="B")]),
            "kinds": {Kind.NOVEL: [HTTPStatus.OK]},
            "by_year": defaultdict(list, {1999: [1]}),
            "order": OrderedDict(a=1),
            "url": urlsplit(url),
            "price": re.compile(r"\d+"),
            "actions": [self.login],
        }

    def parse_detail(self, response: Response, book: Book) -> Iterator[Any]:
        put = self.put(response.url)
        kept = {name: response.meta[name] for name in put}
        request = response.request
        assert isinstance(request, Rendered)
        is_same = kept == put and book == Book(response.url) and request.wait_time == 3
        yield {"page": path_of(response), "is_same": is_same}

    def login(self, response: Response) -> None: ...

    @staticmethod
    def on_error(failure: Any) -> None: ...


def test_a_crawl_spider_shares_all_that_it_finds_and_is_resumed_after_kills(on_redis: Crawls, site: Site) -> None:
    gate = threading.Event()
    links = "".join(f'<a href="/book/{number}">Book {number}</a>' for number in range(BOOKS))
    html = {"Content-Type": "text/html"}
    books = [f"/book/{number}" for number in range(BOOKS)]
    details = [f"/detail/{number}" for number in range(BOOKS)]
    site.pages = {
        "/": Page(body=links.encode(), headers=html),
        **dict.fromkeys(books, Page(body=b"<p>", headers=html)),
        **dict.fromkeys(details, Page(status=404, gate=gate)),
    }
    worker = on_redis.having(PRIOQUEUE_LEASE_TTL=2, CONCURRENT_REQUESTS=2)

    first = worker.start(spider=Shop)
    wait_until(lambda: len(set(first.pages) & set(details)) == 2, what="it is at two details", within=WITHIN_S)
    second = worker.start(spider=Shop)
    wait_until(lambda: set(second.pages) & set(details), what="another has details", within=WITHIN_S)
    killed = [first, second]
    for crawl in killed:
        crawl.kill()
    gate.set()
    third = worker.run(spider=Shop)

    items = {item["page"]: item for crawl in killed for item in crawl.events("item")}
    items |= {item["page"]: item for item in third.items}
    assert third.lines("Resumed crawl in frontier")
    assert items.keys() == {*books, *details}
    assert {items[page]["text"] for page in books} == {f"Book {number}" for number in range(BOOKS)}
    assert all(items[page]["is_same"] for page in details)
    assert not third.stats_under("scheduler/unserializable")
    assert not [line for crawl in killed for line in crawl.process.log.splitlines() if "Unable to serialize" in line]
