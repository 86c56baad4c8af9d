"""How a request ends when the engine removes it from its set."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from scrapy import Request, Spider
from scrapy.exceptions import IgnoreRequest
from scrapy.utils.test import get_crawler
from twisted.python.failure import Failure

from scrapy_prioqueue.codec import RequestCodec
from scrapy_prioqueue.frontier.base import DEAD_BY_DOWNLOAD, Ack, Fail, Lease, Release
from scrapy_prioqueue.queues import verdicts
from scrapy_prioqueue.queues.endings import MOST_DROPS, Endings
from scrapy_prioqueue.queues.layers import Layers
from scrapy_prioqueue.queues.verdicts import Page, Requeue, Verdicts, last_lines
from scrapy_prioqueue.settings import Config

LEASE = Lease(1, 1, 0, "shop.example", b"")


class Bench:
    """The object that settles leases, and the operations that it has given to the pump."""

    def __init__(self) -> None:
        crawler = get_crawler(Spider)
        crawler.spider = Spider("endings")
        config = Config.from_settings(crawler.settings, "endings")
        self.told: list[object] = []
        self.engine = SimpleNamespace(is_closing=False)
        engine = cast("Any", self.engine)
        pump, budgets = SimpleNamespace(finish=self.told.append), SimpleNamespace(is_on=False)
        self.verdicts = Verdicts(crawler, engine, config, Layers(crawler, config))
        self.endings = Endings(
            crawler,
            config,
            engine,
            self.verdicts,
            RequestCodec(crawler.spider),
            cast("Any", pump),
            cast("Any", budgets),
            cast("Any", SimpleNamespace(dead_lettered=lambda *_, **__: None)),
        )

    def hand_out(self) -> Request:
        """Give a request to the engine."""
        request = Request("https://shop.example/")
        self.verdicts.hand_out(request)
        return request


def test_a_request_that_is_dropped_before_it_is_downloaded_is_released() -> None:
    bench = Bench()

    assert not bench.endings.end(bench.hand_out(), LEASE)

    assert bench.told == [Release(1, 1)]


def test_a_request_whose_failure_has_reached_the_spider_is_done() -> None:
    bench = Bench()
    request = bench.hand_out()
    failure: object = Failure(IgnoreRequest())  # type: ignore[no-untyped-call]
    verdicts.note_result(failure, Page(request, 0.0))

    assert bench.endings.end(request, LEASE)

    assert [type(each) for each in bench.told] == [Ack]


def test_a_request_of_which_a_middleware_has_made_another_is_done() -> None:
    bench = Bench()
    request = bench.hand_out()
    verdicts.note_replaced(request)

    assert bench.endings.end(request, LEASE)

    assert [type(each) for each in bench.told] == [Ack]


@pytest.mark.parametrize("is_closing", [False, True])
def test_a_request_that_is_dropped_again_and_again_is_given_up_unless_the_spider_closes(is_closing: bool) -> None:
    bench = Bench()
    bench.engine.is_closing = is_closing

    for _ in range(MOST_DROPS + 1):
        bench.endings.end(bench.hand_out(), LEASE)

    assert bench.told[:-1] == [Release(1, 1)] * MOST_DROPS
    last = bench.told[-1]
    assert last == Release(1, 1) if is_closing else isinstance(last, Fail) and last.reason == DEAD_BY_DOWNLOAD


def test_a_request_kept_in_process_that_is_dropped_is_put_back_there() -> None:
    bench = Bench()

    assert isinstance(bench.verdicts.decide_kept(bench.hand_out()), Requeue)


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("short\n", "short\n"),
        ("first line\nsecond\nthird\n", "…\nsecond\nthird\n"),
        ("the message\n" + 18 * "x" + "\n", "…\n" + 17 * "x" + "\n"),
        (30 * "x", "…\n" + 18 * "x"),
    ],
    ids=["short", "cut at a line", "long last line", "one line"],
)
def test_long_text_is_cut_at_a_line_and_says_so(text: str, kept: str) -> None:
    assert last_lines(text, 20) == kept


def test_a_long_reason_is_cut_and_says_so() -> None:
    detail = verdicts.described(ValueError("x" * 400))

    assert len(detail) == verdicts.DETAIL_LENGTH
    assert detail.startswith("ValueError: xxx") and detail.endswith("x…")
