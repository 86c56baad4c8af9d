"""Attributes of a request that its class doesn't list in `attributes`.

Constructors of subclasses and middlewares set them. Scrapy's disk queues lose them.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from types import MemberDescriptorType
from typing import Any

from scrapy import Request

from scrapy_prioqueue.codec.blanks import DEFAULTS
from scrapy_prioqueue.codec.classes import can_hold, slots_of
from scrapy_prioqueue.codec.reasons import brief
from scrapy_prioqueue.errors import UnknownName

HAS_DICT = hasattr(Request("https://shop.example/"), "__dict__")
"""Whether requests of Scrapy's own class can have such attributes; since Scrapy 2.18 they can't."""


def has_others(request: Request) -> bool:
    """Return whether a request of Scrapy's own class has such attributes; only for versions where it can."""
    return len(vars(request)) > len(DEFAULTS)


def others_of(request: Request) -> dict[str, Any]:
    """Return these attributes by name."""
    cls: Any = type(request)
    known = _known(cls)
    found = {name: value for name, value in getattr(request, "__dict__", {}).items() if name not in known}
    for name, slot in _slots(cls).items():
        try:
            found[name] = slot.__get__(request)
        except AttributeError:
            continue
    return found


def is_free(request: Request, name: Any) -> bool:
    """Return whether an attribute of that name may be restored: it isn't a listed one and shadows no code."""
    cls: Any = type(request)
    if name in _slots(cls):
        return True
    return name not in _known(cls) and can_hold(cls, name) and hasattr(request, "__dict__")


def put_back(request: Request, others: Mapping[Any, Any]) -> None:
    """Set these attributes on a request.

    Raises:
        UnknownName: the request can't have one of them.
    """
    cls: Any = type(request)
    slots = _slots(cls)
    for name, value in others.items():
        if not is_free(request, name):
            raise UnknownName(f"{type(request)!r} can't have an attribute {brief(name)}; is it another version?")
        slot = slots.get(name)
        if slot is None:
            vars(request)[name] = value
        else:
            slot.__set__(request, value)


@lru_cache(maxsize=1000)
def _known(cls: Any) -> frozenset[str]:
    """Return the names under which requests of a class store their default and listed attributes."""
    return frozenset({*DEFAULTS, *cls.attributes, *(f"_{name}" for name in cls.attributes)})


@lru_cache(maxsize=1000)
def _slots(cls: Any) -> dict[str, MemberDescriptorType]:
    known = _known(cls)
    return {name: slot for name, slot in slots_of(cls).items() if name not in known}
