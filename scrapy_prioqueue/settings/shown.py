"""The settings that explain the figures of a run; none that may contain a secret."""

from __future__ import annotations

from collections.abc import Mapping

from scrapy.settings import BaseSettings

from scrapy_prioqueue.printable import in_a_line
from scrapy_prioqueue.settings.table import SETTINGS

_ALWAYS = ("CONCURRENT_REQUESTS", "CONCURRENT_REQUESTS_PER_DOMAIN", "DOWNLOAD_DELAY")

_IF_CHANGED = (
    *("AUTOTHROTTLE_ENABLED", "CLOSESPIDER_ITEMCOUNT", "CLOSESPIDER_PAGECOUNT", "CLOSESPIDER_TIMEOUT"),
    *("COOKIES_ENABLED", "DEPTH_LIMIT", "DOWNLOAD_TIMEOUT", "HTTPCACHE_ENABLED", "LOG_LEVEL", "RETRY_ENABLED"),
    *("RETRY_TIMES", "ROBOTSTXT_OBEY", "REDIRECT_MAX_TIMES"),
)

_COLLECTIONS = ("PRIOQUEUE_BUDGETS", "PRIOQUEUE_SLOTS", "PRIOQUEUE_TIERS", "PRIOQUEUE_TIER_WEIGHTS")
"""Settings of this package that are shown although their values are collections."""

_NEVER = ("URL", "TOKEN", "KEY", "NAME", "CRAWL_ID", "WORKER_ID")
"""Ends of names of settings that may have secrets, or that a run's record has anyway."""

_LONGEST = 200


def shown_settings(settings: BaseSettings) -> Mapping[str, str]:
    """Return the settings that explain the figures of a run, with their values as text."""
    changed = [name for name in _IF_CHANGED if settings.getpriority(name)]
    ours = [name for name in SETTINGS if _is_shown(settings, name)]
    return {name: _text(settings.get(name)) for name in (*_ALWAYS, *changed, *ours)}


def _is_shown(settings: BaseSettings, name: str) -> bool:
    value = settings.get(name)
    is_plain = isinstance(value, (str, int, float)) or name in _COLLECTIONS
    return value is not None and is_plain and not name.endswith(_NEVER) and value != SETTINGS[name].default


def _text(value: object) -> str:
    text = in_a_line(value)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"
