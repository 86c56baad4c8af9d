"""Every PRIOQUEUE_* setting, read and checked all at once; the only reader of `crawler.settings`."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from secrets import token_hex
from typing import Any, Literal

from scrapy.settings import BaseSettings

from scrapy_prioqueue.errors import SettingError
from scrapy_prioqueue.frontier.policy import Policy
from scrapy_prioqueue.frontier.seen import LEAST_IN_BLOOM, SeenPolicy
from scrapy_prioqueue.settings.policies import LAYER_META, THROTTLE_KEYS, Layer, policy_of, throttle_of
from scrapy_prioqueue.settings.readers import Backoff, TierRule, frontier_name, optional, redis_url
from scrapy_prioqueue.settings.scrapys import Order, orders_start_requests, queue_order, without_effect
from scrapy_prioqueue.settings.table import DEFAULT_REDIS_URL, SEEDS_KEY, SETTINGS

__all__ = [
    "DEFAULT_REDIS_URL",
    "LAYER_META",
    "SEEDS_KEY",
    "SETTINGS",
    "Backoff",
    "Config",
    "Layer",
    "TierRule",
    "backoff_of",
    "lineage_fields",
]


@dataclass(frozen=True, slots=True)
class Config:
    """The settings of one crawl, read and checked; fields are named after the settings."""

    redis_url: str
    redis_options: Mapping[str, Any]
    redis_timeout_s: float
    fallback: Literal["memory", "error"]
    on_outage: Literal["continue", "pause"]
    name: str
    crawl_id: str | None
    crawl_commands: Sequence[str]
    worker_id: str
    tiers: Sequence[str]
    default_tier: str
    tier_rules: Sequence[TierRule]
    order: Order
    lease_ttl_s: float
    max_attempts: int
    dead_letter_on: Sequence[str]
    dead_letter_limit: int
    retry_backoff: Backoff
    requeue_limit: int
    on_finish: Literal["restart", "keep"]
    seen_name: str | None
    flush_on_start: bool
    starts: Literal["once", "each"]
    holds_until_start: bool
    cookiejars: Literal["local", "shared"]
    max_idle_s: float
    seeds_keys: Sequence[str]
    close_timeout_s: float
    outbox_limit: int
    journal_s: float
    journal_limit: int
    wait_replicas: int
    seen_cache: int
    seen: SeenPolicy
    policy: Policy
    obey_retry_after: bool
    layers: Sequence[Layer]
    orders_start_requests: bool
    without_effect: Sequence[str]
    depth_priority: int
    concurrent_requests: int
    concurrent_requests_per_domain: int

    @classmethod
    def from_settings(cls, settings: BaseSettings, spider_name: str) -> Config:
        """Read all settings.

        Raises:
            SettingError: one has a value that can't be used, or is unknown.
        """
        _refuse_unknown(settings)
        values = {name: _read(settings, name) for name in SETTINGS}
        _check_tiers(values)
        order = values["PRIOQUEUE_ORDER"] or queue_order(settings)
        return cls(
            redis_url=values["PRIOQUEUE_REDIS_URL"] or _scrapy_redis_url(settings) or DEFAULT_REDIS_URL,
            redis_options=values["PRIOQUEUE_REDIS_OPTIONS"],
            redis_timeout_s=values["PRIOQUEUE_REDIS_TIMEOUT"],
            fallback=values["PRIOQUEUE_FALLBACK"],
            on_outage=values["PRIOQUEUE_ON_OUTAGE"],
            name=_name(values["PRIOQUEUE_NAME"], spider_name),
            crawl_id=values["PRIOQUEUE_CRAWL_ID"],
            crawl_commands=values["PRIOQUEUE_CRAWL_COMMANDS"],
            worker_id=values["PRIOQUEUE_WORKER_ID"] or f"{socket.gethostname()}:{os.getpid()}:{token_hex(3)}",
            tiers=values["PRIOQUEUE_TIERS"],
            default_tier=values["PRIOQUEUE_DEFAULT_TIER"],
            tier_rules=values["PRIOQUEUE_TIER_RULES"],
            order=order,
            lease_ttl_s=values["PRIOQUEUE_LEASE_TTL"],
            max_attempts=values["PRIOQUEUE_MAX_ATTEMPTS"],
            dead_letter_on=values["PRIOQUEUE_DEAD_LETTER_ON"],
            dead_letter_limit=values["PRIOQUEUE_DEAD_LETTER_LIMIT"],
            retry_backoff=values["PRIOQUEUE_RETRY_BACKOFF"],
            requeue_limit=values["PRIOQUEUE_REQUEUE_LIMIT"],
            on_finish=values["PRIOQUEUE_ON_FINISH"],
            seen_name=_seen_name(values["PRIOQUEUE_SEEN_NAME"], spider_name),
            flush_on_start=values["PRIOQUEUE_FLUSH_ON_START"],
            starts=values["PRIOQUEUE_START"],
            holds_until_start=values["PRIOQUEUE_HOLD_UNTIL_START"],
            cookiejars=values["PRIOQUEUE_COOKIEJARS"],
            max_idle_s=values["PRIOQUEUE_MAX_IDLE"],
            seeds_keys=_seeds_keys(settings, values[SEEDS_KEY], spider_name),
            close_timeout_s=values["PRIOQUEUE_CLOSE_TIMEOUT"],
            outbox_limit=values["PRIOQUEUE_OUTBOX_LIMIT"],
            journal_s=values["PRIOQUEUE_JOURNAL_TIME"],
            journal_limit=values["PRIOQUEUE_JOURNAL_LIMIT"],
            wait_replicas=values["PRIOQUEUE_WAIT_REPLICAS"],
            seen_cache=values["PRIOQUEUE_SEEN_CACHE"],
            seen=_seen(values),
            **_manners(settings, values),
            **_scrapys(settings, order),
        )


def _scrapys(settings: BaseSettings, order: Order) -> dict[str, Any]:
    """Return the fields that Scrapy's own settings are in."""
    return {
        "orders_start_requests": orders_start_requests(settings, order),
        "without_effect": without_effect(settings, order),
        "depth_priority": settings.getint("DEPTH_PRIORITY"),
        "concurrent_requests": settings.getint("CONCURRENT_REQUESTS"),
        "concurrent_requests_per_domain": settings.getint("CONCURRENT_REQUESTS_PER_DOMAIN"),
    }


def _manners(settings: BaseSettings, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that say how sites are treated, and what is spent on them."""
    own = values["PRIOQUEUE_AUTOTHROTTLE"]
    scrapys = {key: settings.get(f"AUTOTHROTTLE_{key.upper()}") for key in THROTTLE_KEYS}
    return {
        "policy": policy_of(
            values, None if own is None else throttle_of(own, scrapys), obeys_robots=settings.getbool("ROBOTSTXT_OBEY")
        ),
        "obey_retry_after": values["PRIOQUEUE_OBEY_RETRY_AFTER"],
        "layers": values["PRIOQUEUE_LAYERS"] or (),
    }


def backoff_of(settings: BaseSettings) -> Backoff:
    """Return how long retries wait.

    Raises:
        SettingError: the setting has a value that can't be used.
    """
    found: Backoff = _read(settings, "PRIOQUEUE_RETRY_BACKOFF")
    return found


def lineage_fields(settings: BaseSettings) -> Mapping[str, str | None]:
    """Return the names of the fields that items get.

    Raises:
        SettingError: the setting has a value that can't be used.
    """
    found: Mapping[str, str | None] = _read(settings, "PRIOQUEUE_LINEAGE_FIELDS")
    return found


def _read(settings: BaseSettings, name: str) -> Any:
    setting = SETTINGS[name]
    if setting.means_none and name in settings:
        return setting.read(name, settings[name])
    return setting.read(name, settings.get(name, setting.default))


def _scrapy_redis_url(settings: BaseSettings) -> str | None:
    found: str | None = optional(redis_url)("REDIS_URL", settings.get("REDIS_URL"))
    return found


def _refuse_unknown(settings: BaseSettings) -> None:
    for name in settings:
        if isinstance(name, str) and name.startswith("PRIOQUEUE_") and name not in SETTINGS:
            raise SettingError(name, "…", f"no such setting; known: {', '.join(SETTINGS)}")


def _check_tiers(values: Mapping[str, Any]) -> None:
    tiers, default = values["PRIOQUEUE_TIERS"], values["PRIOQUEUE_DEFAULT_TIER"]
    if default not in tiers:
        raise SettingError("PRIOQUEUE_DEFAULT_TIER", default, f"must be one of PRIOQUEUE_TIERS, {list(tiers)}")
    for index, rule in enumerate(values["PRIOQUEUE_TIER_RULES"]):
        if rule.tier not in tiers:
            name = f"PRIOQUEUE_TIER_RULES[{index}]"
            raise SettingError(name, rule.tier, f"no such tier in PRIOQUEUE_TIERS, {list(tiers)}")


def _name(template: str, spider_name: str, *, setting: str = "PRIOQUEUE_NAME") -> str:
    try:
        name = template % {"spider": spider_name}
    except (KeyError, TypeError, ValueError):
        raise SettingError(setting, template, "may hold %(spider)s and no other %") from None
    return frontier_name(setting, name)


def _seeds_keys(settings: BaseSettings, keys: Sequence[str] | None, spider_name: str) -> Sequence[str]:
    # Whoever has not asked for seeds pays for no look at their key.
    if keys is None or settings.get(SEEDS_KEY) is None:
        return ()
    try:
        return tuple(key % {"name": spider_name, "spider": spider_name} for key in keys)
    except (KeyError, TypeError, ValueError):
        raise SettingError(SEEDS_KEY, keys, "may hold %(name)s and no other %") from None


def _seen(values: Mapping[str, Any]) -> SeenPolicy:
    if values["PRIOQUEUE_SEEN"] == "bloom" and values["PRIOQUEUE_REVISIT_AFTER"] is not None:
        why = "can't be kept by PRIOQUEUE_SEEN = 'bloom', which has no times: use 'compact'"
        raise SettingError("PRIOQUEUE_REVISIT_AFTER", values["PRIOQUEUE_REVISIT_AFTER"], why)
    expected = values["PRIOQUEUE_SEEN_EXPECTED"]
    if values["PRIOQUEUE_SEEN"] == "bloom" and expected is not None:
        expected = max(expected, LEAST_IN_BLOOM)
    return SeenPolicy(
        mode=values["PRIOQUEUE_SEEN"],
        expected=expected,
        error_rate=values["PRIOQUEUE_SEEN_ERROR_RATE"],
        revisit_s=values["PRIOQUEUE_REVISIT_AFTER"],
    )


def _seen_name(template: str | None, spider_name: str) -> str | None:
    return None if template is None else _name(template, spider_name, setting="PRIOQUEUE_SEEN_NAME")
