"""A worker is stopped while Redis is unavailable: it logs what it could not report, and that is fetched again."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from shop_chaos.view import FrontierView

from tests.crawl.spiders import SlowStarter
from tests.crawl.test_reactors import LOOPS
from tests.crawl.test_shutdown import interrupt, wait_for_pages
from tests.support.crawls import WITHIN_S, Crawl, CrawlResult, Crawls
from tests.support.servers import RedisServer, StartServer
from tests.support.shop import let_pass
from tests.support.site import Site
from tests.support.tree import Tree, starts_of, tree_of
from tests.support.waiting import wait_until

pytestmark = pytest.mark.server_faults

UNTOLD = re.compile(
    r"Closed before the frontier at \S+ confirmed everything \(.+\)\. Not confirmed: (\d+) (?:acks?,|requests? )"
)

QUICK = {
    "PRIOQUEUE_WORKER_ID": "me",  # a process under the same id gets its leases back at once
    "PRIOQUEUE_LEASE_TTL": 600,
    "PRIOQUEUE_REDIS_TIMEOUT": 1,
    "CONCURRENT_REQUESTS": 4,
    "PRIOQUEUE_ON_OUTAGE": "pause",  # what is begun without the server and not told is fetched again
}
GIVES_UP_SOON = {**QUICK, "PRIOQUEUE_CLOSE_TIMEOUT": 1}


@pytest.fixture
def server(redis_server_factory: StartServer) -> RedisServer:
    """A server of this test's own, which keeps what it has confirmed."""
    return redis_server_factory(appendonly=True, appendfsync="always")


@pytest.fixture
def own(on_redis: Crawls, server: RedisServer) -> Crawls:
    """Crawls whose frontier is on that server."""
    return on_redis.having(PRIOQUEUE_REDIS_URL=server.url)


def kill(server: RedisServer) -> None:
    server.kill()


def freeze(server: RedisServer) -> None:
    server.freeze()


def bring_back(server: RedisServer) -> None:
    """Start or thaw the server."""
    if server.is_running:
        server.thaw()
    else:
        server.start()


def stutter_until(server: RedisServer, condition: Callable[[], bool], *, what: str) -> None:
    """Let the server answer late, in short moments, until a condition is true."""

    def is_true_now() -> bool:
        server.freeze()
        let_pass(0.15)
        server.thaw()
        let_pass(0.02)
        return condition()

    wait_until(is_true_now, what=what, within=WITHIN_S)


def view_of(server: RedisServer, frontier_name: str) -> FrontierView:
    """Return the frontier as it is when the server has read all that workers have sent before they ended."""
    view = FrontierView(server.client(), frontier_name)
    wait_until(lambda: view.connections() == 1, what="all workers are gone", within=WITHIN_S)
    return view


def notice(crawl: Crawl) -> None:
    """Wait until the worker knows that the server is away."""
    wait_until(lambda: "; this worker keeps trying to reconnect" in crawl.process.log, what="outage", within=WITHIN_S)


def check_is_resumed(tree: Tree, crawls: Crawls, site: Site, view: FrontierView, stopped: CrawlResult) -> None:
    """Check the frontier after a worker closed without reporting everything, and finish the crawl."""
    leased = tree.check_nothing_is_lost(view, stopped)

    resumed = crawls.run(*tree.starts, settings=QUICK)

    assert resumed.reason == "finished"
    tree.check_all_is_fetched(site, again=leased)


outages = pytest.mark.parametrize("begin", [kill, freeze])

ON_LOOPS = [
    pytest.param(kill, *LOOPS[0].values, id="kill"),
    *(pytest.param(freeze, *loop.values, id=f"freeze-{loop.id}") for loop in LOOPS),
]


@pytest.mark.parametrize("begin, process, settings, said", ON_LOOPS)
def test_one_signal(
    own: Crawls,
    site: Site,
    server: RedisServer,
    frontier_name: str,
    begin: Callable[[RedisServer], None],
    process: str,
    settings: Mapping[str, Any],
    said: str,
) -> None:
    tree = tree_of(branches=8, leaves=4)
    tree.grow(site)

    first = own.start(settings={**GIVES_UP_SOON, **settings}, process=process)
    wait_for_pages(first, 12)
    begin(server)
    notice(first)
    interrupt(first)
    stopped = first.wait()
    bring_back(server)
    view = view_of(server, frontier_name)

    assert said in stopped.log
    assert stopped.reason == "shutdown"
    assert [int(untold) > 0 for untold in UNTOLD.findall(stopped.log)] == [True]
    check_is_resumed(tree, own, site, view, stopped)


@outages
def test_two_signals(
    own: Crawls, site: Site, server: RedisServer, frontier_name: str, begin: Callable[[RedisServer], None]
) -> None:
    tree = tree_of(branches=8, leaves=4)
    tree.grow(site)

    first = own.start(settings=QUICK)
    wait_for_pages(first, 12)
    begin(server)
    notice(first)
    interrupt(first)
    first.interrupt()
    stopped = first.wait(troubles=True)
    bring_back(server)
    view = view_of(server, frontier_name)

    assert stopped.reason is None
    check_is_resumed(tree, own, site, view, stopped)


@outages
def test_a_signal_and_then_the_end_of_the_outage(
    own: Crawls, site: Site, server: RedisServer, frontier_name: str, begin: Callable[[RedisServer], None]
) -> None:
    """The worker reports what it has done before it closes, so nothing is repeated."""
    tree = tree_of(branches=8, leaves=4)
    tree.grow(site)

    first = own.start(settings={**QUICK, "PRIOQUEUE_CLOSE_TIMEOUT": WITHIN_S})
    wait_for_pages(first, 12)
    begin(server)
    notice(first)
    interrupt(first)
    let_pass(0.5)
    bring_back(server)
    stopped = first.wait()
    view = view_of(server, frontier_name)

    assert stopped.reason == "shutdown"
    tree.check_all_is_told(view, stopped)
    resumed = own.run(settings=QUICK)
    assert resumed.reason == "finished"
    tree.check_all_is_fetched(site)


def test_requests_whose_ends_were_not_sent_go_to_others_when_leases_expire(
    own: Crawls, site: Site, server: RedisServer, frontier_name: str
) -> None:
    tree = tree_of(branches=8, leaves=4)
    tree.grow(site)
    short = {"PRIOQUEUE_LEASE_TTL": 2}

    first = own.start(settings={**GIVES_UP_SOON, **short})
    wait_for_pages(first, 12)
    server.kill()
    notice(first)
    interrupt(first)
    stopped = first.wait()
    bring_back(server)
    view = view_of(server, frontier_name)
    leased = tree.check_nothing_is_lost(view, stopped)
    own.run(settings={**QUICK, **short, "PRIOQUEUE_WORKER_ID": "other"})

    assert leased
    tree.check_all_is_fetched(site, again=leased)


# While start() is read


@outages
def test_a_signal_while_start_waits_for_the_server(
    own: Crawls, site: Site, server: RedisServer, frontier_name: str, begin: Callable[[RedisServer], None]
) -> None:
    tree = starts_of(60)
    tree.grow(site)
    slowly: Mapping[str, Any] = {"spider": SlowStarter, "pause_s": 0.02}

    first = own.start(*tree.starts, settings={**GIVES_UP_SOON, "PRIOQUEUE_OUTBOX_LIMIT": 5}, **slowly)
    wait_for_pages(first, 5)
    begin(server)
    notice(first)
    let_pass(0.5)
    interrupt(first)
    stopped = first.wait()
    bring_back(server)
    view = view_of(server, frontier_name)

    assert stopped.reason == "shutdown"
    assert len(stopped.scheduled) < len(tree.starts)
    check_is_resumed(tree, own, site, view, stopped)


def test_a_signal_while_start_is_read_against_a_slow_server(
    own: Crawls, site: Site, server: RedisServer, frontier_name: str
) -> None:
    tree = starts_of(60)
    tree.grow(site)
    patient = {**QUICK, "PRIOQUEUE_OUTBOX_LIMIT": 5, "PRIOQUEUE_REDIS_TIMEOUT": 5}

    first = own.start(*tree.starts, settings=patient)
    stutter_until(server, lambda: len(first.pages) >= 5, what="five pages are asked for")
    first.interrupt()
    stutter_until(server, lambda: not first.process.is_running, what="the worker has ended")
    stopped = first.wait()
    view = view_of(server, frontier_name)

    assert stopped.reason == "shutdown"
    assert len(stopped.scheduled) < len(tree.starts)
    tree.check_all_is_told(view, stopped)
    check_is_resumed(tree, own, site, view, stopped)


# While the spider is opened


@outages
def test_a_signal_while_the_worker_joins(
    own: Crawls, site: Site, server: RedisServer, frontier_name: str, begin: Callable[[RedisServer], None]
) -> None:
    tree = tree_of(branches=2, leaves=2)
    tree.grow(site)
    begin(server)

    first = own.start(settings={**QUICK, "PRIOQUEUE_REDIS_TIMEOUT": 20})
    wait_until(lambda: "Spider opened" in first.process.log, what="it begins to join", within=WITHIN_S)
    first.interrupt()
    stopped = first.wait(troubles=True)
    bring_back(server)
    view_of(server, frontier_name)
    resumed = own.having(PRIOQUEUE_WORKER_ID="other").run(settings={"PRIOQUEUE_LEASE_TTL": 2})

    assert stopped.pages == []
    assert resumed.reason == "finished"
    tree.check_all_is_fetched(site)
