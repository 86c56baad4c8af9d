"""Joins the texts of all scripts on import, so that forks of the importing process need not do it."""

from scrapy_prioqueue.frontier.redis.scripts import joined_sources

joined_sources()
