"""Spiders and item pipelines with the interfaces of scrapy-redis; this module is what users import."""

from __future__ import annotations

from scrapy_prioqueue.compat.pipelines import RedisPipeline, RedisStreamPipeline
from scrapy_prioqueue.compat.spiders import RedisCrawlSpider, RedisMixin, RedisSpider

__all__ = ["RedisCrawlSpider", "RedisMixin", "RedisPipeline", "RedisSpider", "RedisStreamPipeline"]
