"""All PRIOQUEUE_* settings, read and checked at once; no other module reads `crawler.settings`, except `addon`."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from dataclasses import fields as dataclass_fields
from secrets import token_hex
from typing import Any, Literal

from scrapy.settings import BaseSettings

from scrapy_prioqueue.errors import SettingError
from scrapy_prioqueue.frontier.policy import Policy
from scrapy_prioqueue.frontier.seen import LEAST_IN_BLOOM, SeenPolicy
from scrapy_prioqueue.hints import did_you_mean
from scrapy_prioqueue.settings.policies import LAYER_META, THROTTLE_KEYS, Layer, policy_of, throttle_of
from scrapy_prioqueue.settings.readers import Backoff, TierRule, frontier_name
from scrapy_prioqueue.settings.scrapy_redis import adopted, keys_of_crawl, may_have_crawled
from scrapy_prioqueue.settings.scrapys import Order, queue_order, start_order, without_effect
from scrapy_prioqueue.settings.shown import shown_settings
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
    """The checked settings of one crawl; fields are named after the settings."""

    redis_url: str
    redis_options: Mapping[str, Any]
    redis_timeout_s: float
    fallback: Literal["memory", "error"]
    on_outage: Literal["continue", "pause"]
    outage_grace_s: float
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
    flush_if_alone: bool
    starts: Literal["once", "each"]
    holds_until_start: bool
    cookiejars: Literal["local", "shared"]
    max_idle_s: float
    seeds_keys: Sequence[str]
    seeds_batch_size: int
    slow_page_s: float
    close_timeout_s: float
    outbox_limit: int
    journal_s: float
    journal_limit: int
    wait_replicas: int
    seen_cache: int
    scale_drain_time_s: float
    scale_min: int
    scale_max: int
    seen: SeenPolicy
    policy: Policy
    obey_retry_after: bool
    log_interval_s: float
    metrics_port: Sequence[int] | None
    metrics_host: str
    layers: Sequence[Layer]
    start_order: Order | None
    without_effect: Sequence[str]
    from_scrapy_redis: Sequence[str]
    scrapy_redis_keys: Sequence[str]
    depth_priority: int
    concurrent_requests: int
    concurrent_requests_per_domain: int
    dumps_stats: bool
    shown: Mapping[str, str]

    @classmethod
    def from_settings(
        cls, settings: BaseSettings, spider_name: str, argument: Callable[[str], Any] = lambda _: None
    ) -> Config:
        """Read all settings.

        Args:
            argument: returns an argument of the spider by its name, None if it has none.

        Raises:
            SettingError: one has a value that can't be used, or is unknown.
        """
        _refuse_unknown(settings)
        theirs = adopted(settings)
        values = {**{name: _read(settings, name) for name in SETTINGS}, **theirs.values}
        _check_tiers(values)
        if values["PRIOQUEUE_SCALE_MIN"] > values["PRIOQUEUE_SCALE_MAX"]:
            why = f"must not be above PRIOQUEUE_SCALE_MAX, {values['PRIOQUEUE_SCALE_MAX']}"
            raise SettingError("PRIOQUEUE_SCALE_MIN", values["PRIOQUEUE_SCALE_MIN"], why)
        order = values["PRIOQUEUE_ORDER"] or queue_order(settings)
        parts, seen_name = _Parts(spider_name, argument), values["PRIOQUEUE_SEEN_NAME"]
        fields = {field: values[name] for field, name in _settings_by_field(cls).items()}
        fields |= {
            "redis_url": values["PRIOQUEUE_REDIS_URL"] or DEFAULT_REDIS_URL,
            "name": parts.name("PRIOQUEUE_NAME", values["PRIOQUEUE_NAME"]),
            "worker_id": values["PRIOQUEUE_WORKER_ID"] or f"{socket.gethostname()}:{os.getpid()}:{token_hex(3)}",
            "order": order,
            "seen_name": seen_name and parts.name(theirs.source_of("PRIOQUEUE_SEEN_NAME"), seen_name),
            # In a project of scrapy-redis all workers may have that setting, and only the first should flush.
            "flush_if_alone": "PRIOQUEUE_FLUSH_ON_START" in theirs.sources,
            "starts": values["PRIOQUEUE_START"],
            "holds_until_start": values["PRIOQUEUE_HOLD_UNTIL_START"],
            "seeds_keys": _seeds_keys(settings, values[SEEDS_KEY], parts),
            "journal_s": values["PRIOQUEUE_JOURNAL_TIME"],
            "log_interval_s": _log_interval_s(settings, values),
            "seen": _seen(values),
            "layers": values["PRIOQUEUE_LAYERS"] or (),
            "policy": _policy(settings, values),
            "from_scrapy_redis": [f"{', '.join(names)} (as {ours})" for ours, names in theirs.sources.items()],
            "scrapy_redis_keys": keys_of_crawl(settings, spider_name) if may_have_crawled(settings) else (),
        }
        return cls(**fields, **_scrapys(settings, order, theirs.warnings))


def _settings_by_field(cls: type[Config]) -> dict[str, str]:
    """Return the setting of each field that is named after one; fields in seconds have the suffix `_s`."""
    names = {field.name: f"PRIOQUEUE_{field.name.removesuffix('_s').upper()}" for field in dataclass_fields(cls)}
    return {field: name for field, name in names.items() if name in SETTINGS}


def _scrapys(settings: BaseSettings, order: Order, warnings: Sequence[str]) -> dict[str, Any]:
    """Return the fields whose values come from Scrapy's own settings."""
    return {
        "start_order": start_order(settings),
        "without_effect": [*without_effect(settings, order), *warnings],
        "depth_priority": settings.getint("DEPTH_PRIORITY"),
        "concurrent_requests": settings.getint("CONCURRENT_REQUESTS"),
        "concurrent_requests_per_domain": settings.getint("CONCURRENT_REQUESTS_PER_DOMAIN"),
        "dumps_stats": settings.getbool("STATS_DUMP"),
        "shown": shown_settings(settings),
    }


def _log_interval_s(settings: BaseSettings, values: Mapping[str, Any]) -> float:
    own: float = values["PRIOQUEUE_LOG_INTERVAL"]
    return own if "PRIOQUEUE_LOG_INTERVAL" in settings else float(settings["LOGSTATS_INTERVAL"] or 0)


def _policy(settings: BaseSettings, values: Mapping[str, Any]) -> Policy:
    own = values["PRIOQUEUE_AUTOTHROTTLE"]
    is_throttled = own is not None and own is not False
    scrapys = {key: settings.get(f"AUTOTHROTTLE_{key.upper()}") for key in THROTTLE_KEYS}
    throttle = throttle_of(own, scrapys) if is_throttled else None
    return policy_of(values, throttle, obeys_robots=settings.getbool("ROBOTSTXT_OBEY"))


def backoff_of(settings: BaseSettings) -> Backoff:
    """Return the backoff of retries.

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


def _refuse_unknown(settings: BaseSettings) -> None:
    for name in settings:
        if isinstance(name, str) and name.startswith("PRIOQUEUE_") and name not in SETTINGS:
            all_names = "the page 'Settings' of the documentation lists all"
            question = did_you_mean(name, SETTINGS, prefix="PRIOQUEUE_")
            raise SettingError(name, "…", f"no such setting; {question or all_names}")


def _check_tiers(values: Mapping[str, Any]) -> None:
    tiers, default = values["PRIOQUEUE_TIERS"], values["PRIOQUEUE_DEFAULT_TIER"]
    if default not in tiers:
        raise SettingError("PRIOQUEUE_DEFAULT_TIER", default, f"must be one of PRIOQUEUE_TIERS, {list(tiers)}")
    for index, rule in enumerate(values["PRIOQUEUE_TIER_RULES"]):
        if rule.tier not in tiers:
            name = f"PRIOQUEUE_TIER_RULES[{index}]"
            raise SettingError(name, rule.tier, f"no such tier in PRIOQUEUE_TIERS, {list(tiers)}")


class _Parts(dict[str, Any]):
    """Values for the placeholders in names: the spider's name and its arguments."""

    def __init__(self, spider_name: str, argument: Callable[[str], Any]) -> None:
        super().__init__(spider=spider_name)
        self._argument = argument

    def __missing__(self, name: str) -> Any:
        found = self._argument(name)
        if not isinstance(found, (str, int, float)):
            raise KeyError(name)
        return found

    def name(self, setting: str, template: str) -> str:
        """Return the name of a frontier."""
        return frontier_name(setting, self.filled(setting, template))

    def filled(self, setting: str, template: str, value: Any = None) -> str:
        """Return a text with its parts filled in.

        Args:
            value: of the setting, if that is another than the text.
        """
        known = " and ".join(f"%({name})s" for name in self)
        try:
            return template % self
        except KeyError as error:
            name = error.args[0]
            why = (
                f"the spider has no argument {name!r}; give it one (-a {name}=…), or leave %({name})s out."
                " %(spider)s, the spider's name, needs no argument"
            )
        except (TypeError, ValueError):
            why = f"may hold {known}, %(argument)s with the name of an argument of the spider, and no other %"
        raise SettingError(setting, template if value is None else value, why)


def _seeds_keys(settings: BaseSettings, keys: Sequence[str] | None, parts: _Parts) -> Sequence[str]:
    # A spider that hasn't asked for seeds shouldn't pay for a look-up of their key.
    if keys is None or settings.get(SEEDS_KEY) is None:
        return ()
    parts["name"] = parts["spider"]
    return tuple(parts.filled(SEEDS_KEY, key, keys) for key in keys)


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
