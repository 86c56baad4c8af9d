"""Fingerprinters of the project in a command: some need parts of a crawl, such as the spider and its middlewares."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from scrapy import Request, Spider
from scrapy.core.downloader.middleware import DownloaderMiddlewareManager
from scrapy.crawler import Crawler
from scrapy.statscollectors import MemoryStatsCollector
from scrapy.utils.request import RequestFingerprinterProtocol

from scrapy_prioqueue.codec.detached import NamedCallback


def works_alone(fingerprinter: RequestFingerprinterProtocol) -> bool:
    """Return whether a fingerprinter needs no part of a crawl."""
    try:
        return bool(fingerprinter.fingerprint(Request("https://shop.example/")))
    except Exception:  # it may be the user's
        return False


def equip(
    crawler: Crawler, fingerprinter: RequestFingerprinterProtocol, arguments: Mapping[str, str]
) -> RequestFingerprinterProtocol:
    """Give a crawler the spider and the downloader middlewares, from which scrapy-poet learns what callbacks need.

    Returns:
        The fingerprinter, for requests whose callbacks are names, too.

    Raises:
        ValueError: there is no spider.
        Exception: any, from classes of the project.
    """
    if crawler.spidercls is Spider:
        raise ValueError("it needs the spider: give --spider")
    crawler.stats = MemoryStatsCollector(crawler)
    crawler.spider = crawler.spidercls.from_crawler(crawler, **arguments)
    parts: Any = SimpleNamespace(downloader=SimpleNamespace(middleware=None))
    crawler.engine = parts
    parts.downloader.middleware = DownloaderMiddlewareManager.from_crawler(crawler)
    return _WithMethods(fingerprinter, crawler.spider)


class _WithMethods(RequestFingerprinterProtocol):
    """Computes the fingerprints of requests with the methods that their callbacks name."""

    def __init__(self, fingerprinter: RequestFingerprinterProtocol, spider: Spider) -> None:
        self._fingerprinter = fingerprinter
        self._spider = spider

    def fingerprint(self, request: Request) -> bytes:
        if isinstance(request.callback, NamedCallback):
            request = request.replace(callback=getattr(self._spider, request.callback.__name__, None))
        return self._fingerprinter.fingerprint(request)
