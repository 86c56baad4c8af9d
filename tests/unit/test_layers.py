"""`escalate()` changes a request, and keeps no data longer than the request exists."""

from __future__ import annotations

import gc
import logging
from typing import Any
from weakref import ref

import pytest
from scrapy import Request, Spider
from scrapy.http import Response
from scrapy.utils.test import get_crawler

from scrapy_prioqueue import escalate
from scrapy_prioqueue.engine import StatCounter
from scrapy_prioqueue.queues import layers, verdicts
from scrapy_prioqueue.queues.layers import ESCALATION_META, LAYER_KEPT_META, Layers, arrive
from scrapy_prioqueue.settings import Config

URL = "http://shop.test/1"


def ladder(**layers: dict[str, Any]) -> Layers:
    crawler = get_crawler(Spider, {"PRIOQUEUE_LAYERS": layers or {"http": {}, "browser": {"wait": [1]}}})
    return Layers(crawler, Config.from_settings(crawler.settings, "shop"))


def stats() -> StatCounter:
    found = get_crawler(Spider).stats
    assert found is not None
    return StatCounter(found)


def in_progress(request: Request, layers: Layers | None = None) -> Response:
    """Hand a request out, and return its response."""
    verdicts.note_handed_out(request)
    (layers or ladder()).hand_out(request, None)
    return Response(request.url, request=request)


def test_changes_of_middlewares_are_undone() -> None:
    request = Request(URL, meta={"depth": 3, "referrer_policy": "origin"})
    climbing = escalate(in_progress(request), "captcha")
    assert climbing is not None

    climbing.meta["depth"] = 4
    arrive(climbing, stats())

    assert climbing.meta == {
        "depth": 3,
        "referrer_policy": "origin",
        "prioqueue_layer": "browser",
        "wait": [1],
    }
    assert climbing.dont_filter


def test_the_meta_of_a_layer_is_each_requests_own() -> None:
    first, second = (escalate(in_progress(Request(URL)), "captcha") for _ in range(2))
    assert first is not None and second is not None

    first.meta["wait"].append(2)

    assert second.meta["wait"] == [1]


def test_a_request_in_progress_is_not_changed() -> None:
    request = Request(URL, meta={"a": 1})

    escalate(in_progress(request), "captcha")

    assert request.meta == {"a": 1} and not request.dont_filter


@pytest.mark.parametrize("own", [None, 0, [1], {"a": 1}])
def test_a_key_that_each_layer_sets_is_the_requests_own_after_all_of_them(own: Any) -> None:
    layers = ladder(http={"mine": -1}, second={"mine": 2}, third={"mine": 3}, fourth={})
    request = Request(URL, meta={"mine": own})

    seen = []
    for _ in range(3):
        climbing = escalate(in_progress(request, layers), "captcha")
        assert climbing is not None
        arrive(climbing, stats())
        request = climbing
        seen.append(request.meta)

    assert seen[0] == {"mine": 2, "prioqueue_layer": "second", LAYER_KEPT_META: {"mine": own}}
    assert seen[1] == {"mine": 3, "prioqueue_layer": "third", LAYER_KEPT_META: {"mine": own}}
    assert seen[2] == {"mine": own, "prioqueue_layer": "fourth"}


def test_a_later_call_makes_no_request_and_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    response = in_progress(Request(URL))

    assert escalate(response, "captcha") is not None
    assert escalate(response.replace(body=b"other"), "no price") is None

    (line,) = [record for record in caplog.records if "escalated already" in record.getMessage()]
    assert line.levelno == logging.DEBUG and "no price" in line.getMessage()


def test_requests_of_others_arrive_as_they_are() -> None:
    request = Request(URL, meta={"depth": 2, ESCALATION_META: "a user's own"}, priority=3)

    arrive(request, stats())

    assert request.meta == {"depth": 2} and request.priority == 3


@pytest.mark.parametrize("meta", [{}, {"download_slot": "mine"}])
def test_a_request_without_a_host_can_be_escalated(meta: dict[str, str]) -> None:
    climbing = escalate(in_progress(Request("data:,page", meta=meta)), "captcha")

    assert climbing is not None
    assert climbing.meta.get("download_slot") == meta.get("download_slot")


@pytest.mark.parametrize(
    ("reason", "name"),
    [("", "unspecified"), (" \n", "unspecified"), ("no\n price", "no price"), ("x" * 101, "x" * 100)],
)
def test_a_reason_is_a_short_line_in_stats(reason: str, name: str) -> None:
    crawler = get_crawler(Spider, {"PRIOQUEUE_LAYERS": "http,browser"})
    request = Request(URL)
    verdicts.note_handed_out(request)
    Layers(crawler, Config.from_settings(crawler.settings, "shop")).hand_out(request, None)

    climbing = escalate(Response(URL, request=request), reason)

    assert climbing is not None
    counted = stats()
    arrive(climbing, counted)
    assert counted.read()["prioqueue/escalated/browser/" + name] == 1


def test_a_page_is_counted_once_when_it_is_scheduled() -> None:
    counted = stats()
    climbing = escalate(in_progress(Request(URL)), "captcha")
    assert climbing is not None
    both = (climbing.replace(url=URL + "?a"), climbing.replace(url=URL + "?b"))
    assert not counted.read()

    for request in both:
        arrive(request, counted)

    assert counted.read() == {"prioqueue/escalated": 1, "prioqueue/escalated/browser/captcha": 1}
    assert ESCALATION_META not in {**both[0].meta, **both[1].meta}


def test_nothing_is_kept_of_a_request_that_is_gone() -> None:
    request = Request(URL)
    escalate(in_progress(request), "captcha")
    gone, before = ref(request), len(layers._handed)  # noqa: SLF001

    del request
    gc.collect()

    assert gone() is None
    assert len(layers._handed) < before  # noqa: SLF001
