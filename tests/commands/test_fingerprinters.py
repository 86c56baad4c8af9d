"""Commands compute the fingerprints of the crawl: with the project's add-ons, and what their fingerprinters need."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from hashlib import sha1
from pathlib import Path
from types import MethodType
from typing import Any

import pytest
from scrapy import Request, Spider
from scrapy.crawler import Crawler
from scrapy.settings import BaseSettings

from scrapy_prioqueue.frontier.redis.keys import Keys
from tests.commands.conftest import Run
from tests.commands.requests import page
from tests.contract.backends import RedisBackend, ack
from tests.support.servers import RedisServer

URL = "https://a.example/1"


class Books(Spider):
    name = "books"

    def __init__(self, shop: str = "none", **arguments: Any) -> None:
        super().__init__(**arguments)
        self.shop = shop

    def parse_book(self) -> None: ...


class Middleware:
    """Knows the spider before it is built."""

    def __init__(self, spider: Books) -> None:
        self.spider = spider

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Middleware:
        assert isinstance(crawler.spider, Books)
        return cls(crawler.spider)


class ByCallback:
    """Distinguishes requests by their callbacks, which it asks a downloader middleware about, as scrapy-poet does."""

    def __init__(self, crawler: Crawler) -> None:
        self._crawler = crawler

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> ByCallback:
        return cls(crawler)

    def fingerprint(self, request: Request) -> bytes:
        assert self._crawler.engine is not None
        middlewares = self._crawler.engine.downloader.middleware.middlewares
        (spider,) = (each.spider for each in middlewares if isinstance(each, Middleware))
        callback = request.callback or spider.parse_book
        assert isinstance(callback, MethodType)
        return fingerprint_of(request.url, callback.__name__, spider.shop)


class Addon:
    def update_settings(self, settings: BaseSettings) -> None:
        settings.set("REQUEST_FINGERPRINTER_CLASS", ByCallback, "addon")
        settings["DOWNLOADER_MIDDLEWARES"][Middleware] = 1


class BrokenAddon:
    def update_settings(self, settings: BaseSettings) -> None:
        raise ValueError("the add-on of a test fails")


def fingerprint_of(url: str, callback: str, shop: str = "none") -> bytes:
    return sha1(f"{url} {callback} {shop}".encode()).digest()


@pytest.fixture
def project() -> Mapping[str, Any]:
    """Settings of a project with one spider."""
    return {"SPIDER_MODULES": [__name__], "ADDONS": {Addon: 1}}


def test_what_the_add_on_sets_decides_what_was_seen(
    run: Run, backend: RedisBackend, project: Mapping[str, Any], redis_server: RedisServer, keys: Keys
) -> None:
    worker = backend.join("w1", clock=None)
    worker.commit(replace(page(URL, slot="a.example"), fingerprint=fingerprint_of(URL, "parse_book")))

    known = run("push", URL, "--callback", "parse_book", settings={**project})
    other = run("push", URL, "--callback", "start", settings={**project})
    shop = run("push", URL, "--callback", "parse_book", "-a", "shop=A", settings={**project})

    pushed = [ran.out.partition(", into ")[0] for ran in (known, other, shop)]
    assert pushed == ["0 pushed, 1 seen before", "1 pushed", "1 pushed"]


def test_push_checks_the_callbacks_of_lines(run: Run, project: Mapping[str, Any], tmp_path: Path) -> None:
    file = tmp_path / "requests.jl"
    file.write_text(json.dumps({"url": URL, "callback": "parse_bok"}))

    ran = run("push", "--file", str(file), settings={**project})

    assert (ran.code, "line 1: " in ran.err, "has no method 'parse_bok'" in ran.err) == (2, True, True)


def test_explain_and_forget_take_the_callback(run: Run, backend: RedisBackend, project: Mapping[str, Any]) -> None:
    worker = backend.join("w1", clock=None)
    worker.commit(replace(page(URL, slot="a.example"), fingerprint=fingerprint_of(URL, "start")))
    (lease,) = worker.lease(1)
    worker.commit(ack(lease))

    def explain(callback: str) -> bool:
        document = run("explain", URL, "--json", "--callback", callback, settings={**project}).json
        return bool(document["is_seen"])

    assert (explain("parse_book"), explain("start")) == (False, True)
    assert run("forget", URL, "--yes", "--callback", "start", settings={**project}).out == "1 forgotten\n"
    assert not explain("start")


def test_a_fingerprinter_that_needs_the_spider_asks_for_it(run: Run, backend: RedisBackend) -> None:
    backend.join("w1")

    ran = run("explain", URL, settings={"ADDONS": {Addon: 1}})

    assert ran.code == 2
    assert "REQUEST_FINGERPRINTER_CLASS" in ran.err
    assert "it needs the spider: give --spider" in ran.err


def test_an_add_on_that_fails_is_wrong_use(run: Run, backend: RedisBackend) -> None:
    backend.join("w1")

    ran = run("status", settings={"ADDONS": {BrokenAddon: 1}})

    assert (ran.code, ran.err.count("\n")) == (2, 1)
    assert "the add-on of a test fails" in ran.err
