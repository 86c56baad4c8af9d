"""The exchange loop with a full server, which takes acks and leases requests, but stores none."""

from __future__ import annotations

import pytest

from scrapy_prioqueue.frontier.base import Claim, Depth, Lease, Push, Recall
from scrapy_prioqueue.pump.timing import FULL_RETRY_S
from tests.unit.pumping import Bench, depth, in_loop_time, leased, stored
from tests.unit.virtual_time import in_virtual_time, pass_time, until


async def working(bench: Bench, *pages: str) -> list[Lease]:
    """Let a worker run these pages, with a server that is full from now on."""
    await bench.open()
    bench.offer(len(pages))
    for rank, page in enumerate(pages):
        bench.push(page, rank=rank)
    await leased(bench, len(pages))
    leases = [bench.take() for _ in pages]
    bench.delegate.places = 0
    bench.remote.is_full = True
    return leases


async def refused(bench: Bench) -> None:
    await until(lambda: "prioqueue/exchange/full" in bench.delegate.stats, what="the server refuses")


def appear(bench: Bench, name: str, fingerprint: bytes | None = None) -> None:
    """Let a request be pending that the server had room for."""
    store = bench.inner.store
    assert store.crawl is not None
    store.push(store.crawl, Push(5, "shop.example", name.encode(), fingerprint), "lifo", 0)


@in_virtual_time
async def test_pages_without_children_are_acked_while_others_wait_for_theirs() -> None:
    bench = Bench()
    parent, leaf = await working(bench, "parent", "leaf")
    bench.push("child", rank=9, found_on=parent)
    await refused(bench)

    bench.ack(parent)
    bench.ack(leaf)
    await pass_time(10 * FULL_RETRY_S)
    assert depth(bench) == Depth(accepted=2, leased=1, done=1, workers=1)

    bench.remote.is_full = False
    await until(lambda: depth(bench).done == 2, what="the parent is done")
    assert depth(bench) == Depth(accepted=3, pending=1, done=2, workers=1)


@in_virtual_time
async def test_page_that_has_shown_only_what_others_have_found_is_acked_while_others_wait() -> None:
    bench = Bench()
    parent, other = await working(bench, "parent", "other")
    for number in range(5):
        appear(bench, f"child {number}", b"fingerprint %d" % number)
    bench.push("new", fingerprint=b"new", found_on=other)
    for number in range(5):
        bench.push(f"child {number}", fingerprint=b"fingerprint %d" % number, found_on=parent)
    bench.ack(other)
    bench.ack(parent)

    await until(lambda: len(bench.delegate.outcomes) > 2, what="the links of the parent are told", within=FULL_RETRY_S)

    assert depth(bench).done == 1
    assert [outcome.tag for outcome in bench.delegate.outcomes if outcome.is_duplicate] == [
        f"child {n}" for n in range(5)
    ]
    await pass_time(10 * FULL_RETRY_S)
    assert depth(bench) == Depth(accepted=7, pending=5, leased=1, done=1, workers=1)
    # Each try of the one that is new is refused, and tells nothing of the others.
    assert len(bench.remote.sent("known")) == bench.delegate.stats["prioqueue/exchange/full"]
    assert bench.delegate.stats["prioqueue/exchange/full"] <= 12


@in_virtual_time
async def test_request_of_an_unknown_page_keeps_all_that_run_waiting_and_none_that_is_started_later() -> None:
    bench = Bench()
    first, second = await working(bench, "first", "second")
    bench.push("child of one of them", rank=9)
    await refused(bench)
    bench.remote.is_full = False
    await stored(bench, 3)
    bench.remote.is_full = True
    bench.push("another", rank=9)
    bench.offer(1)
    await leased(bench)
    later = bench.take()

    for page in (first, second, later):
        bench.ack(page)
    await pass_time(10 * FULL_RETRY_S)

    assert depth(bench).done == 1
    assert set(bench.pump.held) == set()


@in_virtual_time
async def test_start_waits_while_the_server_is_full() -> None:
    bench = Bench()
    await working(bench)
    bench.push("a")
    await refused(bench)

    waiting = bench.pump.gate.wait()
    assert waiting is not None
    await pass_time(10)
    assert not waiting.called
    bench.remote.is_full = False
    await stored(bench, 1)

    assert waiting.called


@in_virtual_time
async def test_worker_that_keeps_all_it_may_takes_no_more_and_continues_when_there_is_room() -> None:
    bench = Bench(outbox_limit=2)
    (page,) = await working(bench, "page")
    bench.push("a", rank=1, found_on=page)
    await refused(bench)
    bench.push("b", rank=2, found_on=page)
    bench.offer(1)
    await pass_time(FULL_RETRY_S)
    bench.remote.calls.clear()
    await pass_time(10)

    assert bench.pump.take() is None
    demands = [call.demand for call in bench.remote.sent("exchange")]
    assert len(demands) > 3
    assert all(demand is None or demand.limit == 0 for demand in demands)

    bench.remote.is_full = False
    await leased(bench)
    assert bench.take().payload == b"a"
    bench.ack(page)
    await until(lambda: depth(bench).done == 1, what="the page is done")


@in_virtual_time
async def test_worker_whose_outbox_is_full_fetches_one_page_at_a_time_and_none_when_it_is_twice_full() -> None:
    bench = Bench(outbox_limit=2)
    page, other = await working(bench, "page", "other")
    appear(bench, "third")
    bench.push("a", "b", rank=9, found_on=page)
    await refused(bench)
    bench.offer(3)
    await pass_time(10)
    assert bench.pump.take() is None

    bench.ack(page)
    bench.ack(other)
    await leased(bench)
    assert bench.take().payload == b"third"
    assert bench.pump.take() is None
    bench.push("c", "d", rank=9, found_on=page)
    appear(bench, "fourth")
    await pass_time(10)
    assert bench.pump.take() is None


@in_virtual_time
async def test_claims_wait_for_room_as_requests_do() -> None:
    bench = await Bench().open()
    await pass_time(1)
    bench.remote.is_unreachable = True
    bench.push("a")
    await until(lambda: "prioqueue/exchange/failed" in bench.delegate.stats, what="a failure")
    page = bench.take()
    bench.ack(page)
    bench.remote.is_unreachable, bench.remote.is_full = False, True
    await refused(bench)
    await pass_time(10)
    assert depth(bench).accepted == 0

    bench.remote.is_full = False
    await stored(bench, 2)

    assert depth(bench) == Depth(accepted=1, done=1, workers=1)


@in_virtual_time
async def test_server_that_is_full_and_away_and_full_again_is_warned_of_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    bench = Bench()
    await working(bench)
    bench.push("a")
    await refused(bench)
    bench.remote.is_unreachable = True
    await pass_time(10)
    bench.remote.is_unreachable = False
    await pass_time(10)
    bench.remote.is_full = False
    await stored(bench, 1)

    messages = [record.getMessage() for record in caplog.records if "backpressure" in record.name]
    assert len(messages) == 2
    assert "maxmemory" in messages[0]
    assert messages[1] == "The frontier stores requests again"
    assert [cause for cause, _ in bench.delegate.troubles] == ["full", "outage", "outage", "full"]


# A crawl that is over


@in_virtual_time
async def test_worker_whose_crawl_is_over_ends_though_a_page_with_unsent_children_runs() -> None:
    bench = await Bench().open()
    bench.remote.is_unreachable = True
    bench.push("page")
    await until(lambda: "prioqueue/exchange/failed" in bench.delegate.stats, what="a failure")
    page = bench.take()
    bench.push("child", found_on=page)
    bench.end_start()
    bench.inner.store.crawl = None
    other = await Bench(store=bench.inner.store, worker="w2").open()

    bench.remote.is_unreachable = False
    await until(lambda: bench.delegate.stats.get("prioqueue/rejected") == 2, what="both are refused")
    bench.ack(page)
    await until(lambda: bench.pump.has_ended, what="the end")

    assert depth(other).accepted == 0


# Closing


@in_virtual_time
async def test_close_on_a_full_server_releases_the_pages_whose_requests_it_rejects(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bench = Bench()
    parent, leaf, running = await working(bench, "parent", "leaf", "running")
    bench.push("child", rank=9, found_on=parent)
    bench.push("grandchild", rank=9, found_on=running)
    bench.ack(parent)
    bench.ack(leaf)
    began = in_loop_time()

    await bench.close(timeout_s=60.0)

    assert in_loop_time() - began < 10
    assert depth(bench) == Depth(accepted=3, pending=2, done=1)
    assert "Closed without storing 2 requests" in caplog.text
    assert bench.inner.store.workers == {}


@in_virtual_time
async def test_close_on_a_full_server_drops_what_was_started_without_it() -> None:
    bench = Bench()
    (parent,) = await working(bench, "parent")
    bench.remote.is_unreachable = True
    bench.push("child", rank=9, found_on=parent)
    await until(lambda: "prioqueue/exchange/failed" in bench.delegate.stats, what="a failure")
    child = bench.take()
    bench.push("grandchild", found_on=child)
    bench.ack(parent)
    bench.ack(child)
    bench.remote.is_unreachable = False

    await bench.close(timeout_s=60.0)

    assert depth(bench) == Depth(accepted=1, pending=1)
    assert bench.inner.store.workers == {}


@in_virtual_time
async def test_close_releases_what_was_started_without_the_server() -> None:
    bench = await Bench().open()
    bench.remote.is_unreachable = True
    bench.push("a", "b")
    await until(lambda: "prioqueue/exchange/failed" in bench.delegate.stats, what="a failure")
    bench.take()
    bench.remote.is_unreachable = False

    await bench.close()

    assert [type(operation) for operation in bench.operations[:2]] == [Push, Claim]
    assert depth(bench) == Depth(accepted=2, pending=2)


@in_virtual_time
async def test_close_sends_again_what_a_server_does_not_confirm_because_of_a_recall() -> None:
    bench = await Bench().open()
    bench.push("a")
    bench.remote.recall = Recall()

    await bench.close()

    assert bench.delegate.tags == ["a"]
    assert depth(bench) == Depth(accepted=1, pending=1)
