"""Random requests are decoded as they were; random bytes give a request of this spider or `DecodeError`."""

from __future__ import annotations

import re
import sys
from collections import OrderedDict, defaultdict, deque
from dataclasses import dataclass
from datetime import timedelta, timezone
from enum import Flag
from http import HTTPStatus
from pathlib import PurePosixPath
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import msgpack
import pytest
import scrapy
from hypothesis import assume, example, given
from hypothesis import strategies as st
from scrapy import Field, FormRequest, Request, Spider
from scrapy.http import JsonRequest, XmlRpcRequest
from scrapy.http.request import NO_CALLBACK

from scrapy_prioqueue.codec import RequestCodec, layouts
from scrapy_prioqueue.codec.detached import with_meta
from scrapy_prioqueue.codec.fields import (
    CALLBACK,
    DONT_FILTER,
    FOUND,
    HEADERS,
    META,
    PRIORITY,
    REFERER_NUMBER,
    SOURCE,
    URL,
)
from scrapy_prioqueue.codec.lineage import Found
from scrapy_prioqueue.codec.plain import read_plain
from scrapy_prioqueue.codec.values import ValueWriter
from scrapy_prioqueue.errors import DecodeError
from tests.support.exact import exact, exact_request

CALLS: list[str] = []


class Books(Spider):
    name = "books"

    def parse_product(self, response: Any) -> None:
        CALLS.append("parse_product")

    def on_error(self, failure: Any) -> None:
        CALLS.append("on_error")

    @property
    def expensive(self) -> Any:
        CALLS.append("expensive")
        return self.on_error


class Item(scrapy.Item):
    title = Field()
    price = Field()

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        CALLS.append("Item")
        super().__init__(*args, **kwargs)


@dataclass
class Book:
    title: Any

    def __post_init__(self) -> None:
        CALLS.append("Book")


class Point(NamedTuple):
    x: Any
    y: Any


class Mode(Flag):
    READ = 1
    WRITE = 2


class SearchRequest(Request):
    attributes = (*Request.attributes, "query")

    def __init__(self, *args: Any, query: Any = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.query = query
        self.__own = query


SPIDER = Books()
CODEC = RequestCodec(SPIDER)

text = st.text(st.characters(exclude_categories=()))
offsets = st.timedeltas(timedelta(hours=-23), timedelta(hours=23)).map(timezone)
zones = st.none() | st.timezones() | offsets
keys = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | text
    | st.binary()
    | st.complex_numbers()
    | st.dates()
    | st.times(timezones=zones)
    | st.datetimes(timezones=zones)
    | st.timedeltas()
    | st.uuids()
    | st.decimals().filter(lambda number: not number.is_snan()),  # which can't be hashed
    lambda inner: st.lists(inner, max_size=3).map(tuple) | st.frozensets(inner, max_size=3),
    max_leaves=5,
)
rarer = (
    st.sampled_from([*HTTPStatus, re.compile("x", re.I), Mode.READ | Mode.WRITE, urlsplit("https://a.example/b"), Book])
    | st.builds(range, st.integers(), st.integers(), st.integers(1))
    | text.filter(lambda path: "\0" not in path).map(PurePosixPath)
    | st.just(SPIDER.on_error)
)
values = st.recursive(
    keys | rarer | st.decimals() | st.binary().map(bytearray) | st.sets(keys, max_size=3),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(keys, inner, max_size=4)
        | st.dictionaries(keys, inner, max_size=3).map(OrderedDict)
        | st.dictionaries(keys, inner, max_size=3).map(lambda items: defaultdict(list, items))
        | st.lists(inner, max_size=3).map(deque)
        | st.builds(Book, inner)
        | st.builds(lambda title, price: Item(title=title, price=price), inner, inner)
        | st.builds(Point, inner, inner)
    ),
    max_leaves=12,
)
maps = st.dictionaries(st.text(max_size=8), values, max_size=4)
words = st.text("abzABZ019-._~/?=&%+:", max_size=40)
slots = st.sampled_from(["", "shop.example", "Shop.Example", "http", "é.example", "other", "/"])
plain_urls = st.builds(
    "{}{}{}{}".format,
    st.sampled_from(["https://", "http://", "HTTPS://", "ftp://", "s3://", "data:", "about:", "https:///"]),
    st.sampled_from(["shop.example", "www.shop.example", "SHOP.example", "user:pw@shop.example", "shop.example.evil"]),
    st.sampled_from(["/", ":8080/", "/p/1"]),
    words,
)
urls = plain_urls | st.builds(
    "https://{}/{}?{}".format, st.sampled_from(["shop.example", "é.example", "[::1]:80"]), st.text(), st.text()
)


@st.composite
def requests(draw: st.DrawFn) -> Request:
    """A request of any class with any attributes."""
    cls = draw(st.sampled_from([Request, Request, FormRequest, JsonRequest, XmlRpcRequest, SearchRequest]))
    arguments: dict[str, Any] = {
        "callback": st.sampled_from([None, SPIDER.parse_product, NO_CALLBACK]),
        "errback": st.sampled_from([None, SPIDER.on_error]),
        "method": st.sampled_from(["GET", "POST", "put"]),
        "headers": st.dictionaries(st.text(min_size=1, max_size=9), st.binary() | st.lists(st.binary()), max_size=3),
        "body": st.binary(),
        "cookies": maps | st.lists(maps, max_size=2),
        "meta": maps | maps.map(lambda meta: {**meta, "verbatim_url": True}),
        "encoding": st.sampled_from(["utf-8", "UTF-8", "utf-16", "cp1252"]),
        "priority": st.integers(),
        "dont_filter": st.booleans(),
        "flags": st.lists(text, max_size=2),
        "cb_kwargs": maps,
    }
    if cls is SearchRequest:
        arguments["query"] = values
    chosen = draw(st.fixed_dictionaries({}, optional=arguments))
    try:
        return cls(draw(urls), **chosen)
    except UnicodeEncodeError:
        # Not every text can be written in every encoding.
        return cls(draw(urls), **{**chosen, "encoding": "utf-8", "headers": {}})


def decode_or_refuse(payload: bytes) -> Request | None:
    """Decode, and check that the result is harmless."""
    modules = set(sys.modules)
    CALLS.clear()
    try:
        request = CODEC.decode(payload, "shop.example")
    except DecodeError:
        request = None
    assert CALLS == []
    assert {name for name in set(sys.modules) - modules if not name.startswith(("encodings", "tzdata"))} == set()
    if request is not None:
        assert isinstance(request, Request)
        for function in (request.callback, request.errback):
            assert function in (None, NO_CALLBACK) or getattr(function, "__self__", None) in (SPIDER, Books)
    return request


@given(values)
def test_a_value_is_restored_with_its_type(value: Any) -> None:
    request = CODEC.decode(CODEC.encode(Request("https://shop.example", meta={"value": value})))

    assert exact(request.meta) == exact({"value": value})


@st.composite
def links(draw: st.DrawFn) -> tuple[Request, Found]:
    """A request as crawls have many of them: nearly all of it has a short form."""
    url = draw(plain_urls)
    near = st.builds("{}{}".format, st.integers(0, len(url)).map(lambda length: url[:length]), words)
    referers = near | plain_urls | text | st.just(f"{url}{'/long' * 60}")
    request = Request("https://shop.example", meta={"verbatim_url": True})
    request._set_url(draw(st.just(url) | referers.map("://".__add__)))  # noqa: SLF001
    del request.meta["verbatim_url"]
    pairs: st.SearchStrategy[tuple[Any, Any]] = st.sampled_from(
        [("depth", 3), ("depth", 256), ("depth", True), ("download_slot", "shop.example")]
    )
    more: st.SearchStrategy[tuple[Any, Any]] = st.tuples(
        st.sampled_from(["rule", "link_text", "mine", 0, 127, True]), st.integers(0, 9) | st.text()
    )
    request.meta.update(draw(st.lists(pairs | more, max_size=3)))
    request.priority = draw(st.integers(-129, 129))
    request.dont_filter = draw(st.booleans())
    request.callback = draw(st.sampled_from([None, NO_CALLBACK, SPIDER.parse_product, SPIDER.parse]))
    names = draw(st.lists(st.sampled_from(["A", "Referer", "Z"]), unique=True))
    referer = draw(referers)
    for name in names:
        request.headers[name] = referer.encode("utf-8", "surrogatepass")
    source = draw(st.just(referer) | referers | st.none())
    return request, Found(source or None, draw(st.none() | st.integers(-1, 2**33)))


@st.composite
def common_links(draw: st.DrawFn) -> tuple[Request, Found]:
    """A request that is read in the quick way."""
    start = draw(st.sampled_from(["https://shop.example/", "http://shop.example/"]))
    referer = draw(st.none() | st.sampled_from([start, "https://other.example/ä?b"]))
    request = Request(
        f"{start}p/{draw(st.integers(0, 10**9))}{draw(st.sampled_from(['', '?%C3%A4=1#x', '/UPPER']))}",
        draw(st.sampled_from([None, SPIDER.parse_product, SPIDER.parse])),
        meta=draw(st.just({}) | st.builds(dict, depth=st.integers(0, 255))),
        headers={"Referer": referer} if referer else None,
        priority=draw(st.integers(-128, 127)),
        dont_filter=draw(st.booleans()),
    )
    return request, Found(referer if draw(st.booleans()) else None, draw(st.none() | st.integers(1_700_000_000, 2**31)))


@given(requests(), slots)
def test_a_request_is_restored_equal_in_every_attribute(request: Request, slot: str) -> None:
    before = exact_request(request)

    payload = CODEC.encode(request, slot)

    assert exact_request(CODEC.decode(payload, slot)) == before
    assert exact_request(request) == before


@st.composite
def graphs(draw: st.DrawFn) -> tuple[dict[str, Any], dict[str, Any], Any]:
    """Values for `meta`, `cb_kwargs` and another attribute, whose mutable objects occur in any of them."""
    known: list[Any] = [draw(st.integers())]
    inner = st.deferred(lambda: st.sampled_from(known))
    some = st.lists(inner, max_size=3)
    for _ in range(draw(st.integers(1, 6))):
        made = draw(
            some
            | some.map(tuple)
            | st.dictionaries(st.text(max_size=3) | st.dates(), inner, max_size=3)
            | some.map(lambda items: OrderedDict(enumerate(items)))
            | some.map(deque)
            | st.sets(st.integers(), max_size=2)
            | st.binary(max_size=2).map(bytearray)
            | st.builds(Book, inner)
            | st.builds(lambda title: Item(title=title), inner)
        )
        known.append(made)
    named = st.dictionaries(st.text(max_size=3), inner, max_size=3)
    return draw(named), draw(named), draw(inner)


def identities(value: Any, known: dict[int, int], kept: list[Any]) -> Any:
    """Return a value as nested lists in which each mutable object has a number, the same wherever it occurs."""
    kept.append(value)
    if isinstance(value, (Book, Item)):
        inner: Any = [value.title if isinstance(value, Book) else value["title"]]
    elif isinstance(value, dict):
        inner = list(value.values())
    else:
        inner = value if isinstance(value, (list, tuple, deque)) else []
    number = None if isinstance(value, (int, tuple)) else known.setdefault(id(value), len(known))
    return [number, type(value), *(identities(item, known, kept) for item in inner)]


@given(graphs(), slots)
def test_objects_keep_their_identity_within_a_request(
    graph: tuple[dict[str, Any], dict[str, Any], Any], slot: str
) -> None:
    meta, cb_kwargs, query = graph
    request = SearchRequest("https://shop.example/", meta=meta, cb_kwargs=cb_kwargs, query=query)

    payload = CODEC.encode(request, slot)

    found: Any
    for found in (CODEC.decode(payload, slot), CODEC.decode(with_meta(payload, slot, {"other": 1}), slot)):
        found.meta.pop("other", None)
        assert exact_request(found) == exact_request(request)
        ways = [[*each.meta.values(), each.cb_kwargs, each.query] for each in (request, found)]
        assert identities(ways[0], {}, []) == identities(ways[1], {}, [])


@example((Request("https://shop.example/"), Found(source="\ud800")), "")
@given(links() | common_links(), slots)
def test_a_link_is_restored_in_its_slot_with_how_it_was_found(link: tuple[Request, Found], slot: str) -> None:
    request, found = link
    before = exact_request(request)

    payload = CODEC.encode(request, slot, found=found)

    decoded, its_found = CODEC.decode_found(payload, slot)
    assert (exact_request(decoded), its_found) == (before, found)
    plain = read_plain(payload, slot)
    assert (plain.url, plain.meta, plain.priority, plain.found_s) == (
        *(request.url, request.meta, request.priority),
        found.at_s,
    )


@given(common_links(), st.data())
def test_a_payload_is_read_quickly_as_it_is_thoroughly(link: tuple[Request, Found], data: st.DataObject) -> None:
    slot = "shop.example"
    changed = bytearray(CODEC.encode(link[0], slot, found=link[1]))
    for _ in range(data.draw(st.integers(0, 2))):
        changed[data.draw(st.integers(0, len(changed) - 1))] = data.draw(st.integers(0, 255))
    payload = bytes(changed)
    try:
        usual = layouts.read_usual(payload, slot)
    except Exception:
        with pytest.raises(DecodeError):
            CODEC.decode(payload, slot)
        return
    assume(usual is not None)
    assert usual is not None

    url, callback, depth, priority, referer, is_source, found_s, dont_filter = usual
    told = {
        CALLBACK.number: callback,
        META.number: None if depth is None else {"depth": depth},
        PRIORITY.number: priority if payload[1] & 0x80 else None,
        HEADERS.number: None if referer is None else {REFERER_NUMBER: referer.encode()},
        SOURCE.number: is_source or None,
        FOUND.number: found_s,
        DONT_FILTER.number: dont_filter or None,
    }
    fields = {number: value for number, value in told.items() if value is not None}
    assert layouts.read(payload, slot, _no_map) == {URL.number: url, **fields}


def _no_map(packed: bytes) -> None:
    raise AssertionError(packed)


@given(st.binary())
@example(b"\x01\x81\x00\xababout:blank")
def test_random_bytes_give_a_request_or_decode_error(payload: bytes) -> None:
    for layout in (b"", b"\x01", b"\x03", b"\x04"):
        decode_or_refuse(layout + payload)


@given(requests(), st.data())
def test_a_mutated_payload_gives_a_request_or_decode_error(request: Request, data: st.DataObject) -> None:
    payload = bytearray(CODEC.encode(request))
    for _ in range(data.draw(st.integers(1, 4))):
        start = data.draw(st.integers(0, len(payload)))
        end = data.draw(st.integers(start, min(start + 4, len(payload))))
        payload[start:end] = data.draw(st.binary(max_size=4))

    decode_or_refuse(bytes(payload))


NAMES = [
    *("parse_product", "expensive", "__init__", "scrapy:FormRequest", "os:system", "utf-8", "this:x", "scrapy:Item"),
    *(f"{__name__}:{cls.__qualname__}" for cls in (Item, Book, Point, Mode, Books, SearchRequest)),
    *("http:HTTPStatus", "OK", "READ", "title", "OrderedDict", "defaultdict", "deque", "range", "Pattern", "list"),
]
marks = st.integers(1, 13)
hostile = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text()
    | st.binary()
    | st.sampled_from(NAMES)
    | st.builds(msgpack.ExtType, st.integers(0, 24), st.binary(max_size=20) | st.sampled_from(NAMES).map(str.encode)),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.builds(lambda code, items: [msgpack.ExtType(code, b""), *items], marks, st.lists(inner, max_size=4))
        | st.builds(
            lambda code, name, items: [msgpack.ExtType(code, b""), name, *items],
            st.integers(8, 11),
            st.sampled_from(NAMES),
            st.lists(inner, max_size=3),
        )
        | st.dictionaries(st.integers(-1, 15) | st.text(max_size=4) | st.sampled_from(NAMES), inner, max_size=4)
    ),
    max_leaves=12,
)


@given(st.dictionaries(st.integers(0, 19), hostile))
def test_a_map_of_hostile_fields_gives_a_request_or_decode_error(fields: dict[int, Any]) -> None:
    decode_or_refuse(b"\x01" + bytes(msgpack.packb({0: "https://shop.example", **fields})))
    decode_or_refuse(b"\x01" + bytes(msgpack.packb(fields)))


@given(requests(), st.sampled_from(range(20)), hostile)
def test_a_request_with_one_hostile_field_gives_a_request_or_decode_error(
    request: Request, number: int, value: Any
) -> None:
    packed = bytes(ValueWriter().pack(CODEC.fields(request)))
    # Packed by hand behind the others: of two equal keys the last counts.
    packed = bytes((packed[0] + 1,)) + packed[1:] + msgpack.packb(number) + msgpack.packb(value)

    decode_or_refuse(b"\x01" + packed)
    decode_or_refuse(b"\x14\x03\xff" + len(packed).to_bytes(4, "big") + packed + b"\n")


@given(plain_urls, slots)
@example("https://shop.example", "shop.example")
def test_a_payload_has_a_trace_of_its_url(url: str, slot: str) -> None:
    request = Request(url, SPIDER.parse_product, meta={"depth": 1})
    rest = request.url.partition("://")[2]
    assume(not rest.startswith(slot) or slot in ("", urlsplit(request.url).hostname))

    payload = CODEC.encode(request, slot)

    assert any(run in payload for run in layouts.traces(request.url))
    as_map = b"\x01" + bytes(ValueWriter().pack(CODEC.fields(request)))
    assert any(run in as_map for run in layouts.traces(request.url))
