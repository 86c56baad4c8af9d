"""Parses entries of a seeds key: a URL, or a JSON object that describes a request. Nothing in it is executed."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlsplit

from scrapy import Request, Spider

from scrapy_prioqueue.codec.names import Callbacks
from scrapy_prioqueue.codec.reasons import brief
from scrapy_prioqueue.errors import SeedError
from scrapy_prioqueue.hints import unknown_names
from scrapy_prioqueue.queues.meta import rejection_of_meta
from scrapy_prioqueue.tiers import TIER_META

SCHEMES = ("http", "https")
"""Allowed schemes. With others, above all `file`, anyone who may push could read files of this machine."""

_OTHERS = ("builtins", "scrapy", __name__.partition(".")[0])
"""Packages whose classes aren't the user's spiders."""

_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_METHOD = re.compile(r"[A-Za-z]+")


def request_from_seed(data: bytes, spider: Spider) -> Request:
    """Return the request that an entry describes.

    Args:
        data: as it was pushed: a URL, or a JSON object with `url` and any of the other fields.
        spider: has the callbacks.

    Raises:
        SeedError: the entry is invalid; it says why.
    """
    try:
        text = data.decode().strip()
    except UnicodeDecodeError as error:
        raise SeedError(f"not UTF-8: {error}") from None
    if not text.startswith("{"):
        return _request({"url": text}, spider)
    try:
        fields = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise SeedError(f"begins like a JSON object, but is not one: {error}") from None
    return _request(fields, spider)


def _request(fields: Mapping[str, Any], spider: Spider) -> Request:
    unknown = [name for name in fields if name not in _FIELDS]
    if unknown:
        raise SeedError(unknown_names(unknown, _FIELDS))
    if "url" not in fields:
        raise SeedError("has no url")
    arguments = {name: _FIELDS[name](name, value) for name, value in fields.items() if value is not None}
    if "url" not in arguments:
        raise SeedError("url is null")
    if "callback" in arguments:
        arguments["callback"] = _method_of(spider, arguments["callback"])
    rejection = rejection_of_meta(arguments.get("meta", {}))
    if rejection is not None:
        raise SeedError(rejection)
    tier = arguments.pop("tier", None)
    if tier is not None:
        arguments["meta"] = {**arguments.get("meta", {}), TIER_META: tier}
    try:
        return Request(**arguments)
    except (TypeError, ValueError) as error:
        raise SeedError(f"can't be made into a request: {error}") from None


def _method_of(spider: Spider, name: str) -> Callable[..., Any]:
    method = Callbacks(spider).find(name) if _is_own(spider, name) else None
    if method is None:
        raise SeedError(
            f"callback {brief(name)} is not a public method of spider {spider.name!r} that can be a callback"
        )
    return method


def _is_own(spider: Spider, name: str) -> bool:
    """Return whether a class of the user's spider defines this public method, so that it is meant to be called."""
    owner = next((kind for kind in type(spider).__mro__ if name in vars(kind)), object)
    return not name.startswith("_") and owner.__module__.partition(".")[0] not in _OTHERS


def checked_url(name: str, value: Any) -> str:
    """Check and return a URL from another program.

    Raises:
        SeedError: it isn't a URL that may be fetched.
    """
    url = _text(name, value)
    if _CONTROL.search(url):
        raise SeedError(f"{name} {brief(url)} holds a line break or another control character; push one URL per entry")
    try:
        parts = urlsplit(url)
        scheme, host = parts.scheme.lower(), parts.hostname
    except ValueError as error:
        raise SeedError(f"{name} {brief(url)} is not a URL: {error}") from None
    if scheme not in SCHEMES or not host:
        raise SeedError(f"{name} {brief(url)} must begin with {' or '.join(f'{known}://' for known in SCHEMES)}")
    return url


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise SeedError(f"{name} must be a string, not {brief(value)}")
    return value


def _http_method(name: str, value: Any) -> str:
    if not _METHOD.fullmatch(_text(name, value)):
        raise SeedError(f"{name} {brief(value)} is not an HTTP method")
    return str(value)


def _mapping(name: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise SeedError(f"{name} must be an object, not {brief(value)}")
    return value


def _headers(name: str, value: Any) -> dict[str, Any]:
    for header, content in _mapping(name, value).items():
        if not all(isinstance(part, str) for part in (content if isinstance(content, list) else [content])):
            raise SeedError(f"{name}[{brief(header)}] must be a string or a list of strings, not {brief(content)}")
    return dict(value)


def _integer(name: str, value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise SeedError(f"{name} must be an integer, not {brief(value)}")
    return value


def _flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise SeedError(f"{name} must be true or false, not {brief(value)}")
    return value


_FIELDS: Mapping[str, Callable[[str, Any], Any]] = {
    "url": checked_url,
    "method": _http_method,
    "headers": _headers,
    "body": _text,
    "meta": _mapping,
    "cb_kwargs": _mapping,
    "tier": _text,
    "priority": _integer,
    "callback": _text,
    "dont_filter": _flag,
}
