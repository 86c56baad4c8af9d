"""Pages that a closing worker gives up, and those for which it waits."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from scrapy import Request
from scrapy.statscollectors import MemoryStatsCollector
from scrapy.utils.test import get_crawler

from scrapy_prioqueue.download_slots import DOWNLOADING, WAITING_FOR_SLOT
from scrapy_prioqueue.queues.slow_pages import SlowPages
from scrapy_prioqueue.queues.verdicts import note_handed_out

SLOW_S, PATIENCE_S = 180.0, 10.0
IN_PIPELINE = "its callback, or an item pipeline"


class Bench:
    """A closing worker with requests in progress, at times that the test sets."""

    def __init__(self) -> None:
        self.now = 0.0
        self.stages: dict[Request, str] = {}
        self.given_up: list[str] = []
        engine: Any = SimpleNamespace(is_closing=True, stage_of=self.stages.__getitem__)
        stats = MemoryStatsCollector(get_crawler())
        pump: Any = SimpleNamespace(
            take_blocked=lambda: False,
            note_slow=lambda _: None,
            ask=lambda *_: None,
            frontier=SimpleNamespace(is_local=True),
        )
        config: Any = SimpleNamespace(slow_page_s=SLOW_S, close_timeout_s=PATIENCE_S)
        crawler: Any = SimpleNamespace(stats=stats, spider=None)
        self._engine = engine
        self._pages = SlowPages(crawler, config, engine, pump, lambda _: None, self._give_up, lambda: self.now)

    def page(self, url: str, stage: str) -> None:
        """Add a request that the scheduler has given to the engine."""
        request = Request(f"http://shop.example/{url}")
        note_handed_out(request)
        self.stages[request] = stage

    def download(self, stage: str) -> Request:
        """Add a request that a callback or a pipeline has given to `engine.download()`."""
        request = Request("http://shop.example/image")
        self.stages[request] = stage
        return request

    def pass_time(self, seconds: float) -> None:
        """Look once a second."""
        until = self.now + seconds
        while self.now < until:
            self.now += 1
            self._engine.in_progress = tuple(self.stages)
            self._pages.look()

    def _give_up(self, request: Request) -> bool:
        del self.stages[request]
        self.given_up.append(request.url.rpartition("/")[2])
        return False


def test_a_page_without_progress_is_given_up_and_a_download_is_not() -> None:
    bench = Bench()
    bench.page("hangs", IN_PIPELINE)
    bench.page("downloads", DOWNLOADING)

    bench.pass_time(PATIENCE_S + 2)

    assert bench.given_up == ["hangs"]


@pytest.mark.parametrize("stage", [DOWNLOADING, WAITING_FOR_SLOT])
def test_a_page_whose_pipeline_downloads_a_file_is_waited_for(stage: str) -> None:
    bench = Bench()
    bench.page("item", IN_PIPELINE)
    image = bench.download(stage)

    bench.pass_time(5 * PATIENCE_S)
    assert not bench.given_up

    del bench.stages[image]
    bench.pass_time(PATIENCE_S + 2)
    assert bench.given_up == ["item"]


def test_a_download_that_may_never_end_keeps_no_page() -> None:
    bench = Bench()
    bench.page("item", IN_PIPELINE)
    bench.download(DOWNLOADING)

    bench.pass_time(SLOW_S + PATIENCE_S + 2)

    assert "item" in bench.given_up
