"""The spider: which page leads to which, and what may not wait."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any
from urllib.parse import urljoin

from scrapy import Request, Spider

from shop.items import Product
from shop.tiers import tier_in

URGENT = {"prioqueue_tier": "urgent"}
SITEMAP = {"s": "http://www.sitemaps.org/schemas/sitemap/0.9"}


class ShopSpider(Spider):
    """Collects every product of the shop, changed prices first.

    ======  ==========================================  ==============================
    tier    pages                                       given by
    ======  ==========================================  ==============================
    urgent  the offers, and the products they list      `meta` in this file
    high    all other products                          a rule on the URL, in settings
    normal  the index and the categories                the default tier
    low     the sitemaps, and the pages only in them    rules on callback and URL
    ======  ==========================================  ==============================
    """

    name = "shop"

    async def start(self) -> AsyncIterator[Any]:
        shop = self.settings["SHOP_URL"]
        yield Request(shop, callback=self.parse)
        yield Request(urljoin(shop, "/sitemap.xml"), callback=self.parse_sitemap)
        yield Request(urljoin(shop, "/offers"), callback=self.parse_offers, meta=URGENT)

    def parse(self, response: Any) -> Iterator[Request]:
        yield from response.follow_all(css=".categories a", callback=self.parse_category)

    def parse_offers(self, response: Any) -> Iterator[Request]:
        yield from response.follow_all(css=".products a", callback=self.parse_product, meta=URGENT)
        yield from response.follow_all(css=".pager a", callback=self.parse_offers, meta=URGENT)

    def parse_category(self, response: Any) -> Iterator[Request]:
        yield from response.follow_all(css=".products a", callback=self.parse_product)
        yield from response.follow_all(css=".pager a", callback=self.parse_category)

    def parse_product(self, response: Any) -> Iterator[Request | Product]:
        yield Product(
            url=response.url,
            name=response.css("h1::text").get(default=""),
            price=response.css(".price::text").get(default=""),
            tier=tier_in(response.meta),
            worker=self.settings["PRIOQUEUE_WORKER_ID"],
        )
        yield from response.follow_all(css=".related a", callback=self.parse_product)
        yield from response.follow_all(css=".category a", callback=self.parse_category)

    def parse_sitemap(self, response: Any) -> Iterator[Request]:
        for url in response.xpath("//s:sitemap/s:loc/text()", namespaces=SITEMAP).getall():
            yield Request(url, callback=self.parse_sitemap)
        for url in response.xpath("//s:url/s:loc/text()", namespaces=SITEMAP).getall():
            yield Request(url, callback=self.parse_product if "/product/" in url else self.parse_info)

    def parse_info(self, response: Any) -> None:
        """Nothing to take from these pages; the site still wants to see them fetched."""
