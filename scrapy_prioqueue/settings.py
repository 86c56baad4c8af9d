"""Every PRIOQUEUE_* setting: name, default, type, unit, check and meaning; the only reader of `crawler.settings`.

`SETTINGS` is what the reference in docs/ is compared with; `Config.from_settings` reads and checks them all at once.
"""

from __future__ import annotations

import json
import os
import re
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from secrets import token_hex
from typing import Any, Literal
from urllib.parse import urlsplit

from scrapy.settings import BaseSettings
from scrapy.squeues import FifoMemoryQueue
from scrapy.utils.misc import load_object

from scrapy_prioqueue.errors import SettingError
from scrapy_prioqueue.rank import MAX_TIERS

DEFAULT_REDIS_URL = "redis://127.0.0.1:6379/0"
DEFAULT_TIER = "normal"

HIDDEN = "(not shown: it may hold a password)"
"""What an error shows instead of a value that may hold a secret."""

URL_SCHEMES = ("redis", "rediss", "unix")

MAX_ATTEMPTS_LIMIT = 200
"""Attempts are kept in one byte."""

Reader = Callable[[str, Any], Any]


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise SettingError(name, value, "must be a non-empty string")
    return value


def _redis_url(name: str, value: Any) -> str:
    try:
        parts = urlsplit(value)
        is_usable = parts.scheme in URL_SCHEMES and parts.port != 0
    except (TypeError, ValueError, AttributeError):
        is_usable = False
    if not is_usable:
        raise SettingError(
            name,
            HIDDEN,
            f"must be a URL that begins with one of {', '.join(URL_SCHEMES)} and ://,"
            " with special characters of a password percent-encoded",
        )
    return str(value)


def _seconds(name: str, value: Any, *, above: float | None = None) -> float:
    try:
        seconds = float(value)
    except (TypeError, ValueError, OverflowError):
        raise SettingError(name, value, "must be a number of seconds") from None
    if not 0 <= seconds < float("inf") or (above is not None and seconds <= above):
        raise SettingError(name, value, f"must be a finite number of seconds {f'above {above:g}' if above else '>= 0'}")
    return seconds


def _lease_ttl(name: str, value: Any) -> float:
    return _seconds(name, value, above=0.1)


def _timeout(name: str, value: Any) -> float:
    return _seconds(name, value, above=0.001)


def _count(name: str, value: Any, *, least: int = 1, limit: int = 2**31) -> int:
    try:
        number = int(value)
    except (TypeError, ValueError, OverflowError):
        raise SettingError(name, value, "must be an integer") from None
    if isinstance(value, float) and value != number:
        raise SettingError(name, value, "must be an integer")
    if not least <= number <= limit:
        raise SettingError(name, value, f"must be from {least} to {limit}")
    return number


def _replicas(name: str, value: Any) -> int:
    return _count(name, value, least=0, limit=100)


def _attempts(name: str, value: Any) -> int:
    return _count(name, value, limit=MAX_ATTEMPTS_LIMIT)


def _flag(name: str, value: Any) -> bool:
    texts = {"true": True, "1": True, "false": False, "0": False, "": False}
    found = texts.get(str(value).strip().lower())
    if found is None:
        raise SettingError(name, value, "must be True or False")
    return found


def _one_of(*choices: str) -> Reader:
    def read(name: str, value: Any) -> str:
        if value not in choices:
            raise SettingError(name, value, f"must be one of {', '.join(map(repr, choices))}")
        return str(value)

    return read


def _parsed(name: str, value: Any, kind: type | tuple[type, ...], what: str) -> Any:
    """Return a list or dict as it is, and read one given on the command line as JSON."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            raise SettingError(name, value, f"must be {what}, on the command line as JSON") from None
    if not isinstance(value, kind):
        raise SettingError(name, value, f"must be {what}")
    return value


def _mapping(name: str, value: Any) -> Mapping[str, Any]:
    if isinstance(value, BaseSettings):
        value = value.copy_to_dict()
    try:
        return dict(_parsed(name, value, dict, "a dictionary"))
    except SettingError as error:
        raise SettingError(name, HIDDEN, error.why) from None


def _tiers(name: str, value: Any) -> Sequence[str]:
    if isinstance(value, str) and not value.lstrip().startswith("["):
        value = [part.strip() for part in value.split(",")]
    tiers = tuple(_parsed(name, value, (list, tuple), "a list of tier names, best first"))
    if not 1 <= len(tiers) <= MAX_TIERS:
        raise SettingError(name, value, f"must have from 1 to {MAX_TIERS} tiers")
    if not all(isinstance(tier, str) and tier for tier in tiers):
        raise SettingError(name, value, "every tier must be a non-empty string")
    if len(set(tiers)) != len(tiers):
        raise SettingError(name, value, "tiers must be different from each other")
    return tiers


@dataclass(frozen=True, slots=True)
class TierRule:
    """Gives a tier to the requests that match all of its conditions.

    Args:
        tier: name of the tier.
        url: regular expression searched for in the request's URL, or None.
        callback: name of the request's callback (`parse` where none is given), or None.
    """

    tier: str
    url: re.Pattern[str] | None
    callback: str | None


def _tier_rules(name: str, value: Any) -> Sequence[TierRule]:
    found = _parsed(name, value, (list, tuple), 'a list of rules such as {"tier": "high", "url": r"/product/"}')
    return tuple(_tier_rule(f"{name}[{index}]", rule) for index, rule in enumerate(found))


def _tier_rule(name: str, rule: Any) -> TierRule:
    if not isinstance(rule, dict):
        raise SettingError(name, rule, 'must be a dictionary with "tier" and "url" and/or "callback"')
    unknown = set(rule) - {"tier", "url", "callback"}
    if unknown:
        raise SettingError(name, rule, f"unknown {', '.join(sorted(map(repr, unknown)))}; known: tier, url, callback")
    tier, url, callback = rule.get("tier"), rule.get("url"), rule.get("callback")
    if not isinstance(tier, str):
        raise SettingError(name, rule, '"tier" must be the name of a tier')
    if url is None and callback is None:
        raise SettingError(name, rule, 'needs "url" (a regular expression) and/or "callback" (the name of a method)')
    if callback is not None and not isinstance(callback, str):
        raise SettingError(name, rule, '"callback" must be the name of a spider method')
    try:
        pattern = None if url is None else re.compile(url)
    except (re.error, TypeError) as error:
        raise SettingError(name, rule, f'"url" is not a regular expression: {error}') from None
    return TierRule(tier, pattern, callback)


def _optional(read: Reader) -> Reader:
    return lambda name, value: None if value is None or value == "" else read(name, value)


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting.

    Args:
        default: the value where the user sets none.
        read: checks and converts a value, or raises `SettingError`.
        doc: what it means, with its unit.
    """

    default: Any
    read: Reader
    doc: str


SETTINGS: Mapping[str, Setting] = {
    "PRIOQUEUE_REDIS_URL": Setting(
        None, _optional(_redis_url), f"Address of the server; else `REDIS_URL`, else `{DEFAULT_REDIS_URL}`."
    ),
    "PRIOQUEUE_REDIS_OPTIONS": Setting(
        {}, _mapping, "Further keyword arguments of `redis.asyncio.Redis`; they win over the URL."
    ),
    "PRIOQUEUE_REDIS_TIMEOUT": Setting(5.0, _timeout, "Seconds that connecting, and an answer, may take."),
    "PRIOQUEUE_FALLBACK": Setting(
        "memory",
        _one_of("memory", "error"),
        'Without a server at start: crawl in process ("memory") or close the spider ("error").',
    ),
    "PRIOQUEUE_ON_OUTAGE": Setting(
        "continue",
        _one_of("continue", "pause"),
        'Without the server in mid-crawl: go on with what is here and what is found meanwhile ("continue"), or start'
        ' nothing new ("pause").',
    ),
    "PRIOQUEUE_NAME": Setting("%(spider)s", _text, "Name of the frontier; `%(spider)s` is the spider's name."),
    "PRIOQUEUE_CRAWL_ID": Setting(
        None, _optional(_text), "Name of the run; a worker that comes after its end closes at once."
    ),
    "PRIOQUEUE_WORKER_ID": Setting(
        None,
        _optional(_text),
        "Id of this worker, unique among the living; by default host, process id and a random part.",
    ),
    "PRIOQUEUE_TIERS": Setting(["urgent", "high", DEFAULT_TIER, "low"], _tiers, "Names of the tiers, best first."),
    "PRIOQUEUE_DEFAULT_TIER": Setting(DEFAULT_TIER, _text, "Tier of a request to which nothing else gives one."),
    "PRIOQUEUE_TIER_RULES": Setting(
        [], _tier_rules, "List of `{tier, url, callback}`: the first rule that matches gives the tier."
    ),
    "PRIOQUEUE_ORDER": Setting(
        None,
        _optional(_one_of("lifo", "fifo")),
        'Which of two requests of equal rank goes first, the newest ("lifo") or the oldest ("fifo");'
        " by default as `SCHEDULER_MEMORY_QUEUE` says.",
    ),
    "PRIOQUEUE_LEASE_TTL": Setting(
        60.0, _lease_ttl, "Seconds after which the requests of a worker that fell silent are given to others."
    ),
    "PRIOQUEUE_MAX_ATTEMPTS": Setting(
        5, _attempts, "How many workers may be lost over a request before it becomes a dead letter."
    ),
    "PRIOQUEUE_ON_FINISH": Setting(
        "restart",
        _one_of("restart", "keep"),
        'Whether the crawl after a finished one forgets ("restart") or keeps ("keep") what was seen.',
    ),
    "PRIOQUEUE_FLUSH_ON_START": Setting(
        False, _flag, "Drop what the frontier holds and begin anew; refused while other workers are alive."
    ),
    "PRIOQUEUE_MAX_IDLE": Setting(
        0.0, _seconds, "Seconds that a worker without work waits for requests pushed from elsewhere."
    ),
    "PRIOQUEUE_CLOSE_TIMEOUT": Setting(
        10.0, _timeout, "Seconds that closing waits for the server before it gives up and says so."
    ),
    "PRIOQUEUE_OUTBOX_LIMIT": Setting(
        10_000,
        _count,
        "Requests waiting to be committed above which `start()` is not read further, and nothing is started while the"
        " server is full or away.",
    ),
    "PRIOQUEUE_JOURNAL_TIME": Setting(
        30.0,
        _seconds,
        "Seconds for which a worker keeps what it has committed, to send it again to a server that lost its newest"
        " writes.",
    ),
    "PRIOQUEUE_JOURNAL_LIMIT": Setting(20_000, _count, "Operations that it keeps at most."),
    "PRIOQUEUE_WAIT_REPLICAS": Setting(0, _replicas, "Replicas that must have a commit before it counts as done."),
    "PRIOQUEUE_SEEN_CACHE": Setting(
        100_000, _count, "Fingerprints that a worker remembers to recognise duplicates without asking."
    ),
}


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
    worker_id: str
    tiers: Sequence[str]
    default_tier: str
    tier_rules: Sequence[TierRule]
    order: Literal["lifo", "fifo"]
    lease_ttl_s: float
    max_attempts: int
    on_finish: Literal["restart", "keep"]
    flush_on_start: bool
    max_idle_s: float
    close_timeout_s: float
    outbox_limit: int
    journal_s: float
    journal_limit: int
    wait_replicas: int
    seen_cache: int
    orders_start_requests: bool
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
        return cls(
            redis_url=values["PRIOQUEUE_REDIS_URL"] or _scrapy_redis_url(settings) or DEFAULT_REDIS_URL,
            redis_options=values["PRIOQUEUE_REDIS_OPTIONS"],
            redis_timeout_s=values["PRIOQUEUE_REDIS_TIMEOUT"],
            fallback=values["PRIOQUEUE_FALLBACK"],
            on_outage=values["PRIOQUEUE_ON_OUTAGE"],
            name=_name(values["PRIOQUEUE_NAME"], spider_name),
            crawl_id=values["PRIOQUEUE_CRAWL_ID"],
            worker_id=values["PRIOQUEUE_WORKER_ID"] or f"{socket.gethostname()}:{os.getpid()}:{token_hex(3)}",
            tiers=values["PRIOQUEUE_TIERS"],
            default_tier=values["PRIOQUEUE_DEFAULT_TIER"],
            tier_rules=values["PRIOQUEUE_TIER_RULES"],
            order=values["PRIOQUEUE_ORDER"] or _order_of(settings),
            lease_ttl_s=values["PRIOQUEUE_LEASE_TTL"],
            max_attempts=values["PRIOQUEUE_MAX_ATTEMPTS"],
            on_finish=values["PRIOQUEUE_ON_FINISH"],
            flush_on_start=values["PRIOQUEUE_FLUSH_ON_START"],
            max_idle_s=values["PRIOQUEUE_MAX_IDLE"],
            close_timeout_s=values["PRIOQUEUE_CLOSE_TIMEOUT"],
            outbox_limit=values["PRIOQUEUE_OUTBOX_LIMIT"],
            journal_s=values["PRIOQUEUE_JOURNAL_TIME"],
            journal_limit=values["PRIOQUEUE_JOURNAL_LIMIT"],
            wait_replicas=values["PRIOQUEUE_WAIT_REPLICAS"],
            seen_cache=values["PRIOQUEUE_SEEN_CACHE"],
            orders_start_requests=bool(settings.get("SCHEDULER_START_MEMORY_QUEUE")),
            concurrent_requests=settings.getint("CONCURRENT_REQUESTS"),
            concurrent_requests_per_domain=settings.getint("CONCURRENT_REQUESTS_PER_DOMAIN"),
        )


def _read(settings: BaseSettings, name: str) -> Any:
    setting = SETTINGS[name]
    return setting.read(name, settings.get(name, setting.default))


def _scrapy_redis_url(settings: BaseSettings) -> str | None:
    found: str | None = _optional(_redis_url)("REDIS_URL", settings.get("REDIS_URL"))
    return found


def _refuse_unknown(settings: BaseSettings) -> None:
    for name in settings:
        if isinstance(name, str) and name.startswith("PRIOQUEUE_") and name not in SETTINGS:
            raise SettingError(name, HIDDEN, f"no such setting; known: {', '.join(SETTINGS)}")


def _check_tiers(values: Mapping[str, Any]) -> None:
    tiers, default = values["PRIOQUEUE_TIERS"], values["PRIOQUEUE_DEFAULT_TIER"]
    if default not in tiers:
        raise SettingError("PRIOQUEUE_DEFAULT_TIER", default, f"must be one of PRIOQUEUE_TIERS, {list(tiers)}")
    for index, rule in enumerate(values["PRIOQUEUE_TIER_RULES"]):
        if rule.tier not in tiers:
            name = f"PRIOQUEUE_TIER_RULES[{index}]"
            raise SettingError(name, rule.tier, f"no such tier in PRIOQUEUE_TIERS, {list(tiers)}")


def _name(template: str, spider_name: str) -> str:
    try:
        name = template % {"spider": spider_name}
    except (KeyError, TypeError, ValueError):
        raise SettingError("PRIOQUEUE_NAME", template, "may hold %(spider)s and no other %") from None
    if any(letter in name for letter in "{}"):
        raise SettingError("PRIOQUEUE_NAME", template, "must not hold { or }, which mark the hash tag of Redis keys")
    return name


def _order_of(settings: BaseSettings) -> Literal["lifo", "fifo"]:
    """Return the order that Scrapy's own setting asks for (see "Crawling in BFO order" in Scrapy's documentation)."""
    queue_class = load_object(settings["SCHEDULER_MEMORY_QUEUE"])
    is_fifo = isinstance(queue_class, type) and issubclass(queue_class, FifoMemoryQueue)
    return "fifo" if is_fifo else "lifo"
