"""For programs that are no spiders: `FrontierClient` pushes requests to a frontier and looks at it; it blocks.

``drafts`` makes requests of what callers give, ``client`` stores them; what callers may use is imported here.
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
