"""Types of the standard library that contain other values, by name: `OrderedDict`, `range`, paths and so on."""

from __future__ import annotations

import re
import time
from collections import ChainMap, Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Mapping
from datetime import timezone
from ipaddress import IPv4Address, IPv6Address
from pathlib import PosixPath, PurePosixPath, PureWindowsPath, WindowsPath
from types import MappingProxyType, SimpleNamespace
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

from scrapy_prioqueue.codec.reasons import Unstorable, brief, name_of_type
from scrapy_prioqueue.codec.zones import zone_at

MAX_PATTERNS = 1_000
"""Limit for all regular expressions of a payload together, in letters, since some take long to compile."""

_FACTORIES: Mapping[str, type] = {
    kind.__name__: kind for kind in (list, dict, set, tuple, str, bytes, int, float, bool, Counter, OrderedDict, deque)
}
_WIDE_RANGE = re.compile(r"-(?:[^\x00-\xff]|\\[uUN])")
_MAX_WIDE_RANGES = 4
_FLAGS = re.ASCII | re.IGNORECASE | re.MULTILINE | re.DOTALL | re.VERBOSE | re.UNICODE | re.LOCALE


class Standard(NamedTuple):
    """How values of a type are written and built.

    Args:
        take: returns the items to store for a value.
        make: returns the value for these items, or raises any exception.
    """

    take: Callable[[Any], list[Any]]
    make: Callable[..., Any]


def _as_dict(value: Mapping[Any, Any]) -> list[Any]:
    return [dict(value)]


def _of(kind: type, make: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a function that builds a value from stored content, which must be of that type."""

    def checked(content: Any) -> Any:
        if type(content) is not kind:
            raise TypeError(f"it is not a {kind.__name__}")
        return make(content)

    return checked


def _take_defaultdict(value: defaultdict[Any, Any]) -> list[Any]:
    factory = value.default_factory
    if factory is None:
        return [None, dict(value)]
    name = getattr(factory, "__name__", "")
    if _FACTORIES.get(name) is not factory:
        raise Unstorable(
            f"a defaultdict of {brief(factory)} can't be stored, only of a type such as list or int",
            name_of_type(value),
        )
    return [name, dict(value)]


def _make_defaultdict(factory: Any, items: Any) -> Any:
    return _of(dict, lambda found: defaultdict(None if factory is None else _FACTORIES[factory], found))(items)


def _make_pattern(pattern: Any, flags: int) -> Any:
    if type(flags) is not int or flags & ~int(_FLAGS):
        raise ValueError("there are no such flags")
    return re.compile(pattern, flags)


def cost_of(pattern: str | bytes) -> int:
    """Return the length of a pattern; wide ranges of letters count as more, since they take long to compile."""
    text = pattern if isinstance(pattern, str) else pattern.decode("latin-1")
    return len(text) + len(_WIDE_RANGE.findall(text)) * (MAX_PATTERNS // _MAX_WIDE_RANGES)


def _take_zone(value: ZoneInfo) -> list[Any]:
    if not value.key:
        raise Unstorable("a ZoneInfo without a key can't be stored", name_of_type(value))
    return [value.key]


def _take_timezone(value: timezone) -> list[Any]:
    offset, name = value.utcoffset(None), value.tzname(None)
    return [offset] if name == timezone(offset).tzname(None) else [offset, name]


def _take_text(value: Any) -> list[Any]:
    return [str(value)]


STANDARD: Mapping[type, Standard] = {
    OrderedDict: Standard(_as_dict, _of(dict, OrderedDict)),
    defaultdict: Standard(_take_defaultdict, _make_defaultdict),
    Counter: Standard(_as_dict, _of(dict, Counter)),
    MappingProxyType: Standard(_as_dict, _of(dict, MappingProxyType)),
    ChainMap: Standard(lambda value: list(value.maps), ChainMap),
    SimpleNamespace: Standard(lambda value: [dict(vars(value))], lambda items: SimpleNamespace(**items)),
    deque: Standard(lambda value: [*value, value.maxlen], lambda *items: deque(items[:-1], items[-1])),
    range: Standard(lambda value: [value.start, value.stop, value.step], range),
    time.struct_time: Standard(
        lambda value: [*value, value.tm_zone, value.tm_gmtoff], lambda *items: time.struct_time(items)
    ),
    re.Pattern: Standard(lambda value: [value.pattern, int(value.flags & _FLAGS)], _make_pattern),
    ZoneInfo: Standard(_take_zone, zone_at),
    timezone: Standard(_take_timezone, timezone),
    IPv4Address: Standard(_take_text, _of(str, IPv4Address)),
    IPv6Address: Standard(_take_text, _of(str, IPv6Address)),
    PosixPath: Standard(_take_text, _of(str, PosixPath)),
    WindowsPath: Standard(_take_text, _of(str, WindowsPath)),
    PurePosixPath: Standard(_take_text, _of(str, PurePosixPath)),
    PureWindowsPath: Standard(_take_text, _of(str, PureWindowsPath)),
}

BY_NAME: Mapping[str, Standard] = {kind.__name__: standard for kind, standard in STANDARD.items()}
"""The same types by their stored names."""
