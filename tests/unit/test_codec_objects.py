"""Requests of an in-process frontier: which stay objects, and which are stored as payloads."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from scrapy import Request, Spider
from scrapy.http import JsonRequest

from scrapy_prioqueue.codec.lineage import Found
from scrapy_prioqueue.codec.objects import ObjectCodec, is_plain
from scrapy_prioqueue.errors import DecodeError
from scrapy_prioqueue.frontier.labels import Label, labelled

URL = "https://shop.example/p/1"


class Waiting(Request):
    """Keeps an attribute to itself."""

    def __init__(self, *args: Any, wait_time: int | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.wait_time = wait_time


@pytest.fixture
def spider() -> Spider:
    return Spider("shop")


@pytest.fixture
def codec(spider: Spider) -> ObjectCodec:
    return ObjectCodec(spider, lambda _: False)


def test_plain_requests_are_encoded(codec: ObjectCodec, spider: Spider) -> None:
    request = Request(URL, spider.parse, meta={"depth": 3, "page": "2"}, cb_kwargs={"a": None}, headers={"A": "b"})

    found, _ = codec.take_found(codec.encode(request))

    assert found is not request
    assert found.to_dict(spider=spider) == request.to_dict(spider=spider)


@pytest.mark.parametrize(
    "request_",
    [
        Request(URL, meta={"group": {"left": 3}}),
        Request(URL, cb_kwargs={"items": []}),
        Request(URL, cookies={"a": "b"}),
        Request(URL, flags=["a"]),
        Request(URL, partial(print, 1)),
        Request(URL, Spider("other").parse),
        Request(URL, meta={"file": object()}),
        Request(URL, priority=True),
        JsonRequest(URL, data={"a": 1}),
        Waiting(URL, wait_time=3),
    ],
    ids=repr,
)
def test_all_others_stay_the_object(codec: ObjectCodec, request_: Request) -> None:
    payload = codec.encode(request_, found=Found("https://shop.example/", 7))

    assert codec.take_found(payload) == (request_, Found("https://shop.example/", 7))


def test_requests_that_are_not_stored_are_not_counted_and_are_removed(codec: ObjectCodec) -> None:
    inherited = Request(URL, meta={"lineage": {}, "page": 1})
    mutable = Request(URL, meta={"lineage": {}, "pages": [1]})

    assert is_plain(inherited, ["lineage"])
    assert codec.take_found(codec.encode(mutable, without_meta=["lineage"]))[0].meta == {"pages": [1]}


def test_another_reading_is_the_request_as_it_was_scheduled(codec: ObjectCodec) -> None:
    pages = [1]
    request = Waiting(URL, meta={"pages": pages}, wait_time=3)
    payload = codec.encode(request)

    taken, _ = codec.take_found(payload)
    taken.meta["proxy"] = "p"
    taken.headers["Proxy-Authorization"] = "secret"
    again = codec.decode(payload)

    assert isinstance(again, Waiting)
    assert again is not taken
    assert (again.meta, again.headers, again.wait_time) == ({"pages": pages}, {}, 3)
    assert again.meta["pages"] is pages


def test_an_object_is_returned_once(spider: Spider) -> None:
    in_progress = Request(URL, meta={"pages": []})
    codec = ObjectCodec(spider, lambda request: request is in_progress)
    other = Request(URL, meta={"pages": []})

    payloads = [codec.encode(in_progress), codec.encode(other), codec.encode(other)]
    taken = [codec.take_found(payload)[0] for payload in [*payloads, payloads[1]]]

    assert len({id(request) for request in [*taken, in_progress]}) == 5
    assert taken[1] is other
    assert all(request.meta["pages"] is other.meta["pages"] for request in taken[1:])


def test_an_object_that_is_done_is_forgotten(codec: ObjectCodec) -> None:
    payloads = [codec.encode(Request(URL, meta={"pages": []})) for _ in range(2)]
    with_label = labelled(payloads[0], Label(False, ["shop.example"]))
    assert codec.decode(with_label).meta == {"pages": []}

    codec.forget(with_label)

    with pytest.raises(DecodeError, match="no object 1"):
        codec.decode(payloads[0])
    assert codec.decode(payloads[1]).meta == {"pages": []}
