"""Build requests of Scrapy's own class without its constructor, which would escape an escaped URL again.

This module uses private attributes of `Request`. If a Scrapy version has others, `ARE_EXACT` is false and all requests
go through the constructor.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from typing import Any

from scrapy import Request

_EMPTY_KINDS: tuple[type, ...] = (dict, list)
_NO_SCHEME_NEEDED = ("about:", "data:")


def has_scheme(url: str) -> bool:
    """Return whether the constructor accepts a URL that is already escaped."""
    return "://" in url or url.startswith(_NO_SCHEME_NEEDED)


def _state_of(request: Request) -> dict[str, Any]:
    names = [name for cls in type(request).__mro__ for name in getattr(cls, "__slots__", ())]
    slots = {name: getattr(request, name) for name in names if not name.startswith("__") and hasattr(request, name)}
    return slots | getattr(request, "__dict__", {})


DEFAULTS = _state_of(Request("https://shop.example/"))
"""Default values of all attributes except the URL, by the names that `stored_under` returns."""

_GIVEN = frozenset({"_url", "_meta", "callback", "errback", "priority", "_cb_kwargs", "dont_filter"})
_OTHERS = {name: value for name, value in DEFAULTS.items() if name not in _GIVEN}
_SHARED = [(name, value) for name, value in _OTHERS.items() if not isinstance(value, _EMPTY_KINDS)]
_OWN = [(name, type(value)) for name, value in _OTHERS.items() if isinstance(value, _EMPTY_KINDS)]


def stored_under(attribute: str) -> str:
    """Return the attribute in which a request of Scrapy's own class stores a value that it exposes as a property."""
    return f"_{attribute}" if f"_{attribute}" in DEFAULTS else attribute


def blank(
    url: str,
    callback: Callable[..., Any] | None,
    errback: Callable[..., Any] | None,
    meta: dict[str, Any],
    priority: int,
    cb_kwargs: dict[str, Any] | None,
    *,
    dont_filter: Any,
) -> Request:
    """Return a request with defaults in all other attributes; it takes ownership of the dictionaries."""
    request: Any = Request.__new__(Request)
    for name, value in _SHARED:
        setattr(request, name, value)
    for name, kind in _OWN:
        setattr(request, name, kind())
    request._url = url  # noqa: SLF001
    request._meta = meta or None  # noqa: SLF001
    request.callback = callback
    request.errback = errback
    request.priority = priority
    request._cb_kwargs = cb_kwargs or None  # noqa: SLF001
    request.dont_filter = dont_filter
    return request  # type: ignore[no-any-return]


def twin_of(request: Request) -> Request:
    """Return a copy of a request of any class; `meta`, `cb_kwargs`, headers and flags are copied, their values shared.

    The constructor isn't called, since that of a subclass may not accept its own attributes.
    """
    twin = copy(request)
    for name in ("meta", "cb_kwargs", "headers", "flags"):
        stored = stored_under(name)
        value = getattr(request, stored, None)
        if value is not None:
            setattr(twin, stored, copy(value))
    return twin


def _is_exact() -> bool:
    """Return whether `blank` builds the same request as the constructor."""
    url, meta, arguments = "https://shop.example/p/1?page=2", {"depth": 1}, {"page": 1}
    made = Request(url, print, meta=meta, priority=3, dont_filter=True, errback=repr, cb_kwargs=arguments)
    try:
        same = blank(url, print, repr, dict(meta), 3, dict(arguments), dont_filter=True)
        known = [(getattr(same, stored_under(name)), getattr(made, stored_under(name))) for name in Request.attributes]
    except AttributeError:
        return False
    has_all = _state_of(same) == _state_of(made)
    return has_all and all(type(one) is type(other) for one, other in known)


ARE_EXACT = _is_exact()
"""Whether `blank` may be used with this version of Scrapy."""
