"""Requests at random come back the same; bytes at random give a request of this spider or `DecodeError`."""

from __future__ import annotations

import sys
from datetime import timedelta, timezone
from typing import Any

import msgpack
from hypothesis import example, given
from hypothesis import strategies as st
from scrapy import FormRequest, Request, Spider
from scrapy.http import JsonRequest, XmlRpcRequest
from scrapy.http.request import NO_CALLBACK

from scrapy_prioqueue.codec import RequestCodec
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


class SearchRequest(Request):
    attributes = (*Request.attributes, "query")

    def __init__(self, *args: Any, query: Any = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.query = query


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
values = st.recursive(
    keys | st.decimals() | st.binary().map(bytearray) | st.sets(keys, max_size=3),
    lambda inner: (
        st.lists(inner, max_size=4) | st.lists(inner, max_size=3).map(tuple) | st.dictionaries(keys, inner, max_size=4)
    ),
    max_leaves=12,
)
maps = st.dictionaries(st.text(max_size=8), values, max_size=4)
urls = st.builds(
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
    """Decode, and check that whatever comes of it is harmless."""
    modules = set(sys.modules)
    try:
        request = CODEC.decode(payload)
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
def test_a_value_comes_back_with_its_type(value: Any) -> None:
    request = CODEC.decode(CODEC.encode(Request("https://shop.example", meta={"value": value})))

    assert exact(request.meta) == exact({"value": value})


@given(requests())
def test_a_request_comes_back_equal_in_every_attribute(request: Request) -> None:
    before = exact_request(request)

    payload = CODEC.encode(request)

    assert exact_request(CODEC.decode(payload)) == before
    assert exact_request(request) == before


@given(st.binary())
@example(b"\x01\x81\x00\xababout:blank")
def test_random_bytes_give_a_request_or_decode_error(payload: bytes) -> None:
    decode_or_refuse(payload)
    decode_or_refuse(b"\x01" + payload)


@given(requests(), st.data())
def test_a_mutated_payload_gives_a_request_or_decode_error(request: Request, data: st.DataObject) -> None:
    payload = bytearray(CODEC.encode(request))
    for _ in range(data.draw(st.integers(1, 4))):
        start = data.draw(st.integers(0, len(payload)))
        end = data.draw(st.integers(start, min(start + 4, len(payload))))
        payload[start:end] = data.draw(st.binary(max_size=4))

    decode_or_refuse(bytes(payload))


hostile = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text()
    | st.binary()
    | st.sampled_from(["parse_product", "expensive", "__init__", "scrapy:FormRequest", "os:system", "utf-8", "this:x"])
    | st.builds(msgpack.ExtType, st.integers(0, 24), st.binary(max_size=20)),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(lambda items: [msgpack.ExtType(1 + len(items) % 7, b""), *items])
        | st.dictionaries(st.integers(-1, 15) | st.text(max_size=4), inner, max_size=4)
    ),
    max_leaves=12,
)


@given(st.dictionaries(st.integers(0, 14), hostile))
def test_a_map_of_hostile_fields_gives_a_request_or_decode_error(fields: dict[int, Any]) -> None:
    decode_or_refuse(b"\x01" + bytes(msgpack.packb({0: "https://shop.example", **fields})))
    decode_or_refuse(b"\x01" + bytes(msgpack.packb(fields)))


@given(requests(), st.sampled_from(range(15)), hostile)
def test_a_request_with_one_hostile_field_gives_a_request_or_decode_error(
    request: Request, number: int, value: Any
) -> None:
    # Packed by hand behind the others: of two equal keys the last counts.
    packed = bytearray(CODEC.encode(request)[1:])
    packed[0] += 1
    packed += msgpack.packb(number) + msgpack.packb(value)

    decode_or_refuse(b"\x01" + bytes(packed))
