"""Settings of the project: what scrapy-prioqueue needs first, the rest is plain Scrapy."""

from __future__ import annotations

import os

# These two lines share the crawl between all workers.
SCHEDULER = "scrapy_prioqueue.Scheduler"
PRIOQUEUE_REDIS_URL = os.environ.get("PRIOQUEUE_REDIS_URL", "redis://127.0.0.1:6379/0")

# A worker that returns under the same id gets back at once what it was working on.
PRIOQUEUE_WORKER_ID = os.environ.get("PRIOQUEUE_WORKER_ID", f"worker-{os.getpid()}")

# What a worker that never returns was working on goes to the others after so many seconds.
PRIOQUEUE_LEASE_TTL = 15.0

# The coarse order, best first; these are the defaults, written down to be seen.
PRIOQUEUE_TIERS = ["urgent", "high", "normal", "low"]
PRIOQUEUE_DEFAULT_TIER = "normal"

# Tiers by rule, first match wins; a request that names its tier in its meta, as those for the offers do, needs none.
PRIOQUEUE_TIER_RULES = [
    {"tier": "low", "callback": "parse_sitemap"},
    {"tier": "low", "url": r"/info/"},
    {"tier": "high", "url": r"/product/"},
]

BOT_NAME = "shop"
SPIDER_MODULES = ["shop.spiders"]
ROBOTSTXT_OBEY = True
DOWNLOADER_MIDDLEWARES = {"shop.middlewares.SignRequests": 950}
ITEM_PIPELINES = {"shop.pipelines.DurableLines": 300}
TELNETCONSOLE_ENABLED = False
LOG_LEVEL = "INFO"

# Settings of this project alone: where the shop is, and where the items go.
SHOP_URL = os.environ.get("SHOP_URL", "http://127.0.0.1:8880/")
SHOP_ITEMS = os.environ.get("SHOP_ITEMS", "items")
