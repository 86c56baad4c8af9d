"""Each way to stop a worker: its unfinished requests stay in the frontier, and a later run fetches them."""

from __future__ import annotations

import signal
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from shop_chaos.view import FrontierView

from tests.crawl.spiders import FailingStarter, Mannered, SlowStarter
from tests.support.crawls import WITHIN_S, Crawl, CrawlResult, Crawls
from tests.support.servers import RedisServer
from tests.support.site import Site
from tests.support.tree import Tree, starts_of, tree_of
from tests.support.waiting import wait_until

# What a worker takes with it, or one that did not leave, would keep the next from the end for longer than a test waits.
FEW = {"PRIOQUEUE_LEASE_TTL": 600, "CONCURRENT_REQUESTS": 4}


@pytest.fixture
def view(redis_server: RedisServer, frontier_name: str) -> FrontierView:
    """The frontier as other tools read it."""
    return FrontierView(redis_server.client(), frontier_name)


def wait_for_pages(crawl: Crawl, number: int) -> None:
    wait_until(lambda: len(crawl.pages) >= number, what=f"{number} pages are asked for", within=WITHIN_S)


def interrupt(crawl: Crawl) -> None:
    crawl.interrupt()
    wait_until(lambda: "Received SIGINT" in crawl.process.log, what="the signal is noticed", within=WITHIN_S)


def check_is_resumed(
    tree: Tree,
    crawls: Crawls,
    site: Site,
    view: FrontierView,
    stopped: CrawlResult,
    *,
    put_back: Sequence[str] = (),
) -> None:
    """Check what a crawl that was stopped in good order has left, and let another process finish it."""
    tree.check_all_is_told(view, stopped, put_back=put_back)
    assert not view.has_ended()

    resumed = crawls.run(*tree.starts, spider=Mannered, settings=FEW)

    assert resumed.lines("Resumed crawl in frontier")
    assert resumed.reason == "finished"
    tree.check_all_is_fetched(site, again=put_back)


# In good order


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal(on_redis: Crawls, site: Site, view: FrontierView, number: signal.Signals) -> None:
    tree = tree_of(branches=8, leaves=4)
    tree.grow(site)

    first = on_redis.start(spider=Mannered, settings=FEW)
    wait_for_pages(first, 12)
    first.process.send(number)
    stopped = first.wait()

    assert stopped.reason == "shutdown"
    check_is_resumed(tree, on_redis, site, view, stopped)


@pytest.mark.parametrize("limit", ["PAGECOUNT", "ITEMCOUNT", "TIMEOUT"])
def test_a_limit_of_scrapy(on_redis: Crawls, site: Site, view: FrontierView, limit: str) -> None:
    tree = tree_of(branches=8, leaves=4)
    tree.grow(site, delay_s=0.15)
    number = {"PAGECOUNT": 10, "ITEMCOUNT": 10, "TIMEOUT": 1}[limit]

    stopped = on_redis.run(spider=Mannered, settings={**FEW, f"CLOSESPIDER_{limit}": number})

    assert stopped.reason == f"closespider_{limit.lower()}"
    check_is_resumed(tree, on_redis, site, view, stopped)


def test_a_limit_of_errors(on_redis: Crawls, site: Site, view: FrontierView) -> None:
    tree = tree_of(branches=8, leaves=4, b3="parse_and_fail", b4="parse_and_fail")
    tree.grow(site)

    stopped = on_redis.run(spider=Mannered, settings={**FEW, "CLOSESPIDER_ERRORCOUNT": 2}, troubles=True)

    assert stopped.reason == "closespider_errorcount"
    assert len(stopped.lines("Spider error processing")) == 2
    check_is_resumed(tree, on_redis, site, view, stopped)


def test_a_callback_that_closes_the_spider(on_redis: Crawls, site: Site, view: FrontierView) -> None:
    tree = tree_of(branches=8, leaves=4, b3="parse_and_close")
    tree.grow(site)

    stopped = on_redis.run(spider=Mannered, settings=FEW)

    assert stopped.reason == "enough"
    check_is_resumed(tree, on_redis, site, view, stopped, put_back=["/b3"])


# At once


def test_a_second_signal(on_redis: Crawls, site: Site, view: FrontierView) -> None:
    tree, gate = tree_of(branches=4, leaves=2), threading.Event()
    tree.grow(site, delay_s=0, gate=gate)
    named = on_redis.having(PRIOQUEUE_WORKER_ID="me")

    first = named.start(spider=Mannered, settings=FEW)
    wait_for_pages(first, 1 + 4 + 4)  # all leaves that may run are held
    interrupt(first)
    first.interrupt()
    stopped = first.wait(troubles=True)
    gate.set()
    leased = tree.check_nothing_is_lost(view, stopped)
    resumed = named.run(spider=Mannered, settings=FEW)

    assert stopped.reason is None
    assert set(stopped.pages[-4:]) <= set(leased)
    assert resumed.reason == "finished"
    tree.check_all_is_fetched(site, again=leased)


# While start() is read


def test_a_signal_while_start_has_more_to_come(on_redis: Crawls, site: Site, view: FrontierView) -> None:
    tree = starts_of(8)
    tree.grow(site)

    first = on_redis.start(*tree.starts, spider=SlowStarter, settings=FEW)
    wait_for_pages(first, 3)
    first.interrupt()
    stopped = first.wait()

    assert stopped.reason == "shutdown"
    assert len(stopped.scheduled) < len(tree.starts)
    check_is_resumed(tree, on_redis, site, view, stopped)


@pytest.mark.parametrize("requests_before", [0, 5])
def test_an_exception_in_start(on_redis: Crawls, site: Site, view: FrontierView, requests_before: int) -> None:
    tree = starts_of(8)
    tree.grow(site)

    stopped = on_redis.run(
        *tree.starts, spider=FailingStarter, settings=FEW, troubles=True, requests_before=requests_before
    )

    assert len(stopped.pages) == requests_before
    check_is_resumed(tree, on_redis, site, view, stopped)


# While the spider is opened


@pytest.mark.parametrize(
    "broken",
    [
        {"ITEM_PIPELINES": {"tests.crawl.spiders.BrokenPipeline": 1}},
        {"ITEM_PIPELINES": {"tests.crawl.spiders.LateBrokenPipeline": 1}},
        {"DUPEFILTER_CLASS": "tests.crawl.spiders.BrokenDupeFilter"},
        {"SCHEDULER": "tests.crawl.spiders.BrokenScheduler"},
    ],
    ids=["pipeline", "pipeline-late", "dupefilter", "scheduler"],
)
def test_an_exception_while_the_spider_is_opened(
    on_redis: Crawls, site: Site, view: FrontierView, broken: Mapping[str, Any]
) -> None:
    tree = tree_of(branches=8, leaves=4)
    tree.grow(site)
    stopped = on_redis.run(spider=Mannered, settings={**FEW, "CLOSESPIDER_PAGECOUNT": 5})
    tree.check_all_is_told(view, stopped)

    failed = on_redis.run(spider=Mannered, settings={**FEW, **broken}, troubles=True)

    assert failed.pages == []
    assert failed.lines("the opening of a test fails")
    check_is_resumed(tree, on_redis, site, view, stopped)
