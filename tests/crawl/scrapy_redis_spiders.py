"""The same spiders on scrapy-redis's own classes."""

from __future__ import annotations

from scrapy_redis.spiders import RedisCrawlSpider, RedisSpider

from tests.crawl.redis_spiders import Following, Single

PIPELINE = "scrapy_redis.pipelines.RedisPipeline"


class MyCrawler(Following, RedisCrawlSpider): ...  # type: ignore[misc]


class MySpider(Single, RedisSpider): ...  # type: ignore[misc]
