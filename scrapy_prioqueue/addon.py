"""One-line set-up: ``ADDONS = {"scrapy_prioqueue.Addon": 500}``."""

from __future__ import annotations

from typing import Any

from scrapy.settings import BaseSettings

MIDDLEWARES = "DOWNLOADER_MIDDLEWARES"
SCRAPY_RETRY = "scrapy.downloadermiddlewares.retry.RetryMiddleware"
RETRY = "scrapy_prioqueue.RetryMiddleware"
RETRY_HOME = "scrapy_prioqueue.middlewares.retry.RetryMiddleware"


class Addon:
    """Sets the scheduler, the dupefilter and the retry middleware, unless the project or the spider has set others.

    The retry middleware replaces Scrapy's, unless the project names that in `DOWNLOADER_MIDDLEWARES`.
    """

    def update_settings(self, settings: BaseSettings) -> None:
        """Called by Scrapy before the crawl."""
        settings.set("SCHEDULER", "scrapy_prioqueue.Scheduler", "addon")
        settings.set("DUPEFILTER_CLASS", "scrapy_prioqueue.DupeFilter", "addon")
        if not _is_named(settings.getdict(MIDDLEWARES), SCRAPY_RETRY, RETRY, RETRY_HOME):
            _swap_retries(settings)


def _swap_retries(settings: BaseSettings) -> None:
    place = settings.getdict(f"{MIDDLEWARES}_BASE").get(SCRAPY_RETRY)
    if place is not None:
        # Changing the dictionary in place keeps the project's own entries, whatever the priority of the setting.
        chosen = settings[MIDDLEWARES]
        chosen[SCRAPY_RETRY] = None
        chosen[RETRY] = place


def _is_named(components: dict[Any, Any], *paths: str) -> bool:
    names = {each if isinstance(each, str) else f"{each.__module__}.{each.__qualname__}" for each in components}
    return not names.isdisjoint(paths)
