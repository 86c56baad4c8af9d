"""Requests that are built without their constructor."""

from __future__ import annotations

from typing import Any

import pytest
from scrapy import Request

from scrapy_prioqueue.codec.blanks import ARE_EXACT, blank, stored_under

URL = "https://shop.example/?q=%C3%A9"
NAMES = (*Request.attributes, "dont_filter")


def made(meta: dict[str, Any] | None = None) -> Request:
    return blank(URL, None, None, meta or {}, 0, None, dont_filter=False)


def test_every_supported_scrapy_has_them() -> None:
    assert ARE_EXACT


def test_they_have_what_the_constructor_gives() -> None:
    arguments = {"page": 1}
    same = Request(URL, print, meta={"depth": 1}, priority=3, errback=repr, cb_kwargs=arguments, dont_filter=True)
    other = blank(URL, print, repr, {"depth": 1}, 3, dict(arguments), dont_filter=True)
    assert type(other) is Request
    for name in NAMES:
        assert getattr(other, name) == getattr(same, name), name
        assert type(getattr(other, name)) is type(getattr(same, name)), name


def test_two_share_nothing_that_can_be_changed() -> None:
    one, other = made(), made()
    one.meta["depth"] = one.cb_kwargs["page"] = 1
    one.headers["Accept"] = "text/html"
    one.flags.append("cached")
    one.cookies["session"] = "1"  # type: ignore[call-overload]
    untouched = Request(URL)
    for name in NAMES:
        assert getattr(other, name) == getattr(untouched, name), name


@pytest.mark.parametrize("name", NAMES)
def test_values_that_prevent_storing_a_request_are_found(name: str) -> None:
    request = Request(URL, meta={"depth": 1}, headers={"Accept": "text/html"}, flags=["one"], cookies={"a": "b"})
    assert (getattr(request, stored_under(name)) or None) == (getattr(request, name) or None)
