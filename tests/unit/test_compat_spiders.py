"""Attributes of the spiders in `scrapy_prioqueue.compat`, and the format of their entries."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from typing import Any

import pytest
from scrapy import FormRequest, Spider
from scrapy.crawler import Crawler
from scrapy.settings import Settings
from scrapy.spiders import SitemapSpider
from scrapy.utils.test import get_crawler

from scrapy_prioqueue.compat import RedisCrawlSpider, RedisMixin, RedisSpider
from scrapy_prioqueue.errors import SeedError
from scrapy_prioqueue.settings import Config
from tests.support.servers import RedisServer

FOREVER = float("inf")


class Plain(RedisSpider):
    name = "shop"


class Chosen(RedisCrawlSpider):
    name = "shop"
    redis_key = "{books}:%(name)s"
    redis_batch_size = 7
    max_idle_time = 9


class Computed(RedisSpider):
    name = "shop"

    def __init__(self, country: str, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.redis_key = f"start:{country}"


class Custom(RedisSpider):
    name = "shop"
    custom_settings = {"REDIS_START_URLS_KEY": "custom", "MAX_IDLE_TIME_BEFORE_CLOSE": 4}


class Sitemap(RedisMixin, SitemapSpider):
    name = "shop"
    redis_key = ["urgent", "late"]


def made(spider: type[Spider], settings: Mapping[str, Any] | None = None, **arguments: Any) -> tuple[Any, Config]:
    """Return a spider as Scrapy makes it, and the settings that its scheduler reads."""
    found = Settings()
    for name, value in (settings or {}).items():
        found.set(name, value, "project")
    crawler = Crawler(spider, found)
    crawler.spider = spider.from_crawler(crawler, **arguments)
    return crawler.spider, Config.from_settings(crawler.settings, "shop")


@pytest.mark.parametrize(
    ("spider", "settings", "arguments", "keys", "idle_s"),
    [
        (Plain, {}, {}, ("shop:start_urls",), FOREVER),
        (Plain, {"REDIS_START_URLS_KEY": "%(name)s:urls"}, {}, ("shop:urls",), FOREVER),
        (Plain, {"REDIS_START_URLS_KEY": "a", "PRIOQUEUE_SEEDS_KEY": "b"}, {}, ("b",), FOREVER),
        (Plain, {"PRIOQUEUE_SEEDS_KEY": "b"}, {"redis_key": "c"}, ("c",), FOREVER),
        (Plain, {"MAX_IDLE_TIME_BEFORE_CLOSE": "5"}, {}, ("shop:start_urls",), 5.0),
        (Plain, {"MAX_IDLE_TIME_BEFORE_CLOSE": 0}, {}, ("shop:start_urls",), FOREVER),
        (Plain, {"MAX_IDLE_TIME_BEFORE_CLOSE": 5, "PRIOQUEUE_MAX_IDLE": 1}, {}, ("shop:start_urls",), 1.0),
        (Plain, {"SCHEDULER_IDLE_BEFORE_CLOSE": 5}, {}, ("shop:start_urls",), FOREVER),
        (Plain, {"PRIOQUEUE_MAX_IDLE": 1}, {"max_idle_time": "0"}, ("shop:start_urls",), FOREVER),
        (Chosen, {"REDIS_START_URLS_KEY": "a"}, {}, ("{books}:shop",), 9.0),
        (Chosen, {}, {"max_idle_time": "3", "redis_key": "c"}, ("c",), 3.0),
        (Computed, {}, {"country": "fr"}, ("start:fr",), FOREVER),
        (Custom, {"REDIS_START_URLS_KEY": "a"}, {}, ("custom",), 4.0),
        (Sitemap, {}, {}, ("urgent", "late"), FOREVER),
    ],
)
def test_an_attribute_counts_more_than_a_setting(
    spider: type[Spider], settings: dict[str, Any], arguments: dict[str, Any], keys: tuple[str, ...], idle_s: float
) -> None:
    made_spider, config = made(spider, settings, **arguments)

    assert (config.seeds_keys, config.max_idle_s) == (keys, idle_s)
    assert config.fallback == "error"
    assert made_spider.redis_key == (keys[0] if len(keys) == 1 else list(keys))


def test_batches_are_as_large_as_an_attribute_or_a_setting_says() -> None:
    assert made(Plain)[1].seeds_batch_size == 100
    assert made(Plain, {"REDIS_START_URLS_BATCH_SIZE": 8})[1].seeds_batch_size == 8
    assert made(Chosen, {"REDIS_START_URLS_BATCH_SIZE": 8})[1].seeds_batch_size == 7
    assert made(Plain, redis_batch_size="5000")[1].seeds_batch_size == 1000


def test_a_spider_can_be_made_when_the_settings_are_frozen() -> None:
    spider = Chosen.from_crawler(get_crawler(Chosen))

    assert spider.redis_key == "{books}:shop"


@pytest.mark.parametrize(
    ("entry", "url", "method", "body"),
    [
        ("http://a/1", "http://a/1", "GET", ""),
        (" http://a/ü\n", "http://a/%C3%BC", "GET", ""),
        ({"url": "http://a/1"}, "http://a/1", "GET", ""),
        ({"url": "http://a/1", "meta": None, "method": None}, "http://a/1", "GET", ""),
        ({"url": "http://a/1", "q": "x y"}, "http://a/1?q=x+y", "GET", ""),
        ({"url": "http://a/1", "method": "post", "q": ["1", "2"]}, "http://a/1", "POST", "q=1&q=2"),
    ],
)
@pytest.mark.parametrize("encoding", ["utf-8", "latin-1"])
def test_an_entry_is_what_it_is_for_scrapy_redis(entry: Any, url: str, method: str, body: str, encoding: str) -> None:
    text = entry if isinstance(entry, str) else json.dumps(entry)

    request = made(Plain, {"REDIS_ENCODING": encoding})[0].make_request_from_seed(text.encode(encoding))

    assert isinstance(request, FormRequest)
    assert (request.url, request.method, request.body.decode(), request.dont_filter) == (url, method, body, True)


@pytest.mark.parametrize(
    ("entry", "why"),
    [
        (b"7", "must begin with http:// or https://"),
        (b'["http://a"]', "must begin with http:// or https://"),
        (b"file:///etc/passwd", "must begin with http:// or https://"),
        (b'{"url": "http://a', "begins like a JSON object"),
        (b"{}", "url must be a string, not None"),
        (b'{"url": "http://a", "meta": 7}', "can't be made into a request"),
        (b'{"url": "http://a", "meta": {"prioqueue_inherited_tier": 1}}', "prioqueue_inherited_tier"),
        (b'{"url": "http://a", "method": 7}', "can't be made into a request"),
        (b'{"url": "http://a", "page": 7}', "can't be made into a request"),
        (b"http://a/\xff", "can't decode"),
    ],
)
def test_an_entry_that_is_no_request_says_why(entry: bytes, why: str) -> None:
    with pytest.raises((SeedError, UnicodeDecodeError), match=why):
        made(Plain)[0].make_request_from_seed(entry)


def test_methods_overridden_without_effect_are_named(caplog: pytest.LogCaptureFixture) -> None:
    class Overriding(RedisSpider):
        name = "shop"

        def next_requests(self) -> Any:
            return ()

    with caplog.at_level(logging.WARNING):
        made(Overriding)
        made(Plain)

    (record,) = caplog.records
    assert record.getMessage().startswith("next_requests() of spider shop is never called")


def test_a_spider_has_a_client_of_the_server(redis_server: RedisServer, frontier_name: str) -> None:
    spider, _ = made(Plain, {"REDIS_URL": redis_server.url})

    spider.server.rpush(frontier_name, "a")

    assert spider.server.lpop(frontier_name) == b"a"
