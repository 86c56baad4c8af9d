"""Rules of a `CrawlSpider`: a request stores the index of its rule, which may be another rule in another version.

So a digest of the rule is stored, too. Its upper half covers the callback and the errback, which must be the same. Its
lower half covers `cb_kwargs` and `follow`, which distinguish rules with the same callback. The rest of a rule matters
only when links are extracted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from hashlib import blake2b
from operator import attrgetter, is_
from typing import Any

from scrapy import Spider
from scrapy.spiders import CrawlSpider

from scrapy_prioqueue.codec.reasons import brief, name_of_type
from scrapy_prioqueue.errors import UnknownName
from scrapy_prioqueue.printable import counted

RULE = "rule"
"""Key in `meta` under which a `CrawlSpider` stores the index of a request's rule."""

_NAMES = ("callback", "errback", "cb_kwargs", "follow")
_values = attrgetter(*_NAMES)
_OF_CALLBACK, _OF_ERRBACK = 1, 2
"""Whether a request's callback is the spider's `_callback`, which uses all of the rule but the errback, and whether its
errback is the spider's `_errback`, which uses only that."""

_PLAIN = frozenset({str, bytes, int, float, bool, type(None)})
_DEEPEST = 20
_HALF = 16
"""Bits of each half of a digest."""


class Rules:
    """The rules of a spider, if it is a `CrawlSpider`.

    Args:
        name_of: returns the name of a method of the spider, None if it has none.
    """

    def __init__(self, spider: Spider, name_of: Callable[[Callable[..., Any]], str | None]) -> None:
        self._spider = spider
        self._name_of = name_of
        # By index: a spider may change its rules at run time.
        self._known: dict[tuple[int, int], tuple[tuple[Any, ...], int]] = {}

    def digest(self, callback: object, errback: object, meta: Mapping[Any, Any]) -> int | None:
        """Return the digest to store for the rule of a request, None if no rule handles it."""
        parts, rules = self._parts_for(callback, errback), self._compiled()
        if not parts or rules is None or not _is_index(rule := meta[RULE], rules):
            return None
        return self._digest(rule, rules[rule], parts)

    def resolve(self, callback: object, errback: object, meta: dict[Any, Any], digest: int | None) -> None:
        """Set the index in `meta` to a rule of this spider that matches the stored digest.

        Args:
            digest: of the rule that the request comes from, None if none is stored: then the index is kept.

        Raises:
            UnknownName: the spider has no such rule.
        """
        parts, rules = self._parts_for(callback, errback), self._compiled()
        if not parts or rules is None:
            return
        rule, count = meta[RULE], len(rules)
        is_index = _is_index(rule, rules)
        if digest is None:
            if not is_index:
                raise UnknownName(f"{self._owner} has no rule {brief(rule)}, only {counted(count, 'rule')}")
            return
        # If several rules match, the one at the stored index is preferred.
        order = (rule, *range(count)) if is_index else range(count)
        for ignored in (0, _HALF):
            for index in order:
                if self._digest(index, rules[index], parts) >> ignored == digest >> ignored:
                    meta[RULE] = index
                    return
        raise UnknownName(
            f"no rule of {self._owner} has the callbacks that rule {brief(rule)} had when the request was found"
        )

    @property
    def _owner(self) -> str:
        return f"spider {brief(self._spider.name)}"

    def _parts_for(self, callback: object, errback: object) -> int:
        """Return which parts of its rule a request uses; `process_request` may have changed its callbacks."""
        spider = self._spider
        if not isinstance(spider, CrawlSpider):
            return 0
        parts = _OF_CALLBACK if callback == spider._callback else 0  # noqa: SLF001
        return parts | _OF_ERRBACK if errback == spider._errback else parts  # noqa: SLF001

    def _compiled(self) -> list[Any] | tuple[Any, ...] | None:
        # A spider with a `_compile_rules` of its own may store another type.
        rules = getattr(self._spider, "_rules", ())
        return rules if isinstance(rules, (list, tuple)) else None

    def _digest(self, index: int, rule: object, parts: int) -> int:
        try:
            values: tuple[Any, ...] = _values(rule)
        except AttributeError:  # a rule class of the user's without an errback
            values = tuple(getattr(rule, name, None) for name in _NAMES)
        known = self._known.get((index, parts))
        if known is not None and all(map(is_, known[0], values)):
            return known[1]
        callback, errback, arguments, follow = values
        names = [
            self._name(callback) if parts & _OF_CALLBACK else "",
            self._name(errback) if parts & _OF_ERRBACK else "",
        ]
        rest = [_stable(arguments or {}), bool(follow)] if parts & _OF_CALLBACK else []
        digest = _half(names) << _HALF | _half(rest)
        self._known[index, parts] = (values, digest)
        return digest

    def _name(self, callback: Any) -> str:
        if callback is None or isinstance(callback, str):
            return callback or ""
        return self._name_of(callback) or _name_of_function(callback)


def _half(parts: list[Any]) -> int:
    return int.from_bytes(blake2b(repr(parts).encode("utf-8", "surrogatepass"), digest_size=_HALF // 8).digest(), "big")


def _is_index(rule: object, rules: list[Any] | tuple[Any, ...]) -> bool:
    return isinstance(rule, int) and 0 <= rule < len(rules)


def _stable(value: Any, depth: int = 0) -> str:
    """Return a text for a value that all processes with the same code agree on; other objects give only their type."""
    kind = type(value)
    if kind in _PLAIN:
        return hex(value) if kind is int else repr(value)
    if depth < _DEEPEST:
        if kind is dict:
            return str(sorted((_stable(key, depth + 1), _stable(item, depth + 1)) for key, item in value.items()))
        if kind is list or kind is tuple:
            return str([_stable(item, depth + 1) for item in value])
        if kind is set or kind is frozenset:
            return str(sorted(_stable(item, depth + 1) for item in value))
    return _name_of_function(value)


def _name_of_function(value: Any) -> str:
    """Return the name of a function that isn't a method of the spider, or of the type of any other object."""
    name = getattr(value, "__qualname__", None)
    return f"{value.__module__}.{name}" if isinstance(name, str) else name_of_type(value)
