"""A stored request as plain data, read without a spider, for programs that show requests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from scrapy_prioqueue.codec import layouts
from scrapy_prioqueue.codec.fields import HEADER_NAMES, NAMES
from scrapy_prioqueue.codec.reasons import brief
from scrapy_prioqueue.codec.values import ValueReader
from scrapy_prioqueue.errors import DecodeError
from scrapy_prioqueue.printable import text_of

NO_CALLBACK = "NO_CALLBACK"
"""Stands for Scrapy's object of that name in place of a callback's name."""


@dataclass(frozen=True, slots=True)
class PlainRequest:
    """The stored data of a request.

    Args:
        callback: name of the method, None for the default.
        headers: by name; several values of a header are joined by commas.
        request_class: ``module:qualified.name``, None for Scrapy's own.
        attributes: those that this class adds.
        others: further attributes of the object.
        source: URL of the page on which it was found, None if unknown.
        found_s: Unix time at which it was found, in seconds; None if unknown.
        unknown: fields of a newer version, by number.
    """

    url: str
    method: str = "GET"
    callback: str | None = None
    errback: str | None = None
    priority: int = 0
    meta: Mapping[Any, Any] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    cookies: Any = None
    body: bytes = b""
    cb_kwargs: Mapping[Any, Any] = field(default_factory=dict)
    flags: Any = ()
    dont_filter: Any = False
    encoding: str = "utf-8"
    request_class: str | None = None
    attributes: Mapping[str, Any] = field(default_factory=dict)
    others: Mapping[str, Any] = field(default_factory=dict)
    source: str | None = None
    found_s: int | None = None
    unknown: Mapping[int, Any] = field(default_factory=dict)


def read_plain(payload: bytes, slot: str = "") -> PlainRequest:
    """Return the stored data of a request; nothing is imported or called.

    Args:
        slot: under which the request is stored.

    Raises:
        DecodeError: the bytes can't be read.
    """
    try:
        stored = layouts.read(payload, slot, ValueReader().read)
        named = {NAMES[number]: value for number, value in stored.items() if number in NAMES}
        unknown = {number: value for number, value in stored.items() if number not in NAMES}
        return _request(named, unknown)
    except DecodeError:
        raise
    except Exception as error:  # anyone may have written the bytes
        raise DecodeError(f"the payload can't be read: {brief(error)}") from error


def plain_or_none(payload: bytes, slot: str) -> PlainRequest | None:
    """Return the stored data of a request, None if the bytes can't be read."""
    try:
        return read_plain(payload, slot)
    except DecodeError:
        return None


def _request(named: dict[str, Any], unknown: dict[int, Any]) -> PlainRequest:
    headers = _headers(named.pop("headers", {}))
    for name in ("left out", "rule"):
        named.pop(name, None)
    source, found_s = named.pop("source", None), named.pop("found", None)
    named["callback"] = _callback(named.get("callback"))
    named["errback"] = _callback(named.get("errback"))
    return PlainRequest(
        request_class=named.pop("class", None),
        **named,
        headers=headers,
        source=headers.get("Referer") if source is True else source,
        found_s=found_s,
        unknown=unknown,
    )


def _callback(name: str | bool | None) -> str | None:
    return NO_CALLBACK if name is False else None if name is None else str(name)


def _headers(stored: Mapping[Any, Any]) -> dict[str, str]:
    found = {}
    for name, values in stored.items():
        lines = values if isinstance(values, list) else [values]
        found[text_of(HEADER_NAMES.get(name, name))] = ", ".join(map(text_of, lines))
    return found
