"""Names of callbacks and classes in payloads: which are written, and that no other name leads to code."""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from functools import cached_property
from pathlib import Path
from types import MethodType, ModuleType
from typing import Any, ClassVar

import msgpack
import pytest
from scrapy import Request, Spider
from scrapy.http.request import NO_CALLBACK
from scrapy.spiders import CrawlSpider

from scrapy_prioqueue.codec import RequestCodec
from scrapy_prioqueue.codec.plain import read_plain
from scrapy_prioqueue.errors import DecodeError, EncodeError, UnknownName

URL = "https://shop.example/p/1"


def kept_name(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(self: Any, *args: Any) -> Any:
        return function(self, *args)

    return wrapper


def other_name(function: Callable[..., Any]) -> Callable[..., Any]:
    def parse(self: Any, *args: Any) -> Any:
        return function(self, *args)

    return parse


class Traced:
    """A decorator whose methods are bound, and which can't be hashed."""

    __hash__ = None  # type: ignore[assignment]

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function

    def __eq__(self, other: object) -> bool:
        return self is other

    def __call__(self, *args: Any) -> Any:
        return self.function(*args)

    def __get__(self, instance: Any, owner: Any) -> Any:
        return MethodType(self, instance)


class Helper:
    def parse(self, response: Any) -> None: ...


class Mixin:
    def parse_mixed_in(self, response: Any) -> None: ...


class Base(Spider):
    def parse_inherited(self, response: Any) -> None: ...

    def parse_overridden(self, response: Any) -> None: ...


class Books(Mixin, Base):
    name = "books"
    request_class = Request
    helper_class = Helper
    shared_helper: ClassVar[Any] = Helper()
    borrowed: ClassVar[Any] = Helper().parse
    builtin: ClassVar[Any] = print
    reads: ClassVar[list[str]] = []

    def __init__(self) -> None:
        super().__init__()
        self.own_borrowed = Helper().parse
        self.parse_at_run_time = MethodType(late_function, self)
        self.parse_lambda = lambda response: None

    def parse(self, response: Any) -> None: ...

    def parse_plain(self, response: Any) -> None: ...

    def parse_overridden(self, response: Any) -> None: ...

    async def parse_async(self, response: Any) -> None: ...

    def parse_generator(self, response: Any) -> Iterator[Any]:
        yield None

    async def parse_async_generator(self, response: Any) -> AsyncIterator[Any]:
        yield None

    @classmethod
    def parse_class(cls, response: Any) -> None: ...

    @staticmethod
    def parse_static(response: Any) -> None: ...

    @kept_name
    def parse_wrapped(self, response: Any) -> None: ...

    @other_name
    def parse_renamed(self, response: Any) -> None: ...

    @Traced
    def parse_traced(self, response: Any) -> None: ...

    def _parse_protected(self, response: Any) -> None: ...

    def __parse_private(self, response: Any) -> None: ...

    def private(self) -> Any:
        return self.__parse_private

    @property
    def read_property(self) -> Any:
        self.reads.append("property")
        return self.parse

    @cached_property
    def read_cached(self) -> Any:
        self.reads.append("cached")
        return self.parse

    def __getattr__(self, name: str) -> Any:
        self.reads.append(name)
        raise AttributeError(name)

    def __call__(self, response: Any) -> None: ...

    def closed(self, reason: str) -> None: ...


def late_function(self: Any, response: Any) -> None: ...


METHODS = [
    *("parse", "parse_plain", "parse_inherited", "parse_overridden", "parse_mixed_in", "parse_class"),
    *("parse_async", "parse_generator", "parse_async_generator", "_parse_protected", "_Books__parse_private"),
    *("parse_wrapped", "parse_renamed", "parse_traced", "parse_at_run_time", "parse_static"),
]


@pytest.fixture
def spider() -> Books:
    return Books()


@pytest.fixture
def codec(spider: Books) -> RequestCodec:
    return RequestCodec(spider)


def payload(**fields: Any) -> bytes:
    """Return what another program could have written."""
    numbers = {"url": 0, "callback": 1, "errback": 9, "cls": 13}
    packed = msgpack.packb({0: URL} | {numbers[name]: value for name, value in fields.items()})
    return b"\x01" + bytes(packed)


@pytest.mark.parametrize("where", ["callback", "errback"])
@pytest.mark.parametrize("name", METHODS)
def test_a_method_of_the_spider_is_restored(codec: RequestCodec, spider: Books, where: str, name: str) -> None:
    for _ in range(2):
        request = codec.decode(codec.encode(Request(URL, **{where: getattr(spider, name)})))

        assert getattr(request, where) == getattr(spider, name)
    assert getattr(codec.decode(payload(**{where: name})), where) == getattr(spider, name)


@pytest.mark.parametrize("where", ["callback", "errback"])
def test_written_names_are_those_that_scrapy_writes(codec: RequestCodec, spider: Books, where: str) -> None:
    spider.private()
    for name in set(METHODS) - {"parse_static"}:
        request = Request(URL, **{where: getattr(spider, name)})

        assert getattr(read_plain(codec.encode(request)), where) == request.to_dict(spider=spider)[where]


@pytest.mark.parametrize("where", ["callback", "errback"])
def test_no_callback_and_none_are_kept_apart(codec: RequestCodec, where: str) -> None:
    for function in (NO_CALLBACK, None):
        request = codec.decode(codec.encode(Request(URL, **{where: function})))  # type: ignore[arg-type]

        assert getattr(request, where) is function


def test_crawl_spiders_internal_callbacks_are_restored() -> None:
    spider = CrawlSpider("books")
    codec = RequestCodec(spider)

    request = codec.decode(codec.encode(Request(URL, callback=spider._callback, errback=spider._errback)))  # noqa: SLF001

    assert (request.callback, request.errback) == (spider._callback, spider._errback)  # noqa: SLF001


def test_a_method_replaced_at_run_time_is_the_one_that_is_restored(codec: RequestCodec, spider: Books) -> None:
    before = codec.encode(Request(URL, callback=spider.parse_plain))
    spider.parse_plain = MethodType(late_function, spider)  # type: ignore[method-assign]

    assert codec.decode(before).callback == spider.parse_plain
    assert codec.decode(codec.encode(Request(URL, callback=spider.parse_plain))).callback == spider.parse_plain

    spider.parse_plain = lambda response: None  # type: ignore[method-assign]
    with pytest.raises(DecodeError):
        codec.decode(before)


@pytest.mark.parametrize(
    "function",
    [
        lambda response: None,
        late_function,
        print,
        Helper,
        Helper().parse,
        Books.parse,
        Books().parse,
        Books.borrowed,
        Books().own_borrowed,
        Books().parse_lambda,
        Spider("other").parse,
        MethodType(late_function, Books()),
        functools.partial(late_function, None),
    ],
)
@pytest.mark.parametrize("where", ["callback", "errback"])
def test_names_that_are_not_methods_of_the_spider_are_rejected(codec: RequestCodec, where: str, function: Any) -> None:
    with pytest.raises(EncodeError) as caught:
        codec.encode(Request(URL, **{where: function}))

    assert caught.value.where == where
    assert "is not a method of spider 'books'" in caught.value.why


def test_a_reason_shows_the_function_of_a_partial_and_not_what_it_is_given(codec: RequestCodec, spider: Books) -> None:
    with pytest.raises(EncodeError) as caught:
        codec.encode(Request(URL, callback=functools.partial(late_function, "x" * 50)))

    assert re.match(r"functools\.partial\(<function late_function at \w+>, …\) is not a method of", caught.value.why)


def test_a_method_that_the_spider_overrides_is_refused_by_that_reason(codec: RequestCodec, spider: Books) -> None:
    with pytest.raises(EncodeError, match="the spider has another method of that name"):
        codec.encode(Request(URL, callback=MethodType(Spider.parse, spider)))


def test_a_method_bound_to_the_spider_but_not_found_on_it_is_refused(codec: RequestCodec, spider: Books) -> None:
    names = ("__init__", "__call__", "closed", "from_crawler")
    for callback in (MethodType(print, spider), *(getattr(spider, name) for name in names)):
        with pytest.raises(EncodeError, match="^callback: "):
            codec.encode(Request(URL, callback=callback))


@pytest.mark.parametrize(
    "name",
    [
        *(
            "missing",
            "",
            "parse.__func__",
            "parse\x00",
            "\ud800",
            "name",
            "logger",
            "crawler",
            "settings",
            "start_urls",
        ),
        *("__init__", "__class__", "__call__", "__getattr__", "__dict__", "__reduce__", "__init_subclass__"),
        *("from_crawler", "_set_crawler", "update_settings", "handles_request", "start", "close", "closed"),
        *("request_class", "helper_class", "shared_helper", "borrowed", "own_borrowed", "builtin"),
        *("read_property", "read_cached", "reads", "parse_lambda"),
        *(True, 0, None, b"parse", ["parse"], {"parse": 1}),
    ],
    ids=repr,
)
@pytest.mark.parametrize("where", ["callback", "errback"])
def test_no_other_name_is_a_callback_and_no_code_runs(codec: RequestCodec, where: str, name: Any) -> None:
    Books.reads.clear()
    packed = msgpack.packb({0: URL, {"callback": 1, "errback": 9}[where]: name}, unicode_errors="surrogatepass")

    with pytest.raises(DecodeError):
        codec.decode(b"\x01" + bytes(packed))

    assert Books.reads == []


@pytest.fixture
def canary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Name of a module that could be imported, with a class of requests in it; it must not be."""
    (tmp_path / "prioqueue_canary.py").write_text("from scrapy import Request\nclass Evil(Request): pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    return "prioqueue_canary"


def test_a_module_that_is_not_imported_stays_so(codec: RequestCodec, canary: str) -> None:
    for path in (f"{canary}:Evil", f"{canary}.Evil", canary, f"{canary}:", f":{canary}", f"scrapy:{canary}.Evil"):
        with pytest.raises(UnknownName, match=f"{canary}.*is not a subclass of Request"):
            codec.decode(payload(cls=path))

    assert canary not in sys.modules


def test_a_class_is_found_once_its_module_is_imported(codec: RequestCodec, canary: str) -> None:
    module = __import__(canary)
    try:
        assert type(codec.decode(payload(cls=f"{canary}:Evil"))) is module.Evil
    finally:
        del sys.modules[canary]


@pytest.mark.parametrize(
    "path",
    [
        *("os:system", "os.system", "subprocess:Popen", "builtins:eval", "builtins:object", "scrapy:Spider"),
        *("scrapy", "scrapy:", "scrapy:Request.replace", "scrapy:Request.__init__", "scrapy:__builtins__.eval"),
        *("scrapy.http.request:NO_CALLBACK", "scrapy:Request.__class__", "scrapy:missing", "nowhere.at.all:Request"),
        *("", ":", ".", "..:..", "\x00:\x00", "\ud800:x", f"{__name__}:Books.helper_class"),
    ],
)
def test_names_that_are_not_request_classes_are_rejected(codec: RequestCodec, path: str) -> None:
    packed = msgpack.packb({0: URL, 13: path}, unicode_errors="surrogatepass")

    with pytest.raises(UnknownName, match="is not a subclass of Request"):
        codec.decode(b"\x01" + bytes(packed))


def test_a_lazy_module_is_not_looked_into(codec: RequestCodec, monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[str] = []

    class Lazy(ModuleType):
        def __getattribute__(self, name: str) -> Any:
            looks.append(name)
            return super().__getattribute__(name)

    monkeypatch.setitem(sys.modules, "prioqueue_lazy", Lazy("prioqueue_lazy"))
    looks.clear()

    with pytest.raises(DecodeError):
        codec.decode(payload(cls="prioqueue_lazy:Evil"))

    assert looks == []


def test_an_attribute_that_the_class_does_not_list_is_refused(codec: RequestCodec) -> None:
    for cls, name in (
        ("scrapy:Request", "url"),
        ("scrapy:FormRequest", "formdata"),
        ("scrapy:FormRequest", "__class__"),
    ):
        packed = msgpack.packb({0: URL, 13: cls, 14: {name: "x"}})

        with pytest.raises(UnknownName, match=f"'{name}' is not an attribute that"):
            codec.decode(b"\x01" + bytes(packed))
