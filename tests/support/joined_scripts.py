"""Joins the texts of all scripts when it is imported, so that forks of the importing process need not do it again."""

from scrapy_prioqueue.frontier.redis.scripts import joined_sources

joined_sources()
