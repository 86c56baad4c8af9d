"""`FrontierClient` for programs that aren't spiders: it pushes requests to a frontier and reads its state; it blocks.

``drafts`` builds requests from what callers pass, ``client`` stores them. Users import from this module.
"""

from __future__ import annotations

from scrapy_prioqueue.client.client import DeadRequest, FrontierClient, PendingRequest, Pushed
from scrapy_prioqueue.client.drafts import Draft, Item
from scrapy_prioqueue.frontier.redis.operators.operator import CrawlPlan
from scrapy_prioqueue.frontier.seen import NEVER_S, SeenPolicy

__all__ = [
    "NEVER_S",
    "CrawlPlan",
    "DeadRequest",
    "Draft",
    "FrontierClient",
    "Item",
    "PendingRequest",
    "Pushed",
    "SeenPolicy",
]
