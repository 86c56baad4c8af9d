"""Reads budgets: their caps, where these were set, and the use; nothing is changed here."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from scrapy_prioqueue.frontier.labels import label_of
from scrapy_prioqueue.frontier.policy import EVERY, Budget
from scrapy_prioqueue.frontier.redis.keys import Keys
from scrapy_prioqueue.frontier.redis.link import Link
from scrapy_prioqueue.frontier.redis.operators.limits import OPERATOR
from scrapy_prioqueue.frontier.redis.wire import decoded, encoded, pieces

CAPS = tuple(each.name for each in fields(Budget))
"""What a budget may limit."""

SCAN_COUNT = 1000
KEYS_PER_CALL = 500

SCAN_LIMIT = 20_000
"""Number of fields of the use that a summary reads; with more, it is a sample."""


@dataclass(frozen=True, slots=True)
class Cap:
    """The cap on one kind of cost.

    Args:
        pattern: the key of the entry that sets it, `*` for the entry about all.
    """

    value: float
    source: Literal["operator", "settings"]
    pattern: str


@dataclass(frozen=True, slots=True)
class BudgetFound:
    """A budget key with its use and its caps.

    Args:
        used: by kind of cost.
        caps: likewise; without unlimited ones.
        over: number of requests given up because they didn't fit.
    """

    key: str
    used: Mapping[str, float]
    caps: Mapping[str, Cap] = field(default_factory=dict)
    over: int = 0

    @property
    def nearest(self) -> tuple[str, float] | None:
        """The cost nearest to its cap, and the used part of that; None without caps."""
        parts = [(what, self.used[what] / cap.value if cap.value else 1.0) for what, cap in self.caps.items()]
        return max(parts, key=lambda part: part[1]) if parts else None

    def exceeded(self, *, is_rendered: bool) -> str | None:
        """Return the exhausted cost that a request doesn't fit, None if it fits."""
        for what, cap in self.caps.items():
            if self.used[what] >= cap.value and (what != "renders" or is_rendered):
                return what
        return None


@dataclass(frozen=True, slots=True)
class BudgetSummary:
    """All budget keys together.

    Args:
        keys: number of keys with use.
        nearest: the keys nearest to their caps.
        over: number of requests given up.
        is_sampled: there are more keys than were read.
    """

    keys: int = 0
    nearest: Sequence[BudgetFound] = ()
    over: int = 0
    is_sampled: bool = False


class BudgetReader:
    """Reads the budgets of one frontier."""

    def __init__(self, link: Link, keys: Keys) -> None:
        self._link = link
        self._keys = keys

    def all(self) -> Sequence[BudgetFound]:
        """Return every key that has use or caps of its own; those nearest to their caps first."""
        used, _ = self._used(None)
        entries = self._entries()
        named = {name.removeprefix(OPERATOR) for name in entries} - {EVERY}
        return _sorted(_found(key, used.get(key, {}), entries) for key in used.keys() | named)

    def of(self, keys: Iterable[str]) -> Sequence[BudgetFound]:
        """Return these keys, used or not."""
        entries, found = self._entries(), list[BudgetFound]()
        names = (*CAPS[:-1], "time_ms", "over")
        for part in pieces(keys, KEYS_PER_CALL):
            wanted = [f"{name}:".encode() + encoded(key) for key in part for name in names]
            (values,) = self._link.pipe(("HMGET", self._keys.of("used"), *wanted))
            for at, key in enumerate(part):
                used = dict(zip(names, values[at * len(names) : (at + 1) * len(names)], strict=True))
                found.append(_found(key, {name: float(value or 0) for name, value in used.items()}, entries))
        return found

    def of_payload(self, payload: bytes) -> tuple[Sequence[BudgetFound], bool]:
        """Return the budgets of a request, from narrow to wide, and whether it is rendered."""
        label = label_of(payload)
        return (self.of(label.keys), label.is_rendered) if label else ((), False)

    def summary(self, nearest: int) -> BudgetSummary:
        """Return the number of keys, and the `nearest` ones to their caps."""
        used, is_sampled = self._used(SCAN_LIMIT)
        entries = self._entries()
        found = _sorted(_found(key, values, entries) for key, values in used.items())
        capped = [budget for budget in found[:nearest] if budget.nearest]
        return BudgetSummary(len(found), capped, sum(budget.over for budget in found), is_sampled)

    def _entries(self) -> Mapping[str, Mapping[str, Any]]:
        (found,) = self._link.pipe(("HGETALL", self._keys.of("budgets")))
        return {decoded(name): json.loads(value) for name, value in found.items()}

    def _used(self, limit: int | None) -> tuple[dict[str, dict[str, float]], bool]:
        used: dict[str, dict[str, float]] = {}
        seen = 0
        for part in self._link.pages("HSCAN", self._keys.of("used"), SCAN_COUNT):
            if limit is not None and seen >= limit:
                return used, True
            for name, value in part.items():
                what, _, key = name.partition(b":")
                used.setdefault(decoded(key), {})[what.decode()] = float(value)
            seen += len(part)
        return used, False


def _found(key: str, values: Mapping[str, float], entries: Mapping[str, Mapping[str, Any]]) -> BudgetFound:
    used: dict[str, float] = {what: int(values.get(what, 0)) for what in CAPS[:-1]}
    used["seconds"] = values.get("time_ms", 0) / 1000
    caps = {what: cap for what in CAPS if (cap := _cap(entries, key, what)) is not None}
    return BudgetFound(key, used, caps, int(values.get("over", 0)))


def _cap(entries: Mapping[str, Mapping[str, Any]], key: str, what: str) -> Cap | None:
    for name in (OPERATOR + key, key, OPERATOR + EVERY, EVERY):
        value = entries.get(name, {}).get(what)
        if value is not None:
            is_operators = name.startswith(OPERATOR)
            return Cap(value, "operator" if is_operators else "settings", name.removeprefix(OPERATOR))
    return None


def _sorted(found: Iterable[BudgetFound]) -> Sequence[BudgetFound]:
    return sorted(found, key=lambda budget: (-(budget.nearest or ("", -1.0))[1], budget.key))
