"""Items, dataclasses and other data classes: stored by field, restored without running code; others are rejected."""

from __future__ import annotations

import dataclasses
import sys
from collections import namedtuple
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from types import ModuleType
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

import attr
import attrs
import msgpack
import pydantic
import pytest
from scrapy import Field, Item, Request, Spider
from scrapy.link import Link

from scrapy_prioqueue.codec import RequestCodec
from scrapy_prioqueue.codec.detached import DetachedCodec, with_meta
from scrapy_prioqueue.codec.plain import read_plain
from scrapy_prioqueue.errors import DecodeError, EncodeError, UnknownName
from tests.support.exact import exact

URL = "https://shop.example/p/1"
CALLS: list[str] = []
T = TypeVar("T")


class Book(Item):
    title = Field()
    parts = Field()

    def __setitem__(self, key: str, value: Any) -> None:
        CALLS.append("__setitem__")
        super().__setitem__(key, value)


class SignedBook(Book):
    signed = Field()


class FlexibleBook(Item):
    """Declares its fields when they are set."""

    def __setitem__(self, key: str, value: Any) -> None:
        self.fields.setdefault(key, Field())
        super().__setitem__(key, value)


@dataclass
class Price:
    amount: float
    currency: str = "EUR"
    history: list[Any] = field(default_factory=list)
    known: ClassVar[int] = 0

    def __post_init__(self) -> None:
        CALLS.append("__post_init__")
        self._seen = True

    @cached_property
    def doubled(self) -> float:
        return self.amount * 2

    def total(self) -> float:
        return self.amount


@dataclass(frozen=True)
class Key:
    name: str


@dataclass(slots=True)
class Slotted:
    a: Any
    b: Any = 2


@dataclass
class Paired(Generic[T]):
    pair: T

    def __setattr__(self, name: str, value: Any) -> None:
        CALLS.append("__setattr__")
        super().__setattr__(name, value)


@attrs.define
class Author:
    name: str = attrs.field(validator=lambda *_: CALLS.append("validator"))
    books: list[Any] = attrs.Factory(list)


@attr.s(frozen=True, cache_hash=True)
class Old:
    a: Any = attr.ib()
    b: Any = attr.ib(default=1)


class Shop(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="allow")
    name: str
    prices: list[Price] = []
    _secret: int = pydantic.PrivateAttr(default=1)

    @pydantic.field_validator("name")
    @classmethod
    def check(cls, value: str) -> str:
        CALLS.append("validator")
        return value


Point = namedtuple("Point", "x y")


class Span(NamedTuple):
    start: int
    end: int = 0


class Parser:
    """Not a class of data."""

    def parse(self, response: Any) -> None: ...


class Deleting:
    def __del__(self) -> None:
        CALLS.append("__del__")


@dataclass
class Temporary(Deleting):
    path: str


@dataclass
class Counted(dict[str, Any]):
    total: int = 0


class Books(Spider):
    name = "books"

    def login(self, response: Any) -> None: ...

    @staticmethod
    def clean(text: str) -> str:
        return text


@pytest.fixture
def spider() -> Books:
    return Books()


@pytest.fixture
def codec(spider: Books) -> RequestCodec:
    CALLS.clear()
    return RequestCodec(spider)


def priced() -> Price:
    price = Price(1.5, history=[Price(2)])
    price.doubled  # noqa: B018
    return price


def shop() -> Shop:
    found = Shop(name="a", prices=[Price(1)], extra=(1,))  # type: ignore[call-arg]
    found._secret = 7  # noqa: SLF001
    return found


def underscored() -> Book:
    book = Book(title="a")
    book._origin = "feed"  # noqa: SLF001
    return book


def stored(value: Any) -> bytes:
    """Return a payload with this in its meta."""
    return b"\x01" + bytes(msgpack.packb({0: URL, 2: {"x": value}}))


def mark(code: int, *items: Any) -> list[Any]:
    return [msgpack.ExtType(code, b""), *items]


def path(cls: type) -> str:
    return f"{cls.__module__}:{cls.__qualname__}"


@pytest.mark.parametrize(
    "value",
    [
        Book(),
        Book(title="a", parts=[Book(title="b"), {"c": (SignedBook(signed=True),)}]),
        underscored(),
        FlexibleBook(isbn=1),
        priced(),
        Key("a"),
        {Key("a"): 1},
        {Key("a"), Span(1)},
        Slotted((1,), Slotted(1)),
        Paired(Paired((1,))),
        Author("a", [Author("b")]),
        Old(1),
        shop(),
        Shop.model_construct(),
        Point(1, (2,)),
        Span(1),
        Link("https://shop.example/", "text", nofollow=True),
        [Book, Price, Author, Shop, Span],
    ],
    ids=lambda value: type(value).__name__,
)
def test_data_is_restored_as_its_class_and_none_of_its_code_runs(codec: RequestCodec, value: Any) -> None:
    hash(value) if isinstance(value, Old) else None
    if type(value) is Shop and not value.model_fields_set:
        with pytest.raises(EncodeError, match="its field name has no value"):
            codec.encode(Request(URL, meta={"value": value}))
        return
    payload = codec.encode(Request(URL, meta={"value": value, "inside": [(value,)]}, cb_kwargs={"value": value}))
    CALLS.clear()

    request = codec.decode(payload)

    assert exact(request.meta) == exact({"value": value, "inside": [(value,)]})
    assert exact(request.cb_kwargs["value"]) == exact(value)
    assert CALLS == []
    if not isinstance(value, list):
        assert hash_of(request.meta["value"]) == hash_of(value)


def hash_of(value: Any) -> int | None:
    try:
        return hash(value) if dataclasses.is_dataclass(value) or isinstance(value, Old) else None
    except TypeError:
        return None


def test_methods_of_the_spider_are_restored(codec: RequestCodec, spider: Books) -> None:
    meta = {"actions": [spider.login, (spider.clean,)], "then": {"call": spider.login}}

    assert codec.decode(codec.encode(Request(URL, meta=meta))).meta == meta


@pytest.mark.parametrize(
    ("value", "named"),
    [
        (Parser(), "Parser can't be stored"),
        (Parser().parse, "builtins.method can't be stored unless it is a method of the spider"),
        (test_methods_of_the_spider_are_restored, "builtins.function can't be stored unless"),
        (Books, "type can't be stored"),
        (Temporary("/x"), "Temporary can't be stored"),
        (Counted(), "Counted can't be stored"),
        (Price(Parser()), r"meta\['x'\]\['amount'\]: .*Parser can't be stored"),  # type: ignore[arg-type]
        (Book(parts=[Parser()]), r"meta\['x'\]\['parts'\]\[0\]: .*Parser can't be stored"),
        (dataclasses.make_dataclass("Made", ["a"])(1), "Made can't be stored: no module has the class"),
        (type("Inner", (Book,), {})(), "Inner can't be stored: no module has the class"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_other_objects_are_refused(codec: RequestCodec, value: Any, named: str) -> None:
    with pytest.raises(EncodeError, match=named):
        codec.encode(Request(URL, meta={"x": value}))


def test_an_attribute_that_hides_code_is_refused(codec: RequestCodec) -> None:
    price = Price(1)
    price.total = 5  # type: ignore[assignment, method-assign]

    with pytest.raises(EncodeError, match="it can't have 'total'"):
        codec.encode(Request(URL, meta={"x": price}))


@pytest.mark.parametrize(
    "value",
    [
        *(mark(9, name, {}) for name in ("os:system", "subprocess:Popen", "scrapy:Spider", "builtins:object")),
        *(mark(9, path(cls), {}) for cls in (Parser, Temporary, Counted, Span, Books)),
        *(mark(9, path(Price), {"amount": 1, "history": [], name: 1}) for name in ("total", "__class__", "a b", "")),
        mark(9, path(Price), {"amount": 1, 1: 1}),
        mark(9, path(Price), {"amount": 1}, {"other": 1}),
        mark(9, path(Price), [1]),
        mark(9, path(Price)),
        mark(9),
        mark(9, 1, {}),
        mark(9, path(Book), {}, {"_values": {}}),
        mark(9, path(Book), {1: 1}),
        mark(9, path(Book), {}, {"keys": 1}),
        *(mark(10, name, "A") for name in ("os:system", path(Price), path(Span))),
        mark(10, "http:HTTPStatus", "OK", "CREATED"),
        mark(10, "http:HTTPStatus", 200),
        *(mark(11, name, 1, 2) for name in ("builtins:tuple", path(Price), "os:stat_result")),
        *(msgpack.ExtType(21, name) for name in (b"__init__", b"from_crawler", b"name", b"\xff")),
        *(msgpack.ExtType(22, name.encode()) for name in ("os:system", "subprocess:Popen", path(Books), path(Parser))),
        *(mark(8, name, *items) for name, *items in (("system", "x"), ("OrderedDict", 1), ("defaultdict", "eval", {}))),
        *(mark(8, "Pattern", "x", flags) for flags in (128, -1, "x")),
        mark(8, "Pattern", "("),
        mark(8, "PosixPath", 1),
        mark(8, "range", 1, 2, 0),
        mark(8, "SimpleNamespace", {1: 1}),
        mark(8),
    ],
    ids=repr,
)  # fmt: skip
def test_classes_that_are_not_data_are_never_built(codec: RequestCodec, value: Any) -> None:
    with pytest.raises(DecodeError):
        codec.decode(stored(value))

    assert CALLS == []


@pytest.mark.parametrize(
    "value",
    [
        mark(9, "shop.items:Book", {}),
        mark(9, f"{__name__}:Missing", {}),
        mark(9, path(Price), {}),
        mark(9, path(Slotted), {"a": 1, "c": 1}),
        mark(10, "http:HTTPStatus", "NEW_STATUS"),
        mark(10, "shop.items:Colour", "RED"),
        mark(11, path(Span), 1, 2, 3),
        msgpack.ExtType(21, b"parse_detail"),
        msgpack.ExtType(22, b"shop.items:Book"),
    ],
    ids=repr,
)
def test_a_name_that_this_worker_lacks_is_an_error_of_its_own(codec: RequestCodec, value: Any) -> None:
    with pytest.raises(UnknownName):
        codec.decode(stored(value))


def test_unknown_callbacks_and_request_classes_are_that_error_too(codec: RequestCodec) -> None:
    for number, name in (
        (1, "parse_detail"),
        (9, "on_error"),
        (13, "shop.requests:Search"),
        (13, f"{__name__}:Missing"),
    ):
        with pytest.raises(UnknownName):
            codec.decode(b"\x01" + bytes(msgpack.packb({0: URL, number: name})))


def test_fields_added_to_a_class_get_their_defaults(codec: RequestCodec) -> None:
    request = codec.decode(stored([mark(9, path(Price), {"amount": 1}), mark(9, path(Slotted), {"a": 1})]))

    price, slotted = request.meta["x"]
    assert (price, slotted) == (Price(1), Slotted(1))
    assert price.history is not Price(1).history


def test_fields_that_an_item_has_only_in_other_workers_are_restored(codec: RequestCodec) -> None:
    item = codec.decode(stored(mark(9, path(Book), {"isbn": 1}))).meta["x"]

    assert (type(item), item["isbn"]) == (Book, 1)


def test_a_class_is_found_once_its_module_is_imported(
    codec: RequestCodec, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    (tmp_path / "prioqueue_items.py").write_text("import scrapy\nclass Book(scrapy.Item): a = scrapy.Field()\n")
    monkeypatch.syspath_prepend(tmp_path)
    payload = stored(mark(9, "prioqueue_items:Book", {"a": 1}))
    with pytest.raises(UnknownName, match="import it in the module of the spider"):
        codec.decode(payload)
    assert "prioqueue_items" not in sys.modules

    module = __import__("prioqueue_items")
    try:
        assert exact(dict(codec.decode(payload).meta["x"])) == exact({"a": 1})
    finally:
        del sys.modules[module.__name__]


class PageMethod:
    """As that of scrapy-playwright."""

    def __init__(self, method: str) -> None:
        self.method, self.args, self.kwargs = method, (), dict[str, Any]()
        self.result: Any = None


class Page:
    """As the page objects of web-poet, with a response that can't be stored."""

    def __init__(self) -> None:
        self.response = object()


@pytest.fixture
def of_module(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, type, str], None]:
    """Put a class into a module of its own under a name."""

    def put(module: str, cls: type, name: str) -> None:
        made = ModuleType(module)
        setattr(made, name, cls)
        monkeypatch.setitem(sys.modules, module, made)
        monkeypatch.setattr(cls, "__module__", module)

    return put


def test_page_methods_come_back_without_what_the_browser_answered(
    codec: RequestCodec, of_module: Callable[[str, type, str], None]
) -> None:
    of_module("scrapy_playwright.page", PageMethod, "PageMethod")
    method = PageMethod("wait_for_selector")
    method.result = object()

    made = codec.decode(codec.encode(Request(URL, meta={"playwright_page_methods": [method]})))

    (found,) = made.meta["playwright_page_methods"]
    assert vars(found) == {**vars(method), "result": None}
    assert method.result is not None


def test_arguments_that_scrapy_poet_injects_are_left_out(
    codec: RequestCodec, of_module: Callable[[str, type, str], None]
) -> None:
    of_module("web_poet", type("Unused", (), {}), "Unused")
    of_module("web_poet.pages", Page, "Injectable")
    page = type("BookPage", (Page,), {})()

    made = codec.decode(codec.encode(Request(URL, cb_kwargs={"page": page, "number": 1})))
    bare = codec.decode(codec.encode(Request(URL, cb_kwargs={"page": page})))

    assert (made.cb_kwargs, bare.cb_kwargs) == ({"number": 1}, {})


def test_programs_without_the_project_see_what_stands_for_data(codec: RequestCodec, spider: Books) -> None:
    meta = {"book": Book(title="a"), "point": Point(1, 2), "call": spider.login, "class": Price, "level": {Key("a"): 1}}
    payload = codec.encode(Request(URL, meta=meta), "shop.example")

    shown = read_plain(payload, "shop.example").meta

    here = __name__
    assert repr(shown["book"]) == f"{here}:Book(title='a')"
    assert shown["book"].shown == {"class": f"{here}:Book", "title": "a"}
    assert shown["point"].shown == {"class": f"{here}:Point", "items": [1, 2]}
    assert (shown["call"].shown, shown["class"].shown) == ("login", f"{here}:Price")
    assert DetachedCodec().decode(payload, "shop.example").meta == shown
    changed = codec.decode(with_meta(payload, "shop.example", {"retry_times": 1}), "shop.example")
    assert exact(changed.meta) == exact({**meta, "retry_times": 1})
