"""Requests and subclasses are decoded as the same class with the same attributes."""

from __future__ import annotations

from decimal import Decimal
from enum import IntEnum
from pathlib import PurePosixPath
from typing import Any

import msgpack
import pytest
from scrapy import FormRequest, Request, Spider
from scrapy.http import Headers, JsonRequest, XmlRpcRequest
from scrapy.utils.request import request_from_dict

from scrapy_prioqueue.codec import RequestCodec
from scrapy_prioqueue.codec.lineage import Found
from scrapy_prioqueue.codec.others import HAS_DICT
from scrapy_prioqueue.codec.plain import read_plain
from scrapy_prioqueue.errors import DecodeError, EncodeError
from tests.support.exact import exact_request

URL = "https://shop.example/p/1"
SCRAPY_SUBCLASSES = [FormRequest, JsonRequest, XmlRpcRequest]


class Books(Spider):
    name = "books"

    def parse_product(self, response: Any) -> None: ...

    def on_error(self, failure: Any) -> None: ...


class Importance(IntEnum):
    HIGH = 7


class SearchRequest(Request):
    """Makes its URL and more out of what it is given, whenever it is built."""

    attributes = (*Request.attributes, "query", "pages", "rule")

    def __init__(self, *args: Any, query: Any = None, pages: Any = (1,), rule: Any = None, **kwargs: Any) -> None:
        kwargs.setdefault("priority", 50)
        kwargs.setdefault("method", "SEARCH")
        if query:
            kwargs["url"] = f"https://shop.example/search?q={query}"
        super().__init__(*args, **kwargs)
        self.query = query
        self._pages = pages
        self.rule = rule
        self.meta.setdefault("trail", []).append("built")
        self.cb_kwargs["query"] = query
        self.headers.appendlist("X-Built", "once more")
        self.flags.append("built")

    @property
    def pages(self) -> Any:
        return self._pages

    class Nested(Request):
        pass


class SignedRequest(Request):
    """Changes its URL, body and cookies whenever it is built."""

    def __init__(self, url: str, *args: Any, **kwargs: Any) -> None:
        super().__init__(f"{url}&signed=1", *args, **kwargs)
        self._set_body(self.body + b"&signed=1")
        self.cookies = {"signed": "1"}
        self.dont_filter = True


class Link(str):
    __slots__ = ("text",)


class LinkRequest(Request):
    """Has a URL that is not quite a string."""

    @property
    def url(self) -> Link:
        return Link(super().url)


class ShortRequest(Request):
    """Passes on fewer attributes than `Request`."""

    attributes = ("url", "meta")

    def __init__(self, url: str, meta: Any = None) -> None:
        super().__init__(url, meta=meta)


class GreedyRequest(Request):
    """Writes into everything it is given."""

    def __init__(self, url: str, **kwargs: Any) -> None:
        super().__init__(url, **kwargs)
        for given in kwargs.values():
            if isinstance(given, dict):
                given["greedy"] = "1"
            if isinstance(given, list):
                given.append("greedy")


class ShopRequest(Request):
    """Its constructor requires what its `attributes` lacks."""

    def __init__(self, url: str, shop: str, **kwargs: Any) -> None:
        super().__init__(url, **kwargs)
        self.shop = shop


class ItemRequest(Request):
    """Can't be built from its attributes."""

    def __init__(self, item_id: int) -> None:
        super().__init__(f"https://shop.example/items/{item_id}")


def holding(request: Any) -> Request:
    """Return a request with an attribute that can't be stored."""
    request.loader = object()
    return request  # type: ignore[no-any-return]


class ForgetfulRequest(Request):
    """Lists an attribute that it doesn't have."""

    attributes = (*Request.attributes, "lost")


class FixedRequest(Request):
    """Has an attribute that can't be set."""

    attributes = (*Request.attributes, "number")
    count = 0

    def __init__(self, *args: Any, number: Any = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        type(self).count += 1

    @property
    def number(self) -> int:
        return self.count


class ScriptRequest(Request):
    __slots__ = ("script",)


class SeleniumRequest(ScriptRequest):
    """Keeps what it is given on itself, as that of scrapy-selenium does."""

    screenshot = False

    def __init__(self, wait_time: Any = None, script: Any = None, *args: Any, **kwargs: Any) -> None:
        self.wait_time = wait_time
        self.script = script
        self.parser = len
        self.__secret = (1,)
        super().__init__(*args, **kwargs)

    def wait(self) -> None: ...

    def secret(self) -> Any:
        return self.__secret


class PlaceRequest(Request):
    """Shows its path as text in `to_dict`, and adds to its meta."""

    attributes = (*Request.attributes, "place")

    def __init__(self, *args: Any, place: Any = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.place = PurePosixPath(place or "/")
        self.is_new = "body" not in kwargs

    def to_dict(self, *, spider: Any = None) -> dict[str, Any]:
        found = super().to_dict(spider=spider)
        del found["body"]
        return {**found, "place": str(self.place), "meta": {**self.meta, "placed": True}, "other": object()}


class CalledRequest(Request):
    """Names its callback itself, and is another class in `to_dict`."""

    def to_dict(self, *, spider: Any = None) -> dict[str, Any]:
        return {
            **super().to_dict(spider=spider),
            "callback": "on_error",
            "_class": "scrapy.http.request.form.FormRequest",
        }


class BrokenRequest(Request):
    """Has no `to_dict` that works."""

    def to_dict(self, *, spider: Any = None) -> dict[str, Any]:
        raise ValueError("no")


@pytest.fixture
def spider() -> Books:
    return Books()


@pytest.fixture
def codec(spider: Books) -> RequestCodec:
    return RequestCodec(spider)


def assert_comes_back(codec: RequestCodec, request: Request) -> None:
    before = exact_request(request)

    decoded = codec.decode(codec.encode(request))

    assert exact_request(decoded) == before
    assert exact_request(request) == before


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"method": "POST", "body": b"\x00\xff"},
        {"method": "delete"},
        {"body": "naïve", "encoding": "latin-1"},
        {"url": "https://shop.example/é?q=naïve", "encoding": "latin-1"},
        {"url": "https://shop.example/é?q=naïve", "encoding": "utf-16"},
        {"url": "https://shop.example/%2fa%?q=%zz&r=[1]|^#frag ment"},
        {"url": "https://shop.example/a b?q=é", "meta": {"verbatim_url": True}},
        {"url": "https://shop.example/a b?q=é", "meta": {"first": 1, "verbatim_url": False, "last": 2}},
        {"url": "data:text/plain,hello"},
        {"url": "about:blank"},
        {"headers": {"Referer": "https://shop.example/", "X-Token": ["a", "b"], "Accept": []}},
        {"headers": {"x-bin": b"\xff\x00", "ACCEPT": "*/*", "Content-Length": 3}},
        {"headers": {"étage": "é"}, "encoding": "latin-1"},
        {"cookies": {"a": "1", "b": 2, b"c": b"\xff"}},
        {"cookies": [{"name": "a", "value": "1", "domain": "shop.example", "secure": True}]},
        {"cookies": ({"name": "a", "value": "1"},)},
        {"meta": {"depth": 3, "download_slot": "x"}, "cb_kwargs": {"page": 2}},
        {"flags": ["cached", "b"]},
        {"priority": -3},
        {"priority": 2**80},
        {"dont_filter": True},
        {"dont_filter": 1},
        {"dont_filter": 0},
        {"encoding": "UTF-8"},
    ],
    ids=str,
)
def test_a_request_is_restored_equal_in_every_attribute(codec: RequestCodec, arguments: dict[str, Any]) -> None:
    assert_comes_back(codec, Request(**{"url": URL, **arguments}))


@pytest.mark.parametrize("cls", [Request, *SCRAPY_SUBCLASSES, SearchRequest])
def test_all_attributes_at_once(codec: RequestCodec, spider: Books, cls: type[Request]) -> None:
    request = cls(
        "https://shop.example/caf%E9?q=é",
        callback=spider.parse_product,
        errback=spider.on_error,
        method="PUT",
        headers={"Referer": URL, "X-Token": ["a", "b"]},
        body=b"\x00",
        cookies=[{"name": "a", "value": "1"}],
        meta={"depth": 3, "path": (1, 2)},
        encoding="latin-1",
        priority=4,
        dont_filter=True,
        flags=["a"],
        cb_kwargs={"page": (1,)},
    )

    assert_comes_back(codec, request)


@pytest.mark.parametrize(
    "request_",
    [
        FormRequest(URL),
        FormRequest(URL, formdata={"q": ["a", "é"], "page": "2"}),
        FormRequest(URL, method="GET", formdata={"q": "a"}),
        JsonRequest(URL),
        JsonRequest(URL, data={"b": [1, None], "a": "é"}),
        JsonRequest(URL, data={"b": 1}, dumps_kwargs={"sort_keys": False, "indent": 2}, method="PATCH"),
        JsonRequest(URL, headers={"Accept": "text/html", "content-type": "text/json"}),
        XmlRpcRequest(URL, params=(1, "a"), methodname="add"),
        XmlRpcRequest(URL, params=("é",), methodname="add", encoding="latin-1"),
        XmlRpcRequest(URL, params=(1,), methodname="add", method="GET", dont_filter=False),
        SearchRequest(query="chess"),
        SearchRequest(URL, priority=0, method="GET", pages=[1, {2, (3, 4)}], rule={"a": float("nan")}),
        SignedRequest(URL, body=b"a=1", cookies={"a": "b"}),
        ShortRequest(URL, meta={"a": (1,)}),
        SearchRequest.Nested(URL),
    ],
    ids=repr,
)
def test_a_subclass_is_restored_as_itself(codec: RequestCodec, request_: Request) -> None:
    assert_comes_back(codec, request_)


@pytest.mark.parametrize("cls", [Request, *SCRAPY_SUBCLASSES, SearchRequest, SignedRequest, ShortRequest])
def test_changes_after_the_constructor_are_restored(codec: RequestCodec, spider: Books, cls: type[Request]) -> None:
    request = cls(URL)
    request.headers.clear()
    request.headers["Z"] = "last"
    request.headers["A"] = "first"
    request.meta.clear()
    request.meta["only"] = (1,)
    request.cb_kwargs.clear()
    request.flags = []
    request.cookies = []
    request.method = "get"
    request.priority = -1
    request.dont_filter = False
    request.callback = spider.parse_product

    assert_comes_back(codec, request)


def test_an_attribute_without_a_setter_is_restored(codec: RequestCodec) -> None:
    request = JsonRequest(URL, data={})
    del request.dumps_kwargs["sort_keys"]

    assert_comes_back(codec, request)


def test_a_signalling_nan_in_a_subclass_is_restored(codec: RequestCodec) -> None:
    assert_comes_back(codec, SearchRequest(URL, meta={"x": Decimal("sNaN")}, rule=Decimal("sNaN")))


@pytest.mark.parametrize("request_", [GreedyRequest(URL), SearchRequest(URL, meta={"trail": []})], ids=repr)
def test_constructors_do_not_affect_each_other(codec: RequestCodec, request_: Request) -> None:
    before = exact_request(request_)
    payload = codec.encode(request_)

    for _ in range(3):
        assert exact_request(codec.decode(payload)) == before


def test_a_fraction_of_a_priority_is_restored_rounded(codec: RequestCodec) -> None:
    request = Request(URL)
    request.priority = 7.6  # type: ignore[assignment]

    assert codec.decode(codec.encode(request)).priority == 8


def test_a_priority_of_a_kind_of_int_is_restored_as_int(codec: RequestCodec) -> None:
    for priority in (Importance.HIGH, True):
        request = codec.decode(codec.encode(Request(URL, priority=priority)))

        assert (type(request.priority), request.priority) == (int, int(priority))


def test_meta_keys_can_be_left_out(codec: RequestCodec) -> None:
    request = Request(URL, meta={"depth": 3, "secret": object(), "also": 1})

    decoded = codec.decode(codec.encode(request, without_meta=("secret", "also", "absent")))

    assert decoded.meta == {"depth": 3}
    assert set(request.meta) == {"depth", "secret", "also"}
    assert codec.encode(request, without_meta=request.meta.keys()) == codec.encode(Request(URL))


def test_headers_are_writable_in_the_encoding_of_the_request(codec: RequestCodec) -> None:
    for cls in (Request, FormRequest):
        request = codec.decode(codec.encode(cls(URL, encoding="latin-1", headers={"A": "b"})))
        request.headers["X"] = "é"

        assert request.headers["X"] == b"\xe9"


@pytest.mark.parametrize(
    ("name", "value", "where"),
    [
        ("cookies", "a=1", "cookies"),
        ("flags", ("a",), "flags"),
        ("flags", {"a"}, "flags"),
        ("method", b"GET", "method"),
        ("headers", type("MyHeaders", (Headers,), {})({"A": "b"}), "headers"),
    ],
)
def test_an_attribute_of_another_type_is_refused(codec: RequestCodec, name: str, value: Any, where: str) -> None:
    request = Request(URL)
    setattr(request, name, value)

    with pytest.raises(EncodeError) as caught:
        codec.encode(request)

    assert caught.value.where == where


def test_a_url_that_is_not_quite_a_string_is_refused(codec: RequestCodec) -> None:
    with pytest.raises(EncodeError, match=r"^url: .*Link can't be stored"):
        codec.encode(LinkRequest(URL))


def test_headers_that_hold_no_bytes_are_refused(codec: RequestCodec) -> None:
    request = Request(URL, headers={"X-Token": "a"})
    request.headers.getlist("X-Token").append("b")  # type: ignore[arg-type]

    with pytest.raises(EncodeError, match=r"headers\[b'X-Token'\]"):
        codec.encode(request)


@pytest.mark.parametrize(
    ("request_", "why"),
    [
        (ItemRequest(7), r"can't be built from its attributes: TypeError\("),
        (ShopRequest(URL, "a"), "its constructor requires shop, so the class's `attributes` must name it$"),
        (FixedRequest(URL), "number of .* can't be set"),
        (holding(ItemRequest(7)), "loader: builtins.object can't be stored"),
        (ForgetfulRequest(URL), "lost: the attribute can't be read"),
        (type("Made", (Request,), {})(URL), "can't be found by its module and name"),
    ],
)
def test_a_class_that_could_not_be_restored_is_rejected_every_time(
    codec: RequestCodec, request_: Request, why: str
) -> None:
    for _ in range(2):
        with pytest.raises(EncodeError, match=why):
            codec.encode(request_)


def test_attributes_that_a_class_does_not_list_are_restored(codec: RequestCodec) -> None:
    request: Any = SeleniumRequest(3, "x()", URL, meta={"a": 1})
    request.proxies = [("a", 1)]
    request.screenshot = True

    back: Any = codec.decode(codec.encode(request))

    assert (back.wait_time, back.script, back.proxies, back.secret(), back.parser) == (3, "x()", [("a", 1)], (1,), len)
    assert back.screenshot
    assert exact_request(back) == exact_request(request)
    shown = read_plain(codec.encode(request)).others
    assert (shown["wait_time"], shown["script"]) == (3, "x()")


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("wait_time", print, "^wait_time: builtins.builtin_function_or_method can't be stored"),
        ("loader", object(), "^loader: builtins.object can't be stored"),
        ("wait", 3, "^wait: an attribute that hides a method"),
        ("replace", 3, "^replace: an attribute that hides a method"),
    ],
)
def test_an_attribute_that_would_be_lost_keeps_the_request_here(
    codec: RequestCodec, name: str, value: Any, why: str
) -> None:
    request: Any = SeleniumRequest(3, "x()", URL)
    setattr(request, name, value)

    for _ in range(2):
        with pytest.raises(EncodeError, match=why):
            codec.encode(request)


@pytest.mark.parametrize("name", ["wait", "url", "_url", "meta", "_meta", "__class__", "__dict__", "a b", 1, "replace"])
def test_no_other_attribute_is_put_back(codec: RequestCodec, name: Any) -> None:
    path = f"{SeleniumRequest.__module__}:SeleniumRequest"
    with pytest.raises(DecodeError):
        codec.decode(b"\x01" + bytes(msgpack.packb({0: URL, 13: path, 18: {name: 1}})))
    if name != "wait":
        with pytest.raises(DecodeError):
            codec.decode(b"\x01" + bytes(msgpack.packb({0: URL, 18: {name: 1}})))


def test_attributes_of_a_plain_request_are_restored_where_it_can_have_any(codec: RequestCodec) -> None:
    request: Any = Request(URL)
    if HAS_DICT:
        request.foo = (1,)
    else:
        with pytest.raises(AttributeError):
            request.foo = (1,)

    back: Any = codec.decode(codec.encode(request))

    assert (getattr(back, "foo", None), type(back)) == (getattr(request, "foo", None), Request)


def test_a_class_with_its_own_dictionary_is_restored_as_from_scrapys_disk_queue(
    codec: RequestCodec, spider: Books
) -> None:
    request = PlaceRequest(
        URL, spider.parse_product, "PUT", place="/a/b", meta={"a": 1}, headers={"A": "b", "Referer": URL}, body="x"
    )

    payload = codec.encode(request, "shop.example", without_meta={"a"}, found=Found(URL, 1_700_000_001))

    back, found = codec.decode_found(payload, "shop.example")
    theirs = request_from_dict(request.to_dict(spider=spider), spider=spider)
    del theirs.meta["a"]
    assert isinstance(back, PlaceRequest)
    assert exact_request(back) == exact_request(theirs)
    assert (back.callback, back.is_new, back.meta) == (spider.parse_product, request.is_new, {"placed": True})
    assert found == Found(URL, 1_700_000_001)
    assert request.callback == spider.parse_product


def test_callback_and_class_in_a_to_dict_are_used(codec: RequestCodec, spider: Books) -> None:
    back = codec.decode(codec.encode(CalledRequest(URL, spider.parse_product, errback=spider.on_error)))

    assert (type(back), back.callback, back.errback) == (FormRequest, spider.on_error, spider.on_error)


def test_a_dictionary_that_can_not_be_made_keeps_the_request_here(codec: RequestCodec, spider: Books) -> None:
    request = BrokenRequest(URL, spider.parse_product)

    with pytest.raises(EncodeError, match=r"^to_dict\(\): ValueError\('no'\)"):
        codec.encode(request)
    assert request.callback == spider.parse_product


def test_a_class_inside_a_function_is_refused(codec: RequestCodec) -> None:
    class Local(Request):
        pass

    with pytest.raises(EncodeError, match="Local.*can't be found"):
        codec.encode(Local(URL))


def test_a_constructor_that_fails_later_is_a_decode_error(codec: RequestCodec, monkeypatch: pytest.MonkeyPatch) -> None:
    payload = codec.encode(SearchRequest(URL))
    monkeypatch.setattr(SearchRequest, "__init__", lambda self, **attributes: 1 / 0)

    with pytest.raises(DecodeError, match="ZeroDivisionError"):
        codec.decode(payload)
