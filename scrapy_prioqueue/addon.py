"""One-line set-up: ``ADDONS = {"scrapy_prioqueue.Addon": 500}``."""

from __future__ import annotations

from scrapy.settings import BaseSettings


class Addon:
    """Sets the scheduler and the dupefilter, unless the project or the spider has chosen others."""

    def update_settings(self, settings: BaseSettings) -> None:
        """Called by Scrapy before the crawl."""
        settings.set("SCHEDULER", "scrapy_prioqueue.Scheduler", "addon")
        settings.set("DUPEFILTER_CLASS", "scrapy_prioqueue.DupeFilter", "addon")
