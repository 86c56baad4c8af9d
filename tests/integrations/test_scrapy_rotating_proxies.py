"""scrapy-rotating-proxies: requests go through proxies, and again through another one if one is dead."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

from tests.integrations.bookshop import Bookshop, crawl_with_a_kill
from tests.integrations.deployed.books.spiders.books import Books
from tests.support.crawls import Crawls

SETTINGS: dict[str, Any] = {
    "DOWNLOADER_MIDDLEWARES": {
        "rotating_proxies.middlewares.RotatingProxyMiddleware": 610,
        "rotating_proxies.middlewares.BanDetectionMiddleware": 620,
    },
}


def test_requests_through_proxies_survive_a_kill(on_redis: Crawls, shop: Bookshop, closed_port: int) -> None:
    """The shop's server is the proxy that works: it is asked for whole URLs."""
    for path in list(shop.site.pages):
        shop.site.pages[shop.site.url(path)] = lambda visit: shop.page(urlsplit(visit.path).path)
    proxies = [shop.site.url(""), f"http://127.0.0.1:{closed_port}"]

    result = crawl_with_a_kill(on_redis, shop, Books, **SETTINGS, ROTATING_PROXY_LIST=proxies)

    assert result.stats["proxies/good"] == 1
    assert not result.stats_under("prioqueue/unserializable")
