"""Pushes by a program: their order, duplicates, their crawl, and rejected requests."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from scrapy import Request

from scrapy_prioqueue import FrontierClient
from scrapy_prioqueue.client import CrawlPlan, Draft, Item, Pushed
from scrapy_prioqueue.codec.detached import DetachedCodec, NamedCallback
from scrapy_prioqueue.errors import EncodeError, FrontierFull, LayoutMismatch, RequestError, SettingError
from scrapy_prioqueue.frontier.base import Depth, OnFinish
from scrapy_prioqueue.frontier.redis.keys import Keys
from scrapy_prioqueue.frontier.seen import SeenPolicy
from tests.commands.requests import page
from tests.contract.backends import RedisBackend, Worker, ack
from tests.support.servers import RedisServer, StartServer

TIERS = ("urgent", "high", "normal", "low")


def join(backend: RedisBackend, name: str = "w1", **config: Any) -> Worker:
    """Join as the workers of a real crawl do: by the server's clock, with four tiers."""
    return backend.join(name, tiers=TIERS, clock=None, **config)


def served(worker: Worker) -> list[Request]:
    """Lease all and return the requests."""
    return [DetachedCodec().decode(lease.payload, lease.slot) for lease in worker.lease(1000)]


def urls(worker: Worker) -> list[str]:
    """Lease all and return the URLs."""
    return [request.url for request in served(worker)]


def test_a_worker_gets_what_was_pushed_before_any_crawl(client: FrontierClient, backend: RedisBackend) -> None:
    assert client.push("https://a.example/1")

    worker = join(backend)

    assert client.depth() == Depth(accepted=1, pending=1, workers=1)
    assert urls(worker) == ["https://a.example/1"]


def test_urls_of_a_tier_are_served_in_the_order_pushed(client: FrontierClient, backend: RedisBackend) -> None:
    wanted = [f"https://a.example/{number}" for number in range(5)]

    assert client.push_many(wanted) == Pushed(accepted=5)

    assert urls(join(backend)) == wanted


def test_tier_and_priority_decide_what_is_served_first(client: FrontierClient, backend: RedisBackend) -> None:
    client.push("https://a.example/low", tier="low")
    client.push("https://a.example/normal")
    client.push("https://a.example/better", priority=5)
    client.push("https://a.example/best", priority=2**50)
    client.push("https://a.example/urgent", tier="urgent")

    found = [url.rpartition("/")[2] for url in urls(join(backend))]

    assert found == ["urgent", "best", "better", "normal", "low"]


def test_all_parts_of_a_request_arrive(client: FrontierClient, backend: RedisBackend) -> None:
    client.push(
        "https://a.example/search",
        callback="parse_results",
        errback="on_error",
        method="POST",
        body="q=tea",
        headers={"X-Token": "t"},
        meta={"page": (1, 2)},
        cb_kwargs={"word": "tea"},
        priority=3,
    )

    (request,) = served(join(backend))

    assert (request.callback, request.errback) == (NamedCallback("parse_results"), NamedCallback("on_error"))
    assert (request.method, request.body, request.headers["X-Token"]) == ("POST", b"q=tea", b"t")
    assert (request.meta, request.cb_kwargs, request.priority) == ({"page": (1, 2)}, {"word": "tea"}, 3)


def test_requests_drafts_and_mappings_can_be_pushed_together(client: FrontierClient, backend: RedisBackend) -> None:
    items: list[Item] = [
        Request("https://a.example/1"),
        Draft(url="https://a.example/2"),
        {"url": "https://a.example/3", "priority": -1},
    ]

    client.push_many(items, meta={"from": "here"})

    found = served(join(backend))
    assert [request.url[-1] for request in found] == ["1", "2", "3"]
    assert found[2].meta == {"from": "here"}


def test_a_second_push_is_a_duplicate_and_one_that_is_not_filtered_is_none(client: FrontierClient) -> None:
    assert client.push("https://a.example/?b=2&a=1")
    assert not client.push(Request("https://a.example/?a=1&b=2"))
    assert client.push("https://a.example/?b=2&a=1", dont_filter=True)

    assert client.depth() == Depth(accepted=2, pending=2)


def test_requests_found_by_a_worker_are_duplicates_for_a_program(client: FrontierClient, backend: RedisBackend) -> None:
    request = Request("https://a.example/1")
    worker = join(backend)
    worker.commit(page(request.url))

    assert not client.push(request)


def test_delayed_requests_wait(client: FrontierClient, backend: RedisBackend) -> None:
    client.push("https://a.example/now")
    client.push("https://a.example/later", delay=timedelta(minutes=5))
    client.push("https://a.example/tomorrow", not_before=datetime.now(timezone.utc) + timedelta(days=1))
    client.push("https://a.example/past", not_before=time.time() - 5)

    assert client.depth() == Depth(accepted=4, pending=2, delayed=2)
    assert [url.rpartition("/")[2] for url in urls(join(backend))] == ["now", "past"]
    due = {pending.url.rpartition("/")[2]: pending.due_ms for pending in client.pending()}
    assert due["later"] < due["tomorrow"]


def test_many_go_in_pieces_with_progress(client: FrontierClient) -> None:
    heard: list[int] = []
    wanted = [f"https://a.example/{number % 4500}" for number in range(5000)]

    pushed = client.push_many(wanted, progress=heard.append)

    assert pushed == Pushed(accepted=4500, duplicates=500)
    assert heard[-1] == 5000 and len(heard) > 1


def test_a_push_wakes_a_worker_that_waits(
    client: FrontierClient, backend: RedisBackend, redis_server: RedisServer, frontier_name: str
) -> None:
    join(backend).lease(1)
    redis: Any = redis_server.client()
    listener = redis.pubsub(ignore_subscribe_messages=True)
    listener.subscribe(Keys(frontier_name).bell)
    listener.get_message(timeout=5)

    client.push("https://a.example/")

    assert listener.get_message(timeout=5) is not None
    listener.close()


def end(worker: Worker, *, leaves: bool) -> None:
    """Let a worker do all there is, and the crawl end."""
    worker.send(*[ack(lease) for lease in worker.lease(100)], demand=None)
    assert worker.ask(is_idle=True).has_ended
    if leaves:
        worker.leave()


def test_a_push_after_the_end_opens_the_crawl_again(client: FrontierClient, backend: RedisBackend) -> None:
    client.push("https://a.example/1")
    worker = join(backend)
    end(worker, leaves=False)

    assert not client.push("https://a.example/1")
    assert client.push("https://a.example/2")

    assert urls(worker) == ["https://a.example/2"]


@pytest.mark.parametrize(
    ("on_finish", "own", "is_new"),
    [("restart", None, True), ("keep", None, False), ("keep", "restart", True), ("restart", "keep", True)],
)
def test_a_push_to_a_finished_crawl_begins_the_next_one(
    backend: RedisBackend,
    redis_server: RedisServer,
    frontier_name: str,
    on_finish: str,
    own: OnFinish | None,
    is_new: bool,
) -> None:
    plan = CrawlPlan(TIERS, on_finish=own)
    with FrontierClient(redis_server.url, frontier_name, plan=plan) as client:
        client.push("https://a.example/1")
        end(join(backend, on_finish=on_finish), leaves=True)

        client.push("https://a.example/2")

        assert client.push("https://a.example/1") == is_new
        assert client.depth() == Depth(accepted=1 + is_new, pending=1 + is_new)
    joined = join(backend, "w2", on_finish=own or on_finish)
    assert urls(joined) == ["https://a.example/2", "https://a.example/1"][: 1 + is_new]


def test_a_program_begins_the_crawl_that_its_workers_will_join(
    backend: RedisBackend, redis_server: RedisServer, frontier_name: str
) -> None:
    plan = CrawlPlan(("first", "last"), order="fifo", crawl_id="monday")
    with FrontierClient(redis_server.url, frontier_name, plan=plan, default_tier="last") as client:
        client.push("https://a.example/1")
        client.push("https://a.example/2", tier="first")
        with FrontierClient(redis_server.url, frontier_name, default_tier="last") as other:
            assert other.tiers() == ("first", "last")

    worker = backend.join("w1", tiers=("first", "last"), crawl_id="monday", order="fifo", clock=None)

    assert urls(worker) == ["https://a.example/2", "https://a.example/1"]


def test_requests_pushed_before_the_first_worker_are_seen_by_frontiers_that_share_it(
    backend: RedisBackend, redis_server: RedisServer, frontier_name: str
) -> None:
    pool = f"{frontier_name}-pool"
    other = backend.join("other", name=f"{frontier_name}-other", tiers=TIERS, clock=None, seen_name=pool)
    other.commit(page("https://a.example/1"))

    with FrontierClient(redis_server.url, frontier_name, plan=CrawlPlan(TIERS, seen_name=pool)) as client:
        assert client.push_many(["https://a.example/1", "https://a.example/2"]) == Pushed(1, 1)

    assert other.commit(page("https://a.example/2")).duplicates == [0]
    worker = join(backend, seen_name=pool)
    assert urls(worker) == ["https://a.example/2"]


def test_a_clearing_that_was_cut_short_is_taken_over(
    client: FrontierClient, redis_server: RedisServer, frontier_name: str
) -> None:
    client.push("https://a.example/1")
    keys: Any = Keys(frontier_name)
    redis_server.client().hset(
        keys.state, mapping={"phase": "clearing", "scope": "restart", "cleaner": "gone", "cleaning_ms": 1}
    )

    assert client.push("https://a.example/1")

    assert client.depth() == Depth(accepted=1, pending=1)


def test_a_frontier_of_another_layout_is_left_alone(
    client: FrontierClient, redis_server: RedisServer, frontier_name: str
) -> None:
    redis_server.client().hset(Keys(frontier_name).state, mapping={"layout": "0", "phase": "open"})

    with pytest.raises(LayoutMismatch, match="layout version 0"):
        client.push("https://a.example/1")


@pytest.fixture
def full(redis_server_factory: StartServer, frontier_name: str) -> Iterator[tuple[FrontierClient, Any]]:
    """A client of a server of its own."""
    server = redis_server_factory()
    with FrontierClient(server.url, frontier_name) as client:
        yield client, server.client()


def test_a_full_server_refuses(full: tuple[FrontierClient, Any]) -> None:
    client, redis = full
    client.push("https://a.example/1")
    redis.config_set("maxmemory", 1)

    with pytest.raises(FrontierFull, match="maxmemory"):
        client.push("https://a.example/2")

    assert client.depth() == Depth(accepted=1, pending=1)


def test_a_server_that_forgot_the_scripts_gets_them_again(full: tuple[FrontierClient, Any]) -> None:
    client, redis = full
    client.push("https://a.example/1")
    redis.script_flush()

    assert client.push("https://a.example/2")


@pytest.mark.parametrize(
    ("item", "parts", "error", "why"),
    [
        ("https://a.example/", {"tier": "nope"}, RequestError, "not in PRIOQUEUE_TIERS"),
        (f"https://{'a.' * 126}de/", {}, RequestError, "its host 'a.a.a.a.a.a.a.a.a.a.'… has 254 bytes, and 253"),
        ("https://a.example/", {"meta": {"download_slot": "é" * 513}}, RequestError, "has 1026 bytes, and 1024"),
        ("https://a.example/", {"teir": "low"}, RequestError, "unknown 'teir' \\(did you mean tier\\?\\)"),
        ("https://a.example/", {"meta": {"prioqueue_inherited_tier": 5}}, RequestError, "set by the scheduler only"),
        ("mailto:a@b.example", {}, RequestError, "must begin with a scheme and ://"),
        ({"priority": 1}, {}, RequestError, "needs a url"),
        (7, {}, RequestError, "neither a URL"),
        ("https://a.example/", {"meta": {"file": object()}}, EncodeError, "can't be stored"),
        ("https://a.example/", {"delay": "soon"}, RequestError, "can't be used"),
        ("https://a.example/", {"meta": [1]}, RequestError, "meta must be a mapping"),
        ("https://a.example/", {"cb_kwargs": "x"}, RequestError, "cb_kwargs must be a mapping"),
        ("https://a.example/", {"headers": [1]}, RequestError, "headers must be a mapping"),
        ("https://a.example/", {"headers": {"a": {}}}, RequestError, "headers\\['a'\\] must be a string"),
        ("https://a.example/", {"callback": 7}, RequestError, "callback must be a string, not 7"),
        ("https://a.example/", {"tier": ["low"]}, RequestError, "tier must be a string"),
        ("https://a.example/", {"method": 5}, RequestError, "method 5 is not an HTTP method"),
        ("https://a.example/", {"method": "\ud800"}, RequestError, "not an HTTP method"),
        ("https://a.example/", {"priority": True}, RequestError, "priority must be an integer"),
        ("https://a.example/", {"dont_filter": "no"}, RequestError, "dont_filter must be true or false"),
        ("https://a.example/", {"meta": {"prioqueue_revisit_after": 60}}, RequestError, "PRIOQUEUE_REVISIT_AFTER"),
    ],
)
def test_invalid_requests_raise_errors(
    client: FrontierClient, item: Any, parts: dict[str, Any], error: type[Exception], why: str
) -> None:
    with pytest.raises(error, match=why):
        client.push(item, **parts)


def test_a_push_without_a_valid_request_begins_no_crawl(redis_server: RedisServer, frontier_name: str) -> None:
    bad: list[RequestError | EncodeError] = []
    with FrontierClient(redis_server.url, frontier_name) as client:
        with pytest.raises(RequestError):
            client.push("nonsense")
        assert client.push_many(["nonsense", "this too"], skip=bad.append) == Pushed()
        assert redis_server.client().exists(Keys(frontier_name).state) == 0

        pushed = client.push_many(["nonsense", "https://a.example/", "nonsense"], skip=bad.append)

    assert (pushed.accepted, len(bad)) == (1, 4)


def test_a_part_that_is_none_is_not_given(client: FrontierClient) -> None:
    client.push({"url": "https://a.example/1", "meta": None, "headers": None, "priority": None}, callback="parse_book")

    (found,) = client.pending()

    assert (found.callback, found.priority, found.meta) == ("parse_book", 0, {})


def test_a_request_has_its_own_time_where_times_are_kept(redis_server: RedisServer, frontier_name: str) -> None:
    plan = CrawlPlan(TIERS, seen=SeenPolicy(revisit_s=3600))
    with FrontierClient(redis_server.url, frontier_name, plan=plan) as client:
        assert client.push("https://a.example/1", meta={"prioqueue_revisit_after": 0})
        assert client.push("https://a.example/1")
        assert not client.push("https://a.example/1")


def test_pending_requests_can_be_read(client: FrontierClient) -> None:
    client.push("https://a.example/1", tier="high", priority=7, callback="parse_book", meta={"page": 1})

    (found,) = client.pending()

    assert (found.url, found.tier, found.priority, found.slot) == ("https://a.example/1", "high", 7, "a.example")
    assert (found.callback, found.attempts, found.due_ms) == ("parse_book", 0, 0)
    assert found.meta == {"page": 1, "prioqueue_tier": "high"}


@pytest.mark.parametrize(("url", "name"), [("zzz", "books"), ("redis://127.0.0.1:6379/0", ""), ("redis://h/0", "a{b}")])
def test_an_invalid_frontier_is_rejected_at_once(url: str, name: str) -> None:
    with pytest.raises(SettingError):
        FrontierClient(url, name)
