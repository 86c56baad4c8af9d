"""Equality that compares types, too, for tests of the codec."""

from __future__ import annotations

import enum
import struct
from collections import ChainMap, defaultdict, deque
from datetime import datetime, time
from decimal import Decimal
from time import struct_time
from types import MappingProxyType, MethodType, SimpleNamespace
from typing import Any

from scrapy import Request
from scrapy.http import Headers


def exact(value: Any) -> Any:
    """Return something that equals that of another value only if both are the same in type and content at any depth.

    NaN is the same as NaN, 0.0 not as -0.0, and the order of a dict counts.
    """
    return type(value), _content(value)


def exact_request(request: Request) -> Any:
    """Return `exact` of a request: its class and every attribute the class lists."""
    return type(request), {name: exact(getattr(request, name)) for name in type(request).attributes}


def _content(value: Any) -> Any:
    if isinstance(value, Headers):
        return value.encoding, list(dict.items(value))
    if isinstance(value, (dict, MappingProxyType)):
        factory = value.default_factory if isinstance(value, defaultdict) else None
        return factory, [(exact(key), exact(item)) for key, item in value.items()]
    if isinstance(value, struct_time):
        return tuple(value), value.tm_zone, value.tm_gmtoff
    if isinstance(value, (list, tuple)):
        return tuple(map(exact, value))
    if isinstance(value, deque):
        return value.maxlen, tuple(map(exact, value))
    if isinstance(value, ChainMap):
        return exact(value.maps)
    if isinstance(value, (set, frozenset)):
        return frozenset(map(exact, value))
    if isinstance(value, MethodType):
        return id(value.__self__), value.__func__
    return _scalar(value)


def _scalar(value: Any) -> Any:
    if isinstance(value, enum.Enum):
        return id(value)
    if type(value).__module__.startswith("tests.") or isinstance(value, SimpleNamespace):
        return _state(value)
    if isinstance(value, float):
        return struct.pack(">d", value)
    if isinstance(value, complex):
        return struct.pack(">dd", value.real, value.imag)
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, bytearray):
        return bytes(value)
    if isinstance(value, (datetime, time)):
        return value.replace(tzinfo=None).isoformat(), repr(value.tzinfo), value.fold
    return value


def _state(value: Any) -> tuple[Any, ...]:
    """Return all attributes that an object of a project has, wherever it keeps them."""
    slots = [name for base in type(value).__mro__ for name in getattr(base, "__slots__", ())]
    found = {name: getattr(value, name) for name in slots if name != "__weakref__" and hasattr(value, name)}
    found |= getattr(value, "__dict__", {})
    found.pop("_attrs_cached_hash", None)  # differs between processes
    return tuple((name, exact(item)) for name, item in sorted(found.items()))
