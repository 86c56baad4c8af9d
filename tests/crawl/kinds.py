"""Spiders of the kinds that come with Scrapy, each with its own pages, and those of Scrapy's tutorial."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from typing import Any

from scrapy import Request, Spider
from scrapy.http import Response, TextResponse
from scrapy.linkextractors import LinkExtractor
from scrapy.settings import BaseSettings
from scrapy.spiders import CrawlSpider, CSVFeedSpider, Rule, SitemapSpider, XMLFeedSpider

from tests.crawl.spiders import path_of


class Sitemap(SitemapSpider):
    """Reads the site's robots.txt, an index, and the sitemaps in it, one of them compressed."""

    name = "sitemap"
    sitemap_rules = [("/product/", "parse_product"), ("/shop/", "parse_shop")]
    sitemap_follow = ["/maps/"]

    def __init__(self, site: str, starts: object) -> None:
        self.sitemap_urls = [f"{site}robots.txt"]
        self.site = site
        super().__init__()

    async def start(self) -> AsyncIterator[Any]:
        async for request in super().start():
            yield request
        yield Request(f"{self.site}shop/by-hand", self.parse_shop)

    def sitemap_filter(self, entries: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        return (entry for entry in entries if entry.get("lastmod") != "1999-01-01")

    def parse_product(self, response: Response) -> Iterator[Any]:
        yield {"page": path_of(response), "kind": "product"}

    def parse_shop(self, response: Response) -> Iterator[Any]:
        yield {"page": path_of(response), "kind": "shop"}


class Feed(XMLFeedSpider):
    """Reads entries of an XML feed, and fetches what each is about."""

    name = "feed"
    iterator = "xml"
    namespaces = [("n", "http://shop.example/news")]
    itertag = "n:entry"

    def __init__(self, site: str, starts: object) -> None:
        self.start_urls = [f"{site}feed.xml"]
        super().__init__()

    def parse_node(self, response: Response, selector: Any) -> Iterator[Any]:
        title = selector.xpath("n:title/text()").get()
        yield response.follow(selector.xpath("n:link/text()").get(), self.parse_entry, cb_kwargs={"title": title})

    def parse_entry(self, response: Response, title: str) -> Iterator[Any]:
        yield {"page": path_of(response), "title": title}


class Table(CSVFeedSpider):
    """Reads rows of a CSV file, and fetches the page of each."""

    name = "table"
    delimiter = ";"

    def __init__(self, site: str, starts: object) -> None:
        self.start_urls = [f"{site}table.csv"]
        super().__init__()

    def parse_row(self, response: Response, row: dict[str, str]) -> Iterator[Any]:
        yield response.follow(row["url"], self.parse_page, meta={"row": row})

    def parse_page(self, response: Response) -> Iterator[Any]:
        yield {"page": path_of(response), "price": response.meta["row"]["price"]}


class Crawl(CrawlSpider):
    """Follows rules that change links and requests."""

    name = "crawl"

    def __init__(self, site: str, starts: object) -> None:
        self.start_urls = [f"{site}crawl/"]
        self.rules = (
            Rule(LinkExtractor(allow="/crawl/list"), process_links="without_query"),
            Rule(LinkExtractor(allow="/crawl/book"), callback="parse_book", process_request="with_note"),
        )
        super().__init__()

    def without_query(self, links: Sequence[Any]) -> Sequence[Any]:
        for link in links:
            link.url = link.url.partition("?")[0]
        return links

    def with_note(self, request: Request, response: Response) -> Request:
        request.meta["found_on"] = path_of(response)
        return request

    def parse_book(self, response: Response) -> Iterator[Any]:
        yield {"page": path_of(response), "found_on": response.meta["found_on"]}


class Author(Spider):
    """The second spider of Scrapy's tutorial."""

    name = "author"

    def __init__(self, site: str, starts: object) -> None:
        self.start_urls = [f"{site}quotes/1"]
        super().__init__()

    def parse(self, response: Response) -> Iterator[Any]:
        assert isinstance(response, TextResponse)
        yield from response.follow_all(response.css(".author + a"), self.parse_author)
        yield from response.follow_all(response.css("li.next a"), self.parse)

    def parse_author(self, response: Response) -> Iterator[Any]:
        def extract_with_css(query: str) -> str:
            return str(response.css(query).get(default="")).strip()

        yield {"page": path_of(response), "name": extract_with_css("h3.author-title::text")}


class Quotes(Spider):
    """The last one of the tutorial, with the method of older and of newer versions of Scrapy."""

    name = "quotes"

    def __init__(self, site: str, starts: object, tag: str | None = None) -> None:
        self.site, self.tag = site, tag
        super().__init__()

    async def start(self) -> AsyncIterator[Any]:
        for request in self.start_requests():
            yield request

    def start_requests(self) -> Iterator[Request]:
        url = f"{self.site}tag/" + (self.tag or "humor")
        yield Request(url, self.parse)

    def parse(self, response: Response) -> Iterator[Any]:
        for quote in response.css("div.quote"):
            yield {"page": path_of(response), "text": quote.css("span.text::text").get()}
        next_page = response.css('li.next a::attr("href")').get()
        if next_page is not None:
            yield response.follow(next_page, self.parse)


class Alone(Spider):
    """Has no server, so each of its processes crawls everything by itself."""

    name = "alone"
    custom_settings = {"PRIOQUEUE_FALLBACK": "memory"}

    @classmethod
    def update_settings(cls, settings: BaseSettings) -> None:
        super().update_settings(settings)
        settings.set("PRIOQUEUE_REDIS_URL", "redis://127.0.0.1:1/0", "spider")

    def __init__(self, site: str, starts: object) -> None:
        self.start_urls = [f"{site}alone/1"]
        super().__init__()

    def parse(self, response: Response) -> Iterator[Any]:
        yield {"page": path_of(response)}
        if response.url.endswith("1"):
            yield response.follow("2")


KINDS = (Sitemap, Feed, Table, Crawl, Author, Quotes, Alone)
