"""The use of Scrapy's private engine state, in crawls on the installed version of Scrapy."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.forks import StartFork
from tests.unit import engine_crawls

ASYNCIO = "twisted.internet.asyncioreactor.AsyncioSelectorReactor"
SELECT = "twisted.internet.selectreactor.SelectReactor"

Watch = Callable[[str], list[str]]


@pytest.fixture(params=[ASYNCIO, SELECT], ids=["asyncio", "select"])
def watch(request: pytest.FixtureRequest, start_fork: StartFork, tmp_path: Path) -> Watch:
    """Crawls with one of the schedulers of `engine_crawls` and returns its output."""

    def crawl(scheduler: str) -> list[str]:
        order = tmp_path / "order"
        order.write_text(f"{scheduler} {request.param}")
        process = start_fork(engine_crawls.main, order)
        assert process.wait(within=40) == 0
        return process.log.splitlines()

    return crawl


ALL_PAGES = ["child", "page-1", "page-2", "page-3", "raises"]


def test_each_request_is_done_exactly_once_also_one_whose_callback_fails(watch: Watch) -> None:
    told = watch("WatchingDone")

    assert sorted(line.removeprefix("done ") for line in told if line.startswith("done ")) == ALL_PAGES
    assert told[-1] == "closed finished"


@pytest.mark.parametrize("watch", [ASYNCIO], ids=["asyncio"], indirect=True)
def test_request_is_done_after_its_items_have_gone_through_the_pipelines(watch: Watch) -> None:
    told = watch("WatchingDone")

    for page in ALL_PAGES:
        items = [f"stored {page}/a"] if page == "raises" else [f"stored {page}/a", f"stored {page}/b"]
        assert all(told.index(item) < told.index(f"done {page}") for item in items)


@pytest.mark.parametrize("watch", [ASYNCIO], ids=["asyncio"], indirect=True)
def test_a_page_that_fetches_its_own_request_again_is_done_at_its_end(watch: Watch) -> None:
    assert watch("WatchingRepeated") == ["stored page/a", "done page", "closed finished"]


def test_start_is_followed_thing_by_thing_each_right_before_it_is_scheduled(watch: Watch) -> None:
    told = [line for line in watch("WatchingStart") if line.split()[0] != "stored"]

    assert told[0] == "gate opens"
    for number, page in enumerate(["data:,page-1", "data:,page-2", "data:,raises", "data:,page-3"]):
        at = told.index(f"yielded {page}")
        assert told[at + 1] == f"enqueued {page}"
        assert told[:at].count("end of start True") == 0, number
    assert [line for line in told if line.startswith("yielded")][-1] == "yielded {'item': 'from start'}"
    assert told.count("end of start True") == 1
    assert "yielded data:,child" not in told
    assert "enqueued data:,child" in told


def test_woken_engine_asks_at_once_and_not_at_its_next_heartbeat(watch: Watch) -> None:
    assert "asked before the heartbeat True" in watch("HidingOnce")


def test_spider_is_closed_with_the_first_reason_given_before_the_engine_runs(watch: Watch) -> None:
    told = watch("ClosingEarly")

    assert "running at open False" in told
    assert [line for line in told if line.startswith("closed")] == ["closed refused"]


def test_spider_is_closed_while_it_crawls(watch: Watch) -> None:
    assert watch("ClosingLate")[-1] == "closed enough"


def test_slots_and_places_are_those_of_the_downloader(watch: Watch) -> None:
    told = watch("Looking")

    assert "concurrency 4 3 4" in told
    assert "slots 2 3" in told
    assert any(line.startswith("slot of") and line.endswith(" own") for line in told)
    assert "closing False paused False" in told


def test_each_request_that_a_callback_yields_is_reported_with_the_request_of_its_page_before_it_is_scheduled(
    watch: Watch,
) -> None:
    told = watch("WatchingFound")

    # What an errback yields is of no known page; Scrapy 2.13.0 drops it where the download has failed.
    told_of_failure = "enqueued of-failure found on None"
    enqueued = sorted({*(line for line in told if line.startswith("enqueued of-")), told_of_failure})
    assert enqueued == [
        "enqueued of-async found on async",
        "enqueued of-coroutine found on coroutine",
        told_of_failure,
        "enqueued of-list found on list",
        "enqueued of-sync found on sync",
    ]
    assert "enqueued sync found on None" in told
    assert told[-1] == "closed finished"
