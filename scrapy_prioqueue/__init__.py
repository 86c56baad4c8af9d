"""A Scrapy scheduler and dupefilter that share one crawl between many workers; users import from this module."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from scrapy_prioqueue.addon import Addon
    from scrapy_prioqueue.client import FrontierClient
    from scrapy_prioqueue.dupefilter import DupeFilter
    from scrapy_prioqueue.middlewares.escalate import escalate
    from scrapy_prioqueue.middlewares.lineage import LineagePipeline
    from scrapy_prioqueue.middlewares.requeue import requeue
    from scrapy_prioqueue.middlewares.retry import RetryMiddleware, get_retry_request
    from scrapy_prioqueue.scheduler import Scheduler
    from scrapy_prioqueue.seeds.mixin import SeedsMixin

__all__ = [
    "Addon",
    "DupeFilter",
    "FrontierClient",
    "LineagePipeline",
    "RetryMiddleware",
    "Scheduler",
    "SeedsMixin",
    "escalate",
    "get_retry_request",
    "requeue",
]
__version__ = "0.1.0"

_HOMES = {
    "Addon": "addon",
    "DupeFilter": "dupefilter",
    "FrontierClient": "client",
    "LineagePipeline": "middlewares.lineage",
    "RetryMiddleware": "middlewares.retry",
    "Scheduler": "scheduler",
    "SeedsMixin": "seeds.mixin",
    "escalate": "middlewares.escalate",
    "get_retry_request": "middlewares.retry",
    "requeue": "middlewares.requeue",
}


def __getattr__(name: str) -> Any:
    # Scrapy components import the reactor, so they are loaded on first use, after Scrapy has installed a reactor.
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
