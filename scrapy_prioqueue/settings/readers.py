"""Readers of values: each checks and converts one kind of value; its `SettingError` says which values are valid."""

from __future__ import annotations

import ipaddress
import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from math import ceil
from typing import Any, TypeVar

from scrapy.settings import BaseSettings

from scrapy_prioqueue.address import parse_address
from scrapy_prioqueue.errors import SettingError
from scrapy_prioqueue.frontier.seen import LEAST_ERROR_RATE, MOST_ERROR_RATE, NEVER_S
from scrapy_prioqueue.hints import unknown_names
from scrapy_prioqueue.rank import MAX_TIERS

HIDDEN = "(not shown: it may hold a password)"
"""Shown in an error instead of a value that may contain a secret."""

MAX_ATTEMPTS_LIMIT = 200
"""The frontier stores attempts in one byte."""

MOST_SEEDS_AT_ONCE = 1000
"""A worker takes them in one step, in which the server does nothing else."""

FOREVER = -1

LAST_PORT = 65535

BRACE = re.compile(r"[{}]")
HASH_TAG = re.compile(r"[^{}]*\{[^{}]+\}")
"""Characters with which a part of a key determines its hash slot in a cluster."""

Reader = Callable[[str, Any], Any]
N = TypeVar("N", int, float)


def text(name: str, value: Any) -> str:
    """Read a text."""
    if not isinstance(value, str) or not value:
        raise SettingError(name, value, "must be a non-empty string")
    return value


def frontier_name(name: str, value: Any) -> str:
    """Read the name of a frontier."""
    found = text(name, value)
    if any(letter in found for letter in "{}"):
        raise SettingError(name, value, "must not contain { or }, which mark the hash tag of Redis keys")
    return found


def redis_url(name: str, value: Any) -> str:
    """Read the URL of a server."""
    try:
        parse_address(value)
    except TypeError:
        raise SettingError(name, HIDDEN, "must be a URL, as a text") from None
    except ValueError as error:
        raise SettingError(name, HIDDEN, str(error)) from None
    return str(value)


def number_of(name: str, value: Any, kind: type[N], otherwise: str) -> N:
    """Read a number of type `int` or `float`; an error says what it must be."""
    try:
        if isinstance(value, bool):
            # Python accepts a bool as 0 or 1, but it is probably a mistake.
            raise TypeError
        return kind(value)
    except (TypeError, ValueError, OverflowError):
        raise SettingError(name, value, otherwise) from None


def seconds(name: str, value: Any, *, above: float | None = None) -> float:
    """Read a number of seconds, 0 or more, or above a bound."""
    number = number_of(name, value, float, "must be a number of seconds")
    if not 0 <= number < float("inf") or (above is not None and number <= above):
        raise SettingError(name, value, f"must be a finite number of seconds {f'above {above:g}' if above else '>= 0'}")
    return number


def interval(name: str, value: Any) -> float:
    """Read a number of seconds, 0 for None."""
    return 0.0 if value is None else seconds(name, value)


def idle_time(name: str, value: Any) -> float:
    """Read a number of seconds, -1 for no end."""
    wanted = f"must be a finite number of seconds >= 0, or {FOREVER} for ever"
    number = number_of(name, value, float, wanted)
    if number == FOREVER:
        return float("inf")
    if not 0 <= number < float("inf"):
        raise SettingError(name, value, wanted)
    return number


def revisit_time(name: str, value: Any) -> int:
    """Read a number of seconds after which a URL may be fetched again, -1 for never."""
    return ceil(min(idle_time(name, value), NEVER_S))


def error_rate(name: str, value: Any) -> float:
    """Read the share of new requests that may be lost."""
    number = number_of(name, value, float, "must be a number")
    if not LEAST_ERROR_RATE <= number <= MOST_ERROR_RATE:
        raise SettingError(name, value, f"must be from {LEAST_ERROR_RATE:g} to {MOST_ERROR_RATE:g}")
    return number


def seed_keys(name: str, value: Any) -> Sequence[str]:
    """Read the names of one or several keys, best first."""
    if isinstance(value, str) and not value.lstrip().startswith("["):
        value = [value]
    keys = tuple(parsed(name, value, (list, tuple), "a key or a list of keys, best first"))
    if not keys or not all(isinstance(key, str) and key.strip() for key in keys):
        raise SettingError(name, value, "every key must be a non-empty string")
    if len(set(keys)) != len(keys):
        raise SettingError(name, value, "keys must be different from each other")
    if any(BRACE.search(key) and not HASH_TAG.match(key) for key in keys):
        raise SettingError(name, value, "a key may contain { and } only as a hash tag, as in {books}:start_urls")
    return keys


def timeout(name: str, value: Any) -> float:
    """Read a time-out."""
    return seconds(name, value, above=0.001)


def count(name: str, value: Any, *, least: int = 1, limit: int = 2**31) -> int:
    """Read an integer within bounds."""
    number = number_of(name, value, int, "must be an integer")
    if isinstance(value, float) and value != number:
        raise SettingError(name, value, "must be an integer")
    if not least <= number <= limit:
        raise SettingError(name, value, f"must be from {least} to {limit}")
    return number


def limit(name: str, value: Any) -> int:
    """Read a maximum number of occurrences."""
    return count(name, value, least=0)


def ports(name: str, value: Any) -> Sequence[int]:
    """Read a port, or the first and the last one of a range; 0 is any free port."""
    wanted = f"must be a port from 0 to {LAST_PORT}, or the first and the last port of a range such as [9451, 9470]"
    try:
        found = json.loads(value) if isinstance(value, str) else value
        first, last = (found, found) if isinstance(found, int) else found
        if any(isinstance(port, bool) or not isinstance(port, int) for port in (first, last)):
            raise TypeError
    except (TypeError, ValueError):
        raise SettingError(name, value, wanted) from None
    if not (0 < first <= last <= LAST_PORT or first == last == 0):
        raise SettingError(name, value, wanted)
    return range(first, last + 1)


def ip_address(name: str, value: Any) -> str:
    """Read an IP address on which to listen."""
    try:
        return str(ipaddress.ip_address("127.0.0.1" if value == "localhost" else value))
    except ValueError:
        raise SettingError(
            name, value, "must be an IP address of this machine, such as 127.0.0.1, or 0.0.0.0 for all of them"
        ) from None


def flag(name: str, value: Any) -> bool:
    """Read True or False."""
    texts = {"true": True, "1": True, "false": False, "0": False, "": False}
    found = texts.get(str(value).strip().lower())
    if found is None:
        raise SettingError(name, value, "must be True or False")
    return found


def one_of(*choices: str) -> Reader:
    """Return a reader of a choice among texts."""

    def read(name: str, value: Any) -> str:
        if value not in choices:
            raise SettingError(name, value, f"must be one of {', '.join(map(repr, choices))}")
        return str(value)

    return read


def choices(*known: str) -> Reader:
    """Return a reader of a list of choices among texts."""

    def read(name: str, value: Any) -> Sequence[str]:
        parts = split(value)
        if isinstance(value, str) and isinstance(parts, list):
            parts = [part for part in parts if part]
        found = tuple(parsed(name, parts, (list, tuple, set), f"a list with any of {', '.join(map(repr, known))}"))
        for each in found:
            if each not in known:
                raise SettingError(name, value, f"{each!r} must be one of {', '.join(map(repr, known))}")
        return found

    return read


def split(value: Any) -> Any:
    """Return a list given as text, such as "a, b", as one; JSON, and any other value, as it is."""
    is_list = isinstance(value, str) and not value.lstrip().startswith(("[", "{"))
    return [part.strip() for part in value.split(",")] if is_list else value


def parsed(name: str, value: Any, kind: type | tuple[type, ...], what: str) -> Any:
    """Return a list or dict unchanged; read a text, from the command line, as JSON."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            raise SettingError(name, value, f"must be {what}, on the command line as JSON") from None
    if not isinstance(value, kind):
        raise SettingError(name, value, f"must be {what}")
    return value


def check_keys(name: str, value: Any, found: Mapping[Any, Any], known: Collection[str]) -> None:
    """Refuse a dictionary, read from a value, that has unknown keys."""
    unknown = [key for key in found if key not in known]
    if unknown:
        raise SettingError(name, value, unknown_names(unknown, known))


def mapping(name: str, value: Any) -> Mapping[str, Any]:
    """Read a dictionary, which may hold secrets."""
    try:
        return dict(parsed(name, plain(value), dict, "a dictionary"))
    except SettingError as error:
        raise SettingError(name, HIDDEN, error.why) from None


def names(name: str, value: Any) -> Sequence[str]:
    """Read a list of names."""
    return tuple(text(name, each) for each in parsed(name, split(value), (list, tuple, set), "a list of names"))


def tiers(name: str, value: Any) -> Sequence[str]:
    """Read the names of tiers."""
    tiers = tuple(parsed(name, split(value), (list, tuple), "a list of tier names, best first"))
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


def tier_rules(name: str, value: Any) -> Sequence[TierRule]:
    """Read rules that give tiers."""
    found = parsed(name, value, (list, tuple), 'a list of rules such as {"tier": "high", "url": r"/product/"}')
    return tuple(_tier_rule(f"{name}[{index}]", rule) for index, rule in enumerate(found))


def _tier_rule(name: str, rule: Any) -> TierRule:
    if not isinstance(rule, dict):
        raise SettingError(name, rule, 'must be a dictionary with "tier" and "url" and/or "callback"')
    check_keys(name, rule, rule, ("tier", "url", "callback"))
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


@dataclass(frozen=True, slots=True)
class Backoff:
    """How long retries wait.

    Args:
        base_s: seconds before the first retry; 0 for no wait.
        factor: how much longer each further retry waits.
        cap_s: the longest wait in seconds.
        jitter: the part of a wait that is left to chance, from 0 to 1: a wait is shortened by at most that part.
        retry_after_cap_s: seconds that a server may ask for with `Retry-After`; 0 to ignore it.
    """

    base_s: float = 1.0
    factor: float = 2.0
    cap_s: float = 300.0
    jitter: float = 0.5
    retry_after_cap_s: float = 3600.0


_BACKOFF_FIELDS = {f.name.removesuffix("_s"): f.name for f in fields(Backoff)}


def backoff(name: str, value: Any) -> Backoff:
    """Read how long retries wait."""
    if value is None or value == "":
        return Backoff(base_s=0.0)
    known = ", ".join(_BACKOFF_FIELDS)
    found = parsed(name, plain(value), dict, f"a dictionary with any of {known}, or None")
    check_keys(name, value, found, _BACKOFF_FIELDS)
    read = Backoff(**{_BACKOFF_FIELDS[key]: seconds(f"{name}[{key!r}]", each) for key, each in found.items()})
    if read.jitter > 1:
        raise SettingError(name, value, "jitter must be from 0 to 1")
    if read.factor < 1:
        raise SettingError(name, value, "factor must be 1 or more")
    return read


LINEAGE_FIELDS: Mapping[str, str | None] = {
    "source": "source_url",
    "fetched_at": "fetched_at",
    "tier": "tier",
    "attempt": "attempt",
    "confidence": "confidence",
}
"""Default names of an item's lineage fields."""


def field_names(name: str, value: Any) -> Mapping[str, str | None]:
    """Read names of an item's fields; missing ones keep their defaults, and None turns a field off."""
    found = parsed(name, plain(value), dict, f"a dictionary with any of {', '.join(LINEAGE_FIELDS)}")
    check_keys(name, value, found, LINEAGE_FIELDS)
    for key, each in found.items():
        if each is not None and (not isinstance(each, str) or not each):
            raise SettingError(name, value, f"the name of {key!r} must be a string, or None for no field")
    return {**LINEAGE_FIELDS, **found}


def class_path(value: object) -> str:
    """Return the path of a class that a setting names, as an object or already as text."""
    return f"{value.__module__}.{value.__qualname__}" if isinstance(value, type) else str(value)


def plain(value: Any) -> Any:
    """Return Scrapy's own kind of dictionary as a plain one, any other value unchanged."""
    return value.copy_to_dict() if isinstance(value, BaseSettings) else value


def optional(read: Reader) -> Reader:
    """Return a reader that also accepts None."""
    return lambda name, value: None if value is None or value == "" else read(name, value)
