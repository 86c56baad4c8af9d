"""Crawls of other schedulers as records of a frontier: scrapy-redis, and Scrapy's own with `JOBDIR`."""
