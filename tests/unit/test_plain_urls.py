"""The fast path for plain URLs gives the same payload, fingerprint and slot as a request."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from scrapy import Request
from scrapy.utils.httpobj import urlparse_cached
from scrapy.utils.request import RequestFingerprinter, fingerprint

from scrapy_prioqueue.client.plain_urls import PlainUrls
from scrapy_prioqueue.codec.detached import DetachedCodec, NamedCallback
from scrapy_prioqueue.dupefilter import DupeFilter

CODEC = DetachedCodec()

WORDS = st.text("abzAZ09_.~-% +&=/?#éß;:@", max_size=8)
HOSTS = st.text("abz09.-", max_size=12)
MADE = st.builds(
    "{}://{}{}/{}{}".format,
    *(st.sampled_from(["http", "https", "HTTP", "ftp"]), HOSTS, st.sampled_from(["", ":80", ":8080", ":0", "."])),
    *(WORDS, st.one_of(st.just(""), st.builds("?{}={}&{}={}".format, WORDS, WORDS, WORDS, WORDS), WORDS)),
)
KINDS: list[dict[str, Any]] = [
    {},
    {"callback": NamedCallback("parse_book"), "meta": {"a": [1]}, "priority": 3, "headers": {"A": "b"}},
    {"dont_filter": True},
    {"meta": {"depth": 1}, "errback": NamedCallback("_errback")},
]


@given(MADE)
@example("https://shop.example/p/1?a=1&a=0")
@example("https://shop.example/p/1?b=1&a=1")
@example("https://shop.example/a/../b")
@example("https://shop.example?a=1")
@example("https://shop.example/.")
@example("https://127.0.0.1:8000/")
@example("https://xn--bcher-kva.example")
@example("https://shop.example/p?a=1#part")
def test_the_short_way_comes_to_the_same(url: str) -> None:
    for parts in KINDS:
        for slot in (None, "z", "one-for-all"):
            plain = PlainUrls(CODEC, Request("https://model.example/", **parts), fingerprint, slot)
            assert plain.is_usable

            made = plain.make(url)

            if made is not None:
                request = Request(url, **parts)
                host = urlparse_cached(request).hostname or ""
                wanted = None if request.dont_filter else fingerprint(request)
                assert made == (CODEC.encode(request, slot or host), wanted, host)


@given(MADE, st.sampled_from(["GET", "POST"]), st.sampled_from([b"", b"a=1"]))
@example("https://shop.example/p/1?a=1&b=2", "GET", b"")
@example("https://shop.example/p/1?a=1&b=2", "POST", b"")
@example("https://shop.example/p/1?a=1&b=2", "GET", b"a=1")
def test_the_dupefilter_finds_scrapys_fingerprint_whichever_way_it_goes(url: str, method: str, body: bytes) -> None:
    request = Request(url, method=method, body=body)

    assert DupeFilter().fingerprint(request) == fingerprint(request)


def test_a_fingerprinter_of_the_users_own_is_always_asked() -> None:
    class OneForAll(RequestFingerprinter):
        def fingerprint(self, request: Request) -> bytes:
            return b"the same"

    dupefilter = DupeFilter(fingerprinter=OneForAll())

    assert dupefilter.fingerprint(Request("https://shop.example/p/1?a=1&b=2")) == b"the same"


def test_most_urls_take_it() -> None:
    plain = PlainUrls(CODEC, Request("https://model.example/"), fingerprint)

    assert plain.make("https://shop.example:8080/catalogue/tea_12/?page=2&sort=asc") is not None
    assert plain.make("https://shop.example/caf%C3%A9") is None


@pytest.mark.parametrize("port", [65536, 99999])
def test_an_impossible_port_is_left_for_scrapy_to_reject(port: int) -> None:
    plain = PlainUrls(CODEC, Request("https://model.example/"), fingerprint)

    assert plain.make(f"https://shop.example:{port}/") is None


def test_a_method_or_a_fingerprint_of_ones_own_takes_the_long_way() -> None:
    assert not PlainUrls(CODEC, Request("https://a.example/", method="PUT"), fingerprint).is_usable
    assert not PlainUrls(CODEC, Request("https://a.example/"), lambda request: request.url.encode()).is_usable


def test_a_request_that_can_not_be_filtered_needs_no_fingerprint() -> None:
    plain = PlainUrls(CODEC, Request("https://a.example/", method="PUT"), lambda request: None)

    made = plain.make("https://a.example/1")

    assert made == (CODEC.encode(Request("https://a.example/1", method="PUT"), "a.example"), None, "a.example")


def test_a_model_that_depends_on_the_url_takes_the_slow_path() -> None:
    model = Request("https://a.example/", headers={"Referer": "https://a.example/2"})

    assert not PlainUrls(CODEC, model, fingerprint).is_usable
