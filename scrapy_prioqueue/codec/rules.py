"""Rules of a `CrawlSpider`: a request names its rule by an index, which stands for another one in other versions.

So a digest of what the rule does with a page is stored, too: its callback and errback, cb_kwargs and follow.
What else a rule has matters only when links are extracted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from hashlib import blake2b
from operator import attrgetter, is_
from types import CodeType, FunctionType, MethodType
from typing import Any

from scrapy import Spider
from scrapy.spiders import CrawlSpider

from scrapy_prioqueue.codec.reasons import brief, name_of_class, name_of_type
from scrapy_prioqueue.errors import UnknownName

RULE = "rule"
"""Key in `meta` under which a `CrawlSpider` keeps the index of the rule that a request comes from."""

_NAMES = ("callback", "cb_kwargs", "follow", "errback")
_values = attrgetter(*_NAMES)
_OF_CALLBACK, _OF_ERRBACK = 0b0111, 0b1000
"""Which of these the spider's `_callback` and `_errback` look at."""

_PLAIN = frozenset({str, bytes, float, bool, type(None)})
_DEEPEST = 20


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
        """Return what is stored of the rule of a request, None if no rule handles it."""
        parts, rules = self._parts_for(callback, errback), self._compiled()
        if not parts or rules is None or not _is_index(rule := meta[RULE], rules):
            return None
        return self._digest(rule, rules[rule], parts)

    def settle(self, callback: object, errback: object, meta: dict[Any, Any], digest: int | None) -> None:
        """Set the index in `meta` to that of a rule which handles the request as the one did that it comes from.

        Args:
            digest: what is stored of that one, None if nothing is: then the index counts.

        Raises:
            UnknownName: the spider has no such rule.
        """
        parts, rules = self._parts_for(callback, errback), self._compiled()
        if not parts or rules is None:
            return
        rule = meta[RULE]
        if _is_index(rule, rules) and (digest is None or self._digest(rule, rules[rule], parts) == digest):
            return
        owner = f"spider {brief(self._spider.name)}"
        if digest is None:
            raise UnknownName(f"rule {brief(rule)} is none of the {len(rules)} rules of {owner}")
        for index, other in enumerate(rules):
            if self._digest(index, other, parts) == digest:
                meta[RULE] = index
                return
        raise UnknownName(
            f"no rule of {owner} does with a page what rule {brief(rule)} did where the request was found"
            f" ({', '.join(_names(parts))})"
        )

    def _parts_for(self, callback: object, errback: object) -> int:
        """Return what of its rule a request depends on; `process_request` may have changed its callbacks."""
        spider = self._spider
        if not isinstance(spider, CrawlSpider):
            return 0
        parts = _OF_CALLBACK if callback == spider._callback else 0  # noqa: SLF001
        return parts | _OF_ERRBACK if errback == spider._errback else parts  # noqa: SLF001

    def _compiled(self) -> list[Any] | tuple[Any, ...] | None:
        # A spider with a `_compile_rules` of its own may keep something else.
        rules = getattr(self._spider, "_rules", ())
        return rules if isinstance(rules, (list, tuple)) else None

    def _digest(self, index: int, rule: object, parts: int) -> int:
        try:
            values: tuple[Any, ...] = _values(rule)
        except AttributeError:  # a class of the user's that has no errback
            values = tuple(getattr(rule, name, None) for name in _NAMES)
        known = self._known.get((index, parts))
        if known is not None and all(map(is_, known[0], values)):
            return known[1]
        named = dict(zip(_NAMES, values, strict=True))
        texts = [self._text(name, named[name]) for name in _names(parts)]
        digest = int.from_bytes(blake2b(repr(texts).encode("utf-8", "surrogatepass"), digest_size=4).digest(), "big")
        self._known[index, parts] = (values, digest)
        return digest

    def _text(self, part: str, value: Any) -> str:
        if part == "cb_kwargs":
            return _stable(value or {})
        if part == "follow":
            return str(bool(value))
        name = value if value is None or isinstance(value, str) else self._name_of(value)
        return name or _stable(value)


def _names(parts: int) -> list[str]:
    return [name for bit, name in enumerate(_NAMES) if parts & 1 << bit]


def _is_index(rule: object, rules: list[Any] | tuple[Any, ...]) -> bool:
    return isinstance(rule, int) and 0 <= rule < len(rules)


def _stable(value: Any, depth: int = 0) -> str:
    """Return a text that is the same in each process that runs the same code, and mostly another for other values."""
    kind = type(value)
    if kind in _PLAIN:
        return repr(value)
    if kind is int:
        return hex(value)
    if isinstance(value, type):
        return name_of_class(value)
    if depth < _DEEPEST:
        if kind is dict:
            return str(sorted((_stable(key, depth + 1), _stable(item, depth + 1)) for key, item in value.items()))
        if kind is list or kind is tuple:
            return str([_stable(item, depth + 1) for item in value])
        if kind is set or kind is frozenset:
            return str(sorted(_stable(item, depth + 1) for item in value))
        if kind is partial:
            return str([_stable(item, depth + 1) for item in (value.func, value.args, value.keywords)])
    if kind is MethodType:
        value = value.__func__
    return _stable_function(value) if type(value) is FunctionType else name_of_type(value)


def _stable_function(function: FunctionType) -> str:
    """Return the same for a function: several lambdas, and what one function returns several times, share a name."""
    closed = [_content(cell) for cell in function.__closure__ or ()]
    values = [
        value for value in (*(function.__defaults__ or ()), *closed) if type(value) in _PLAIN or type(value) is int
    ]
    words = sorted(set(_words(function.__code__))) if function.__name__ == "<lambda>" else []
    return str([function.__module__, function.__qualname__, *map(_stable, values), *words])


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # it is empty yet
        return None


def _words(code: CodeType) -> Iterator[str]:
    """Yield the names and texts in some code, which all versions of Python compile alike."""
    yield from (*code.co_names, *code.co_varnames, *code.co_freevars)
    todo = list(code.co_consts)
    while todo:
        constant = todo.pop()
        if isinstance(constant, CodeType):
            yield from _words(constant)
        elif isinstance(constant, tuple):
            todo.extend(constant)
        elif isinstance(constant, str) and "<locals>" not in constant:
            yield constant
