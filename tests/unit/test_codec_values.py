"""Values inside a request: which come back, each with its type, and which are refused and how."""

from __future__ import annotations

import threading
from collections import OrderedDict, defaultdict, namedtuple
from datetime import date, datetime, time, timedelta, timezone, tzinfo
from decimal import Decimal
from enum import IntEnum
from pathlib import Path
from types import MappingProxyType
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

import msgpack
import pytest
from parsel import Selector
from scrapy import Request, Spider
from scrapy.http import Headers

from scrapy_prioqueue.codec import RequestCodec
from scrapy_prioqueue.codec.values import MAX_DEPTH
from scrapy_prioqueue.errors import EncodeError
from tests.support.exact import exact

URL = "https://shop.example/p/1"
PARIS = ZoneInfo("Europe/Paris")

Point = namedtuple("Point", "x y")


class Level(IntEnum):
    HIGH = 2


class Label(str):
    pass


class Moment(datetime):
    pass


class Zone(tzinfo):
    def utcoffset(self, moment: datetime | None) -> timedelta:
        return timedelta(hours=1)

    def dst(self, moment: datetime | None) -> None: ...

    def tzname(self, moment: datetime | None) -> str:
        return "here"


@pytest.fixture
def codec() -> RequestCodec:
    return RequestCodec(Spider("books"))


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        1,
        1.0,
        0.0,
        -0.0,
        float("nan"),
        float("-inf"),
        5e-324,
        2**63 - 1,
        -(2**63),
        2**64 - 1,
        2**64,
        -(2**63) - 1,
        127 << 120,
        255 << 120,
        -(128 << 120),
        10**5000,
        complex(-0.0, float("nan")),
        "",
        "naïve ☃ \U0001f600",
        "\ud800 alone \udfff",
        "\ud83d\ude00",
        b"",
        b"\x00\xff",
        bytearray(b"\x00\xff"),
        [],
        (),
        (1,),
        [(1, [2, (3, {4: (5,)})])],
        set(),
        {1, "1", b"1", (1, "1"), frozenset({1})},
        frozenset(),
        frozenset({(1, 2), None}),
        {},
        {"b": 1, "a": 2},
        {1: "int", "1": "str", b"1": "bytes", None: "none", 1.5: "float", False: "bool"},
        {(1, (2, "x")): "tuple", frozenset({3}): "frozenset", 2**70: "big", (2**70,): "big inside"},
        {date(2024, 2, 29): 1, UUID(int=7): 2, Decimal("1.10"): 3, timedelta(1): 4},
        {float("nan"): 1},
        date.min,
        date(2024, 2, 29),
        time(1, 2, 3, 4),
        time(1, 2, fold=1),
        time(1, 2, tzinfo=timezone.utc),
        time(1, 2, tzinfo=PARIS),
        datetime(2024, 2, 29, 1, 2, 3, 4),
        datetime(2024, 2, 29, fold=1),
        datetime.min,
        datetime.max,
        datetime(2024, 2, 29, tzinfo=timezone.utc),
        datetime(2024, 2, 29, tzinfo=timezone(timedelta(hours=-5, minutes=-30, seconds=-1, microseconds=-7))),
        datetime(2024, 10, 27, 2, 30, tzinfo=PARIS),
        datetime(2024, 10, 27, 2, 30, tzinfo=PARIS, fold=1),
        datetime(2024, 3, 31, 2, 30, tzinfo=PARIS, fold=1),
        datetime(2024, 2, 29, tzinfo=ZoneInfo("UTC")),
        datetime(2024, 2, 29, tzinfo=ZoneInfo("America/Argentina/Buenos_Aires")),
        timedelta.min,
        timedelta.max,
        timedelta(days=-1, microseconds=1),
        Decimal("1.10"),
        Decimal("-0"),
        Decimal("0E+3"),
        Decimal("-Infinity"),
        Decimal("NaN"),
        Decimal("-sNaN123"),
        Decimal(10**100) / 3,
        UUID("12345678-1234-5678-1234-567812345678"),
        nested(MAX_DEPTH - 1),
    ],
    ids=lambda value: f"{type(value).__name__}",
)
@pytest.mark.parametrize("where", ["meta", "cb_kwargs"])
def test_plain_values_keep_their_type_at_any_depth(codec: RequestCodec, where: str, value: Any) -> None:
    held: dict[str, Any] = {"value": value, "inside": [{"deeper": (value,)}] if value != nested(MAX_DEPTH - 1) else 0}

    request = codec.decode(codec.encode(Request(URL, **{where: held})))  # type: ignore[arg-type]

    assert exact(getattr(request, where)) == exact(held)


@pytest.mark.parametrize(
    ("value", "named"),
    [
        (OrderedDict(a=1), "OrderedDict"),
        (defaultdict(list), "defaultdict"),
        (Point(1, 2), "Point"),
        (Level.HIGH, "Level"),
        (Label("x"), "Label"),
        (Moment(2024, 1, 1), "Moment"),
        (MappingProxyType({}), "mappingproxy"),
        (memoryview(b"x"), "memoryview"),
        (msgpack.ExtType(1, b""), "ExtType"),
        (msgpack.Timestamp(1), "Timestamp"),
        (range(3), "range"),
        (Ellipsis, "ellipsis"),
        (object(), "object"),
        (len, "builtin_function_or_method"),
        (Decimal, "type"),
        (threading.Lock(), "lock"),
        (Path("x"), "Path"),
        (Headers({"A": "b"}), "Headers"),
        (Selector(text="<p>"), "Selector"),
        (Selector(text="<p>").css("p"), "SelectorList"),
        (Request(URL), "Request"),
        (datetime(2024, 1, 1, tzinfo=Zone()), "Zone"),
        (time(1, tzinfo=timezone(timedelta(hours=1), "CET")), "CET"),
    ],
    ids=lambda value: f"{type(value).__name__}",
)
@pytest.mark.parametrize("wrap", [lambda v: v, lambda v: [0, {"k": (v,)}]], ids=["plain", "nested"])
def test_other_types_are_refused_and_never_altered(codec: RequestCodec, wrap: Any, value: Any, named: str) -> None:
    with pytest.raises(EncodeError, match=named):
        codec.encode(Request(URL, meta={"value": wrap(value)}))


def test_an_open_file_is_refused(codec: RequestCodec, tmp_path: Path) -> None:
    with (tmp_path / "x").open("w") as file, pytest.raises(EncodeError, match=r"meta\['out'\]: _io.TextIOWrapper"):
        codec.encode(Request(URL, meta={"out": file}))


@pytest.mark.parametrize(
    ("arguments", "where"),
    [
        ({"meta": {"items": [0, 1, 2, {"loader": object()}]}}, "meta['items'][3]['loader']"),
        ({"meta": {"a": {7: (0, object())}}}, "meta['a'][7][1]"),
        ({"meta": {b"a": {(1, "k"): object()}}}, "meta[b'a'][(1, 'k')]"),
        ({"cb_kwargs": {"item": {"price": Level.HIGH}}}, "cb_kwargs['item']['price']"),
        ({"cb_kwargs": {"tags": {Level.HIGH}}}, f"cb_kwargs['tags'][{Level.HIGH!r}]"),
        ({"cb_kwargs": {"x": {Level.HIGH: 1}}}, f"cb_kwargs['x'][{Level.HIGH!r}]"),
        ({"cookies": [{"name": "a", "value": object()}]}, "cookies[0]['value']"),
        ({"flags": ["a", Label("b")]}, "flags[1]"),
        ({"method": "POST", "dont_filter": object()}, "dont_filter"),
    ],
)
def test_an_error_names_the_path_of_the_value(codec: RequestCodec, arguments: Any, where: str) -> None:
    with pytest.raises(EncodeError) as caught:
        codec.encode(Request(URL, **arguments))

    assert caught.value.where == where


def test_an_error_survives_keys_that_have_no_repr(codec: RequestCodec) -> None:
    with pytest.raises(EncodeError, match=r"meta\[<int>\]\['x'\]: builtins.object"):
        codec.encode(Request(URL, meta={10**5000: {"x": object()}}))  # type: ignore[dict-item]


def test_what_holds_itself_is_refused(codec: RequestCodec) -> None:
    ring: list[Any] = [1]
    ring.append({"ring": ring})

    with pytest.raises(EncodeError, match=r"^meta\['a'\]\[1\]\['ring'\].{,60}…: .*holds itself"):
        codec.encode(Request(URL, meta={"a": ring}))


@pytest.mark.parametrize("depth", [MAX_DEPTH, 5000])
def test_what_is_nested_too_deep_is_refused(codec: RequestCodec, depth: int) -> None:
    with pytest.raises(EncodeError, match="nested deeper than 100 levels"):
        codec.encode(Request(URL, meta={"a": nested(depth)}))


def test_what_is_shared_comes_back_as_copies(codec: RequestCodec) -> None:
    shared = [1]

    request = codec.decode(codec.encode(Request(URL, meta={"a": shared, "b": shared}, cb_kwargs={"c": shared})))

    assert request.meta["a"] == request.meta["b"] == request.cb_kwargs["c"] == shared
    assert len({id(request.meta["a"]), id(request.meta["b"]), id(request.cb_kwargs["c"]), id(shared)}) == 4


def test_a_refused_request_leaves_the_codec_usable(codec: RequestCodec) -> None:
    for meta in ({"a": object()}, {"a": {(1, Level.HIGH): 1}}):
        with pytest.raises(EncodeError):
            codec.encode(Request(URL, meta=meta))

    assert codec.decode(codec.encode(Request(URL, meta={"a": 1}))).meta == {"a": 1}
