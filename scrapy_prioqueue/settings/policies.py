"""Readers of the frontier's policy: limits of slots, weights of tiers, budgets, water marks; also of layers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal

from scrapy_prioqueue.errors import SettingError
from scrapy_prioqueue.frontier.policy import EVERY, Budget, Policy, SlotLimit, Throttle, values_of
from scrapy_prioqueue.settings.readers import (
    Reader,
    check_keys,
    count,
    flag,
    limit,
    number_of,
    parsed,
    plain,
    seconds,
    split,
    text,
)
from scrapy_prioqueue.settings.slot_names import why_no_slot

LOW_WATER_PART = 0.8
"""Default low mark, as a part of the high mark."""

PENDING_LIMIT_TIMES = 10
"""Default limit of pending requests, as a multiple of the high mark."""

OPERATORS_MARK = "!"
"""Prefix under which the server stores an operator's values; no other name may begin with it."""

LAYER_META = "prioqueue_layer"
"""Key in `meta` with the name of a request's extraction layer."""

BYTES_LIMIT = 2**53
"""Larger integers are not exact in the server's scripts."""


def _known(name: str, value: Any, known: Mapping[str, Reader]) -> dict[str, Any]:
    """Read a dictionary with a reader for each key; a value of None counts as missing."""
    names = ", ".join(known)
    found = parsed(name, plain(value), dict, f"a dictionary with any of {names}")
    check_keys(name, value, found, known)
    return {key: known[key](f"{name}[{key!r}]", each) for key, each in found.items() if each is not None}


def _named(name: str, value: Any, what: str) -> Mapping[str, Any]:
    """Read a dictionary whose keys are names that the frontier can store."""
    found: Mapping[str, Any] = parsed(name, plain(value), dict, what)
    for key in found:
        if not isinstance(key, str) or not key or key.startswith(OPERATORS_MARK):
            raise SettingError(name, value, f"{key!r} must be a non-empty string that doesn't begin with !")
    return found


burst = partial(count, limit=10_000)
"""Reads the number of requests of a slot that may start at once after a pause."""

SLOT_READERS: Mapping[str, Reader] = {"delay": seconds, "concurrency": limit, "burst": burst}
"""Reads each field of a limit."""


def slots(name: str, value: Any) -> Mapping[str, SlotLimit]:
    """Read limits of slots."""
    found = _named(name, value, 'a dictionary such as {"example.com": {"delay": 0.5, "concurrency": 2}}')
    for pattern in found:
        why = why_no_slot(pattern)
        if why is not None:
            raise SettingError(name, value, why)
        suffix = pattern.removeprefix("*.")
        if pattern != EVERY and (not suffix or "*" in suffix or suffix.startswith(".")):
            raise SettingError(name, value, f"{pattern!r} must be a slot, *.example.com for all below it, or * for all")
    return {pattern: SlotLimit(**_known(f"{name}[{pattern!r}]", each, SLOT_READERS)) for pattern, each in found.items()}


def target_concurrency(name: str, value: Any) -> float:
    """Read a target concurrency, a number above 0."""
    number = number_of(name, value, float, "must be a number")
    if not 0 < number < float("inf"):
        raise SettingError(name, value, "must be a finite number above 0")
    return number


_THROTTLE_READERS: Mapping[str, Reader] = {
    "start_delay": seconds,
    "max_delay": seconds,
    "target_concurrency": target_concurrency,
}

THROTTLE_KEYS = tuple(_THROTTLE_READERS)
"""Keys of `PRIOQUEUE_AUTOTHROTTLE`; the names of Scrapy's settings end in the same words."""


def autothrottle(name: str, value: Any) -> Mapping[str, float] | Literal[False]:
    """Read whether delays follow latency, and the values that override Scrapy's settings."""
    found = plain(value)
    if isinstance(found, dict) or (isinstance(found, str) and found.lstrip().startswith("{")):
        return _known(name, found, _THROTTLE_READERS)
    try:
        return {} if flag(name, found) else False
    except SettingError:
        why = f"must be True, False or a dictionary with any of {', '.join(_THROTTLE_READERS)}"
        raise SettingError(name, value, why) from None


def throttle_of(own: Mapping[str, float], scrapys: Mapping[str, Any]) -> Throttle:
    """Return the AutoThrottle settings.

    Args:
        own: values of our own setting, read.
        scrapys: values of Scrapy's settings, not yet read.
    """
    read = {key: reader(f"AUTOTHROTTLE_{key.upper()}", scrapys[key]) for key, reader in _THROTTLE_READERS.items()}
    read |= own
    return Throttle(read["start_delay"], read["max_delay"], read["target_concurrency"])


def tier_weights(name: str, value: Any) -> Mapping[str, int]:
    """Read the weights of tiers."""
    found = parsed(name, plain(value), dict, 'a dictionary such as {"urgent": 8, "high": 4, "normal": 2, "low": 1}')
    return {tier: count(f"{name}[{tier!r}]", each, limit=1_000_000) for tier, each in found.items()}


byte_count = partial(count, least=0, limit=BYTES_LIMIT)

_BUDGET_READERS: Mapping[str, Reader] = {"pages": limit, "renders": limit, "bytes": byte_count, "seconds": seconds}


def budgets(name: str, value: Any) -> Mapping[str, Budget]:
    """Read budgets."""
    found = _named(name, value, 'a dictionary such as {"*": {"pages": 500}}')
    for key in found:
        if key.startswith("*."):
            raise SettingError(name, value, f"{key!r}: budget keys have no patterns; name a key, or * for all others")
    return {key: Budget(**_known(f"{name}[{key!r}]", each, _BUDGET_READERS)) for key, each in found.items()}


def part(name: str, value: Any) -> float:
    """Read a fraction above 0."""
    number = number_of(name, value, float, "must be a number above 0, at most 1")
    if not 0 < number <= 1:
        raise SettingError(name, value, "must be above 0, and at most 1")
    return number


@dataclass(frozen=True, slots=True)
class Layer:
    """One way to fetch a page.

    Args:
        name: shown in `meta`, stats and messages.
        meta: keys that it sets in the `meta` of requests.
    """

    name: str
    meta: Mapping[str, Any] = field(default_factory=dict)


def layers(name: str, value: Any) -> Sequence[Layer]:
    """Read the extraction layers, cheapest first."""
    found = parsed(
        name, split(plain(value)), (list, tuple, dict), 'a list such as ["http", {"name": "browser", "meta": {…}}]'
    )
    if isinstance(found, dict):
        read = [_layer(f"{name}[{key!r}]", {"name": key, "meta": meta}) for key, meta in found.items()]
    else:
        read = [_layer(f"{name}[{index}]", layer) for index, layer in enumerate(found)]
    if not read or len({layer.name for layer in read}) != len(read):
        raise SettingError(name, value, "must have at least one layer, with different names")
    return tuple(read)


def _layer(name: str, value: Any) -> Layer:
    if isinstance(value, str):
        return Layer(text(name, value))
    read = _known(name, value, {"name": text, "meta": _layer_meta})
    if "name" not in read:
        raise SettingError(name, value, 'needs a "name"')
    return Layer(read["name"], read.get("meta", {}))


def _layer_meta(name: str, value: Any) -> Mapping[str, Any]:
    found: Mapping[str, Any] = parsed(name, plain(value), dict, "a dictionary of meta keys")
    if not all(isinstance(key, str) for key in found):
        raise SettingError(name, value, "keys must be strings")
    if LAYER_META in found:
        raise SettingError(name, value, f"must not set {LAYER_META!r}, which is the layer's name")
    return found


_SETTINGS_OF: Mapping[str, Sequence[str]] = {
    "slots": ("PRIOQUEUE_SLOTS", *(f"PRIOQUEUE_SLOT_{what.upper()}" for what in SLOT_READERS)),
    "throttle": ("PRIOQUEUE_AUTOTHROTTLE",),
    "crawl_delay": ("PRIOQUEUE_ROBOTSTXT_CRAWL_DELAY",),
    "weights": ("PRIOQUEUE_TIER_WEIGHTS",),
    "budgets": ("PRIOQUEUE_BUDGETS",),
    "marks": ("PRIOQUEUE_HIGH_WATER", "PRIOQUEUE_PENDING_LIMIT", "PRIOQUEUE_MEMORY_HIGH_WATER"),
}
"""Settings by part of a policy; the part is set if one of them is."""


def policy_of(values: Mapping[str, Any], throttle: Throttle | None, *, obeys_robots: bool) -> Policy:
    """Return the policy that the frontier enforces.

    Args:
        values: all settings, read one by one.
        obeys_robots: whether Scrapy reads robots.txt files.

    Raises:
        SettingError: two settings contradict each other.
    """
    high, memory = values["PRIOQUEUE_HIGH_WATER"] or 0, values["PRIOQUEUE_MEMORY_HIGH_WATER"] or 0.0
    pending_limit = _pending_limit(high, values["PRIOQUEUE_PENDING_LIMIT"])
    # Always read, so that a wrong name is reported even if no mark is set.
    discovery = _discovery(values)
    if values["PRIOQUEUE_ROBOTSTXT_CRAWL_DELAY"] and not obeys_robots:
        what = "needs ROBOTSTXT_OBEY = True: no robots.txt is read otherwise"
        raise SettingError("PRIOQUEUE_ROBOTSTXT_CRAWL_DELAY", True, what)
    return Policy(
        slots=_all_slots(values),
        throttle=throttle,
        awaits_crawl_delay=bool(values["PRIOQUEUE_ROBOTSTXT_CRAWL_DELAY"]),
        weights=_weights(values),
        budgets=values["PRIOQUEUE_BUDGETS"],
        high_water=high,
        low_water=_low_water(high, values["PRIOQUEUE_LOW_WATER"]),
        pending_limit=pending_limit,
        memory_high_water=memory,
        discovery=discovery if pending_limit or memory else (),
        unset=frozenset(part for part, names in _SETTINGS_OF.items() if all(values[name] is None for name in names)),
    )


def _all_slots(values: Mapping[str, Any]) -> Mapping[str, SlotLimit]:
    found = dict(values["PRIOQUEUE_SLOTS"] or {})
    every = found.get(EVERY, SlotLimit())
    for what in SLOT_READERS:
        name = f"PRIOQUEUE_SLOT_{what.upper()}"
        if values[name] is None:
            continue
        if what in values_of(every):
            raise SettingError(name, values[name], f"is set by PRIOQUEUE_SLOTS['*'][{what!r}], too; remove one")
        every = replace(every, **{what: values[name]})
    return found if every == SlotLimit() else {**found, EVERY: every}


def _weights(values: Mapping[str, Any]) -> Sequence[int]:
    weights, tiers = values["PRIOQUEUE_TIER_WEIGHTS"], values["PRIOQUEUE_TIERS"]
    if not weights:
        return ()
    if set(weights) != set(tiers):
        why = f"must give a weight to each of PRIOQUEUE_TIERS, {list(tiers)}, and to nothing else"
        raise SettingError("PRIOQUEUE_TIER_WEIGHTS", weights, why)
    return tuple(weights[tier] for tier in tiers)


def _low_water(high: int, low: int | None) -> int:
    if low is None:
        return int(high * LOW_WATER_PART)
    if low >= high:
        raise SettingError("PRIOQUEUE_LOW_WATER", low, f"must be below PRIOQUEUE_HIGH_WATER, {high or None}")
    return low


def _pending_limit(high: int, most: int | None) -> int:
    if most is None:
        return high * PENDING_LIMIT_TIMES
    if most and most < high:
        raise SettingError("PRIOQUEUE_PENDING_LIMIT", most, f"must be at least PRIOQUEUE_HIGH_WATER, {high}")
    return most


def _discovery(values: Mapping[str, Any]) -> Sequence[int]:
    found, tiers = values["PRIOQUEUE_DISCOVERY_TIERS"], list(values["PRIOQUEUE_TIERS"])
    if found is None:
        return (len(tiers) - 1,)
    for tier in found:
        if tier not in tiers:
            raise SettingError("PRIOQUEUE_DISCOVERY_TIERS", tier, f"no such tier in PRIOQUEUE_TIERS, {tiers}")
    return tuple(sorted({tiers.index(tier) for tier in found}))
