"""A payload can be read as plain data without a spider."""

from __future__ import annotations

import msgpack
import pytest
from scrapy import FormRequest, Request, Spider
from scrapy.http.request import NO_CALLBACK
from scrapy.http.response import Response

from scrapy_prioqueue.codec import RequestCodec
from scrapy_prioqueue.codec.plain import PlainRequest, read_plain
from scrapy_prioqueue.errors import DecodeError


class BooksSpider(Spider):
    name = "books"

    def parse_book(self, response: Response) -> None:
        """A callback."""

    def give_up(self, failure: object) -> None:
        """An errback."""


def plain(request: Request, spider: Spider | None = None) -> PlainRequest:
    return read_plain(RequestCodec(spider or BooksSpider()).encode(request))


def test_a_plain_request_has_its_url_and_nothing_else() -> None:
    assert plain(Request("https://a.example/1")) == PlainRequest("https://a.example/1")


def test_every_field_is_read() -> None:
    spider = BooksSpider()
    request = Request(
        "https://a.example/1",
        spider.parse_book,
        "POST",
        headers={"X-Token": "t", "Accept": ["a", "b"]},
        body=b"\xff",
        cookies={"a": "b"},
        meta={"depth": 3},
        priority=7,
        dont_filter=True,
        errback=spider.give_up,
        flags=["cached"],
        cb_kwargs={"page": (1, 2)},
    )

    assert plain(request, spider) == PlainRequest(
        url="https://a.example/1",
        method="POST",
        callback="parse_book",
        errback="give_up",
        priority=7,
        meta={"depth": 3},
        headers={"X-Token": "t", "Accept": "a, b"},
        cookies={"a": "b"},
        body=b"\xff",
        cb_kwargs={"page": (1, 2)},
        flags=["cached"],
        dont_filter=True,
    )


def test_no_callback_and_the_class_are_named() -> None:
    found = plain(FormRequest("https://a.example/1", NO_CALLBACK, formdata={"a": "b"}))

    assert (found.callback, found.request_class) == ("NO_CALLBACK", "scrapy.http.request.form:FormRequest")


def test_lineage_is_read_and_a_source_that_is_the_referer_is_spelled_out() -> None:
    fields = {0: "https://a.example/1", 3: {0: b"https://a.example/"}, 15: True, 16: 1_700_000_000}

    found = read_plain(b"\x01" + msgpack.packb(fields))

    assert (found.source, found.found_s) == ("https://a.example/", 1_700_000_000)
    assert read_plain(b"\x01" + msgpack.packb({**fields, 15: "https://b.example/"})).source == "https://b.example/"


def test_fields_of_a_newer_version_are_kept_apart() -> None:
    assert read_plain(b"\x01" + msgpack.packb({0: "https://a.example/1", 99: "new"})).unknown == {99: "new"}


@pytest.mark.parametrize(
    "payload",
    [b"", b"\x02\x80", b"\x01", b"\x01\x90", b"\x01\x80", b"\x01\xc1", b"\x01" + msgpack.packb({3: 5, 0: "u"})],
)
def test_bytes_that_are_no_request_are_a_decode_error(payload: bytes) -> None:
    with pytest.raises(DecodeError):
        read_plain(payload)
