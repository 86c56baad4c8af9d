"""Entries of a seeds key, and the messages for invalid ones."""

from __future__ import annotations

import json
from typing import Any

import pytest
from scrapy import Spider
from scrapy.http import Response

from scrapy_prioqueue.errors import SeedError
from scrapy_prioqueue.seeds.parsing import request_from_seed
from scrapy_prioqueue.tiers import TIER_META

URL = "https://example.com/a?b=1"


class Reader(Spider):
    name = "reader"

    def parse_item(self, response: Response) -> None:
        """Be a callback."""


@pytest.fixture
def spider() -> Spider:
    return Reader()


@pytest.mark.parametrize("data", [URL, f"  {URL}\n", json.dumps({"url": URL}), f' \n{{"url": "{URL}", "meta": null}} '])
def test_url_alone(spider: Spider, data: str) -> None:
    request = request_from_seed(data.encode(), spider)

    assert (request.url, request.method, request.body, request.callback) == (URL, "GET", b"", None)
    assert (request.meta, request.cb_kwargs, request.priority, request.dont_filter) == ({}, {}, 0, False)


def test_all_fields(spider: Reader) -> None:
    fields = {
        "url": URL,
        "method": "post",
        "headers": {"A": "1", "B": ["2", "3"]},
        "body": "é",
        "meta": {"x": [1, {"y": None}]},
        "cb_kwargs": {"z": 1.5},
        "tier": "high",
        "priority": -3,
        "callback": "parse_item",
        "dont_filter": True,
    }

    request = request_from_seed(json.dumps(fields).encode(), spider)

    assert (request.method, request.body, request.priority) == ("POST", "é".encode(), -3)
    assert request.headers.to_unicode_dict() == {"A": "1", "B": "2,3"}
    assert request.meta == {"x": [1, {"y": None}], TIER_META: "high"}
    assert request.cb_kwargs == {"z": 1.5}
    assert request.callback == spider.parse_item
    assert request.dont_filter


def with_url(**fields: Any) -> str:
    return json.dumps({"url": URL, **fields})


BAD = [
    ("", "url '' must begin with http:// or https://"),
    ("example.com", "must begin with http:// or https://"),
    ("file:///etc/passwd", "must begin with http:// or https://"),
    ("s3://bucket/key", "must begin with http:// or https://"),
    ("data:text/html,x", "must begin with http:// or https://"),
    ('{"url": "https://a.example", "errback": "parse"}', "unknown 'errback'"),
    ("http://", "must begin with http:// or https://"),
    ("http://[::1", "is not a URL"),
    ("http://a.example/\nhttp://b.example/", "one URL per entry"),
    ("{", "begins like a JSON object, but is not one"),
    ("{}", "has no url"),
    ('["http://a.example/"]', "must begin with"),
    ('{"url": null}', "url is null"),
    ('{"url": ["http://a.example/"]}', "url must be a string"),
    (with_url(cookies={}), "unknown 'cookies'; known: url, method, "),
    (with_url(method="GET /"), "not an HTTP method"),
    (with_url(method=1), "method must be a string"),
    (with_url(headers=["A"]), "headers must be an object"),
    (with_url(headers={"A": 1}), "headers['A'] must be a string or a list of strings"),
    (with_url(body={"a": 1}), "body must be a string"),
    (with_url(meta=[]), "meta must be an object"),
    (with_url(cb_kwargs="a"), "cb_kwargs must be an object"),
    (with_url(tier=0), "tier must be a string"),
    (with_url(priority="1"), "priority must be an integer"),
    (with_url(priority=True), "priority must be an integer"),
    (
        with_url(callback="parse_nothing"),
        "'parse_nothing' is not a public method of spider 'reader' that can be a callback",
    ),
    (with_url(callback="__init__"), "can be a callback"),
    (with_url(callback="closed"), "is not a public method of"),
    (with_url(callback="_parse"), "is not a public method of"),
    (with_url(meta={"download_slot": ["a", "b"]}), "['download_slot'] must be a string, not ['a', 'b']"),
    (with_url(meta={"prioqueue_inherited_tier": 5}), "'prioqueue_inherited_tier'] is set by the scheduler only"),
    (with_url(meta={"prioqueue_requeue_times": "x"}), "set by the scheduler only"),
    (with_url(meta={"prioqueue_teir": "low"}), "no key of the scheduler; did you mean prioqueue_tier?"),
    (with_url(dont_filter=1), "dont_filter must be true or false"),
]


@pytest.mark.parametrize(("data", "why"), BAD)
def test_invalid_entries_say_what_is_wrong(spider: Spider, data: str, why: str) -> None:
    with pytest.raises(SeedError) as caught:
        request_from_seed(data.encode(), spider)

    assert why in str(caught.value)


def test_an_entry_that_is_not_utf_8_says_so(spider: Spider) -> None:
    with pytest.raises(SeedError, match="not UTF-8"):
        request_from_seed(b"http://example.com/\xe9", spider)


def test_depth_of_json_has_an_end(spider: Spider) -> None:
    data = b'{"url": ' + b"[" * 200_000

    with pytest.raises(SeedError, match="begins like a JSON object"):
        request_from_seed(data, spider)
