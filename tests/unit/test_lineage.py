"""`meta["prioqueue"]`: its content, and how it is stored."""

from __future__ import annotations

import copy
import json
import pickle
from collections.abc import Callable
from typing import Any

import pytest
from scrapy import FormRequest, Request, Spider

from scrapy_prioqueue.codec import RequestCodec
from scrapy_prioqueue.codec.lineage import Found, Lineage
from scrapy_prioqueue.codec.plain import read_plain
from scrapy_prioqueue.frontier.base import Lease
from scrapy_prioqueue.queues.lineages import Lineages
from scrapy_prioqueue.rank import rank_of
from scrapy_prioqueue.tiers import TierPolicy

URL = "https://shop.example/p/1"
PAGE = "https://shop.example/list"


@pytest.fixture
def codec() -> RequestCodec:
    return RequestCodec(Spider("books"))


@pytest.fixture
def lineages() -> Lineages:
    return Lineages(TierPolicy(("high", "low"), "low"), "me")


@pytest.mark.parametrize(
    "change",
    [
        lambda lineage: lineage.update(id=2),
        lambda lineage: lineage.__setitem__("id", 2),
        lambda lineage: lineage.pop("id"),
        lambda lineage: lineage.popitem(),
        lambda lineage: lineage.clear(),
        lambda lineage: lineage.setdefault("more", 2),
        lambda lineage: lineage.__delitem__("id"),
        lambda lineage: lineage.__ior__({"id": 2}),
    ],
)
def test_a_lineage_refuses_changes(change: Callable[[Any], Any]) -> None:
    lineage = Lineage(id=1)

    with pytest.raises(TypeError, match="is read-only"):
        change(lineage)

    assert lineage == {"id": 1}


def test_a_lineage_survives_copies_and_becomes_json() -> None:
    lineage = Lineage(id=1, source=None)

    for same in (copy.copy(lineage), copy.deepcopy({"x": lineage})["x"], pickle.loads(pickle.dumps(lineage))):
        assert type(same) is Lineage
        assert same == {"id": 1, "source": None}
    assert json.loads(json.dumps({"x": lineage})) == {"x": {"id": 1, "source": None}}
    assert lineage.copy() | {"id": 2} == {"id": 2, "source": None}


def test_a_lineage_passed_on_in_meta_is_stored_as_a_dictionary(codec: RequestCodec) -> None:
    request = codec.decode(codec.encode(Request(URL, meta={"parent": Lineage(id=1, source=PAGE)})))

    assert request.meta == {"parent": {"id": 1, "source": PAGE}}
    assert type(request.meta["parent"]) is dict


@pytest.mark.parametrize("kind", [Request, FormRequest])
@pytest.mark.parametrize(
    "found", [Found(), Found(PAGE, 1_700_000_000), Found(None, 0), Found("https://é.example/ü", 1)]
)
@pytest.mark.parametrize("headers", [{}, {"Referer": PAGE}, {"Referer": "https://other.example/"}, {"Referer": []}])
def test_how_a_request_was_found_is_stored(
    codec: RequestCodec, kind: type[Request], found: Found, headers: dict[str, Any]
) -> None:
    request = kind(URL, headers=headers)

    payload = codec.encode(request, found=found)

    stored, stored_found = codec.decode_found(payload)
    assert stored_found == found
    assert (type(stored), stored.headers, stored.meta) == (kind, request.headers, {})
    plain = read_plain(payload)
    assert (plain.source, plain.found_s) == (found.source, found.at_s)


def test_a_source_that_is_the_referer_takes_few_bytes(codec: RequestCodec) -> None:
    request = Request(URL, headers={"Referer": PAGE})

    more = len(codec.encode(request, found=Found(PAGE, 1_700_000_000))) - len(codec.encode(request))

    assert more == 4


def test_the_mapping_that_a_spider_sees(lineages: Lineages) -> None:
    request = Request(URL)

    lineages.mark(request, Lease(7, 2, rank_of(0, 5), "slot", b""), Found(PAGE, 1_700_000_000))

    told = request.meta["prioqueue"]
    assert told.copy().pop("leased_at") > 1_700_000_000
    assert {key: value for key, value in told.items() if key != "leased_at"} == {
        "id": 7,
        "tier": "high",
        "attempt": 2,
        "discovered_at": 1_700_000_000,
        "source": PAGE,
        "worker": "me",
    }


def test_redirects_and_retries_inherit_and_children_do_not(lineages: Lineages) -> None:
    page = Request(PAGE)
    lineages.mark(page, Lease(7, 1, 0, "slot", b""), Found("https://shop.example/", 1_700_000_000))
    inherited = Found("https://shop.example/", 1_700_000_000)

    assert lineages.found(page.replace(url=URL), None) == inherited
    assert lineages.found(page.copy(), page) == inherited
    assert lineages.found(page.replace(method="POST", body="a=1"), page).source == PAGE
    child = lineages.found(Request(URL, meta=page.meta), page)
    assert child.source == PAGE
    assert child.at_s is not None and child.at_s > 1_700_000_000
    assert lineages.found(Request(URL), None).source is None
