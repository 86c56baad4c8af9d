"""Values in requests: which are restored with their types, and which are rejected with which message."""

from __future__ import annotations

import functools
import itertools
import re
import threading
from collections import ChainMap, Counter, OrderedDict, defaultdict, deque, namedtuple
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta, timezone, tzinfo
from decimal import Decimal
from enum import Enum, Flag, IntEnum
from http import HTTPStatus
from ipaddress import ip_address
from pathlib import Path, PurePosixPath, PureWindowsPath
from time import gmtime
from types import MappingProxyType, SimpleNamespace
from typing import Any
from urllib.parse import urldefrag, urlparse, urlsplit
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
from tests.support.exact import exact, exact_request

URL = "https://shop.example/p/1"
PARIS = ZoneInfo("Europe/Paris")

Point = namedtuple("Point", "x y")


class Level(IntEnum):
    HIGH = 2


class Colour(Enum):
    RED = "red"


class Mode(Flag):
    READ = 1
    WRITE = 2


class Label(str):
    """Has attributes as the strings of lxml and BeautifulSoup do."""

    def __str__(self) -> str:
        return "not what it is"


class Moment(datetime):
    pass


class Fine(datetime):
    def __eq__(self, other: object) -> bool:
        return False

    __hash__ = datetime.__hash__


class Basket(list[Any]):
    pass


@dataclass(slots=True)
class Slotted:
    inner: Any


class ListRequest(Request):
    attributes = (*Request.attributes, "places")

    def __init__(self, *args: Any, places: Any = (), **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.places = self.first = places


class Priced(dict[str, Any]):
    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.currency = "EUR"


class Folded(dict[str, Any]):
    def __getitem__(self, key: str) -> Any:
        return super().__getitem__(key.casefold())


class Zone(tzinfo):
    def utcoffset(self, moment: datetime | None) -> timedelta:
        return timedelta(hours=1)

    def dst(self, moment: datetime | None) -> None: ...

    def tzname(self, moment: datetime | None) -> str:
        return "here"


class Zoneless(Zone):
    def utcoffset(self, moment: datetime | None) -> None:  # type: ignore[override]
        return None


OPAQUE = object()
LocalPoint = namedtuple("LocalPoint_", "x y")  # type: ignore[name-match]


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
        time(1, tzinfo=timezone(timedelta(hours=1), "CET")),
        datetime(2024, 1, 1, tzinfo=timezone(timedelta(hours=1), "CET")),
        OrderedDict(b=1, a=(2,)),
        defaultdict(list, a=[1]),
        defaultdict(None, {1: {2}}),
        Counter("aab"),
        MappingProxyType({"a": (1,)}),
        ChainMap[str, Any]({"a": 1}, {"b": (2,)}),
        SimpleNamespace(a=1, b=(2,)),
        deque([1, (2,)], maxlen=3),
        deque(),
        range(400, 600, 7),
        gmtime(0),
        re.compile(r"(?i)é\d+", re.MULTILINE),
        re.compile(rb"\xff", re.DOTALL),
        Path("a/../b"),
        PurePosixPath("/a"),
        ip_address("10.0.0.1"),
        ip_address("::1"),
        PureWindowsPath("c:/a"),
        PARIS,
        timezone(timedelta(hours=1), "CET"),
        timezone.utc,
        urlsplit("https://shop.example:80/p?q=1#f"),
        urlparse("https://shop.example/p;x?q=1"),
        urldefrag("https://shop.example/p#x"),
        HTTPStatus.NOT_FOUND,
        [HTTPStatus.OK, *range(2)],
        {HTTPStatus.OK: 1, (HTTPStatus.OK,): 2},
        Level.HIGH,
        Colour.RED,
        Mode.READ,
        Mode.READ | Mode.WRITE,
        Mode(0),
        re.IGNORECASE | re.MULTILINE,
        Point(1, (2,)),
        {Point(1, 2): Point(3, Point(4, 5))},
        nested(MAX_DEPTH - 1),
    ],
    ids=lambda value: f"{type(value).__name__}",
)
@pytest.mark.parametrize("where", ["meta", "cb_kwargs"])
def test_plain_values_keep_their_type_at_any_depth(codec: RequestCodec, where: str, value: Any) -> None:
    held: dict[str, Any] = {"value": value, "inside": [{"deeper": (value,)}] if value != nested(MAX_DEPTH - 1) else 0}

    request = codec.decode(codec.encode(Request(URL, **{where: held})))  # type: ignore[arg-type]

    assert exact(getattr(request, where)) == exact(held)


UNFINDABLE: Any = IntEnum("UNFINDABLE", {"ONE": 1}, qualname="nowhere.Level")
LABEL = Label("x")
LABEL.parent = object()  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        (LABEL, "x"),
        ({LABEL: LABEL}, {"x": "x"}),
        ({LABEL}, {"x"}),
        (type("Raw", (bytes,), {})(b"x"), b"x"),
        (type("Bytes", (bytearray,), {})(b"x"), bytearray(b"x")),
        (type("Number", (int,), {})(2**70), 2**70),
        (type("Price", (float,), {})("-0.0"), -0.0),
        (type("Amount", (Decimal,), {})("1.10"), Decimal("1.10")),
        (type("Day", (date,), {})(2024, 1, 2), date(2024, 1, 2)),
        (type("Span", (timedelta,), {})(1, 2, 3), timedelta(1, 2, 3)),
        (Moment(2024, 1, 1, 2, fold=1, tzinfo=PARIS), datetime(2024, 1, 1, 2, fold=1, tzinfo=PARIS)),
        (UNFINDABLE.ONE, 1),
        (Basket([1, Basket()]), [1, []]),
        (type("Pair", (tuple,), {})((1, LABEL)), (1, "x")),
        (type("Tags", (frozenset,), {})({LABEL}), frozenset({"x"})),
        (type("Record", (dict,), {})(a=LABEL), {"a": "x"}),
        (type("Sorted", (OrderedDict,), {})(a=1), OrderedDict(a=1)),
        (type("Tally", (Counter,), {})("aab"), Counter("aab")),
        (datetime(2024, 1, 1, tzinfo=Zone()), datetime(2024, 1, 1, tzinfo=timezone(timedelta(hours=1), "here"))),
        (type("Pytz", (Zone,), {"zone": "Europe/Paris"})(), None),
    ],
    ids=lambda value: type(value).__name__,
)
def test_subclasses_are_restored_as_the_plain_type(codec: RequestCodec, value: Any, plain: Any) -> None:
    if plain is None:
        value, plain = datetime(2024, 1, 1, tzinfo=value), datetime(2024, 1, 1, tzinfo=PARIS)

    request = codec.decode(codec.encode(Request(URL, meta={"value": value, "inside": [(value,)]})))

    assert exact(request.meta) == exact({"value": plain, "inside": [(plain,)]})


@pytest.mark.parametrize(
    ("value", "named"),
    [
        (defaultdict(lambda: 1), "only of a type such as list"),
        ([re.compile("x" * 600), re.compile("y" * 600)], "regular expressions of more than 1,000 characters"),
        (Priced({"a": 1}), "attributes of its own"),
        (Folded({"a": 1}), "Folded"),
        (LocalPoint(1, 2), "LocalPoint_ can't be stored: no module has the class"),
        (datetime(2024, 1, 1, tzinfo=Zoneless()), "no offset"),
        (Fine(2024, 1, 1), "finer than a microsecond"),
        (memoryview(b"x"), "memoryview"),
        (msgpack.Timestamp(1), "Timestamp"),
        (Ellipsis, "ellipsis"),
        (object(), "object"),
        (len, "builtin_function_or_method"),
        (Decimal, "type"),
        (threading.Lock(), "lock"),
        (Headers({"A": "b"}), "Headers"),
        (Selector(text="<p>"), "Selector"),
        (Selector(text="<p>").css("p"), "SelectorList"),
        (Request(URL), "Request"),
        (functools.partial(len), "functools.partial"),
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
        ({"cb_kwargs": {"item": {"price": OPAQUE}}}, "cb_kwargs['item']['price']"),
        ({"cb_kwargs": {"tags": {OPAQUE}}}, f"cb_kwargs['tags'][{OPAQUE!r}]"),
        ({"cb_kwargs": {"x": {OPAQUE: 1}}}, f"cb_kwargs['x'][{OPAQUE!r}]"),
        ({"meta": {"x": OrderedDict(a=deque([OPAQUE]))}}, "meta['x']['a'][0]"),
        ({"meta": {"x": Point(1, OPAQUE)}}, "meta['x'][1]"),
        ({"cookies": [{"name": "a", "value": object()}]}, "cookies[0]['value']"),
        ({"flags": ["a", OPAQUE]}, "flags[1]"),
        ({"method": "POST", "dont_filter": object()}, "dont_filter"),
    ],
    # The default ids of these hold addresses, by which processes that share the tests would differ.
    ids=itertools.count(),
)
def test_an_error_names_the_path_of_the_value(codec: RequestCodec, arguments: Any, where: str) -> None:
    with pytest.raises(EncodeError) as caught:
        codec.encode(Request(URL, **arguments))

    assert caught.value.where == where


def test_an_error_survives_keys_that_have_no_repr(codec: RequestCodec) -> None:
    with pytest.raises(EncodeError, match=r"meta\[<int>\]\['x'\]: builtins.object"):
        codec.encode(Request(URL, meta={10**5000: {"x": object()}}))  # type: ignore[dict-item]


def test_a_value_that_contains_itself_is_rejected(codec: RequestCodec) -> None:
    ring: list[Any] = [1]
    ring.append({"ring": ring})

    with pytest.raises(EncodeError, match=r"^meta\['a'\]\[1\]\['ring'\]: .*holds itself"):
        codec.encode(Request(URL, meta={"a": ring}))


@pytest.mark.parametrize("depth", [MAX_DEPTH, 5000])
def test_a_value_nested_too_deep_is_rejected(codec: RequestCodec, depth: int) -> None:
    with pytest.raises(EncodeError, match="nested deeper than 100 levels"):
        codec.encode(Request(URL, meta={"a": nested(depth)}))


def test_data_may_be_nested_as_deep_as_lists(codec: RequestCodec) -> None:
    ordered: Any = 1
    linked: Any = 1
    for _ in range(MAX_DEPTH - 1):
        ordered, linked = OrderedDict(a=ordered), Point(0, linked)

    request = codec.decode(codec.encode(Request(URL, meta={"a": ordered, "b": linked})))

    assert exact(request.meta) == exact({"a": ordered, "b": linked})


def test_regular_expressions_may_be_keys(codec: RequestCodec) -> None:
    meta = {"a": {re.compile("x" * 600): 1}}

    assert codec.decode(codec.encode(Request(URL, meta=meta))).meta == meta


def test_an_object_that_occurs_twice_is_restored_as_one(codec: RequestCodec) -> None:
    shared = [1]
    slotted = Slotted(shared)
    request = Request(URL, meta={"a": shared, "b": {"c": shared, "d": slotted}}, cb_kwargs={"e": (shared, slotted)})

    back = codec.decode(codec.encode(request))

    b, (e, again) = back.meta["b"], back.cb_kwargs["e"]
    assert exact_request(back) == exact_request(request)
    assert back.meta["a"] is b["c"] is b["d"].inner is e
    assert b["d"] is again


def test_objects_of_a_request_class_stay_one_through_its_constructor(codec: RequestCodec) -> None:
    shared = [1]
    request = ListRequest(URL, places=shared, meta={"a": shared})

    back: Any = codec.decode(codec.encode(request))

    assert back.places == [1]
    assert back.places is back.first is back.meta["a"]


def test_a_class_that_is_named_after_its_one_object_is_counted_as_its_base(codec: RequestCodec) -> None:
    zone = type("Asia/Tokyo", (Zoneless,), {})()

    with pytest.raises(EncodeError) as caught:
        codec.encode(Request(URL, meta={"zone": zone}))

    assert caught.value.kind == f"{__name__}.Zoneless"


def test_a_refused_request_leaves_the_codec_usable(codec: RequestCodec) -> None:
    for meta in ({"a": object()}, {"a": {(1, OPAQUE): 1}}):
        with pytest.raises(EncodeError):
            codec.encode(Request(URL, meta=meta))

    assert codec.decode(codec.encode(Request(URL, meta={"a": 1}))).meta == {"a": 1}
