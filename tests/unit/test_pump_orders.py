"""The exchange loop follows operators' commands."""

from __future__ import annotations

from scrapy_prioqueue.frontier.base import Orders
from scrapy_prioqueue.frontier.policy import Policy
from scrapy_prioqueue.rank import rank_of
from tests.unit.pumping import TTL_S, Bench
from tests.unit.virtual_time import in_virtual_time, pass_time, until

PAUSED = Orders(is_paused=True)


@in_virtual_time
async def test_a_paused_worker_starts_nothing_and_releases_what_it_has_not_started() -> None:
    bench = await Bench().open()
    bench.push("a", "b")
    bench.offer(1)
    await until(lambda: len(bench.pump.inbox) > 0, what="requests have come")
    bench.remote.orders = PAUSED
    bench.push("c")
    await until(lambda: bench.delegate.orders == [PAUSED], what="the worker knows")
    await pass_time(1)

    assert bench.pump.take() is None
    assert bench.inner.store.depth(0).pending == 3


@in_virtual_time
async def test_a_paused_worker_does_not_ask_all_the_time() -> None:
    bench = await Bench().open()
    bench.remote.orders = PAUSED
    bench.push("a")
    bench.offer(4)
    await pass_time(1)
    bench.remote.calls.clear()
    await pass_time(30)

    assert 0 < len(bench.remote.sent("exchange")) <= 12


@in_virtual_time
async def test_start_is_not_read_while_paused() -> None:
    bench = await Bench().open()
    bench.remote.orders = PAUSED
    bench.push("a")
    await until(lambda: bench.delegate.orders == [PAUSED], what="the worker knows")

    waiting = bench.pump.gate.wait()
    assert waiting is not None
    bench.remote.orders = Orders()
    bench.push("b")
    await until(lambda: waiting.called, what="start() goes on")


@in_virtual_time
async def test_a_worker_that_was_paused_continues() -> None:
    bench = await Bench().open()
    bench.remote.orders = PAUSED
    bench.push("a")
    bench.offer(1)
    await pass_time(5)
    bench.remote.orders = Orders()
    await until(lambda: len(bench.pump.inbox) > 0, what="a request has come")

    assert bench.take().payload == b"a"
    assert bench.delegate.orders == [PAUSED, Orders()]


@in_virtual_time
async def test_an_order_to_stop_is_passed_on_once() -> None:
    bench = await Bench().open()
    bench.remote.orders = Orders(stop_reason="enough")
    bench.push("a")
    await pass_time(10)

    assert bench.delegate.orders == [Orders(stop_reason="enough")]


@in_virtual_time
async def test_as_a_flood_begins_what_discovers_and_has_not_been_started_is_released_once() -> None:
    bench = await Bench(concurrency=1, policy=Policy(high_water=10, low_water=5, discovery=(1,))).open()
    bench.push("item", rank=rank_of(0, 0))
    bench.push("running", rank=rank_of(1, 2))
    bench.push("listing", rank=rank_of(1, 1))
    bench.offer(3)
    await until(lambda: len(bench.pump.inbox) == 3, what="requests have come")
    item, running = bench.take(), bench.take()
    bench.delegate.places = 0
    bench.remote.orders = Orders(is_flooded=True)
    bench.push("found")
    await until(lambda: bench.delegate.orders == [Orders(is_flooded=True)], what="the worker knows")

    assert not bench.pump.inbox
    assert {item.lease_id, running.lease_id} == set(bench.pump.held)
    await pass_time(1)
    assert bench.delegate.stats["prioqueue/lease/released"] == 1
    assert bench.inner.store.depth(0).pending == 2

    # What the frontier hands out in spite of the flood is kept.
    bench.offer(2)
    await until(lambda: len(bench.pump.inbox) == 2, what="requests have come again")
    bench.push("more", rank=rank_of(1, 0))
    await pass_time(0.5)
    assert len(bench.pump.inbox) == 2
    assert bench.delegate.stats["prioqueue/lease/released"] == 1


# Pauses of the engine


@in_virtual_time
async def test_a_worker_whose_engine_is_paused_releases_what_it_has_not_started_and_keeps_the_rest() -> None:
    bench = await Bench().open()
    bench.push("a", "b", "c")
    bench.offer(2)
    await until(lambda: len(bench.pump.inbox) > 0, what="requests have come")
    running = bench.take()
    bench.delegate.paused = True
    await pass_time(1)
    assert (bench.inner.store.depth(0).pending, bench.inner.store.depth(0).leased) == (2, 1)

    await pass_time(2 * TTL_S)
    assert bench.inner.store.leases.is_held(running.lease_id, running.attempt, by="w1")
    bench.ack(running)
    await until(lambda: bench.inner.store.depth(0).done == 1, what="the ack is told")
    assert bench.inner.store.depth(0).leased == 0

    bench.delegate.paused = False
    await until(lambda: len(bench.pump.inbox) > 0, what="requests have come again", within=1)


@in_virtual_time
async def test_an_answer_that_comes_while_the_engine_is_paused_is_released() -> None:
    bench = await Bench().open()
    bench.remote.round_trip_s = 0.2
    bench.push("a", "b")
    bench.offer(2)
    await pass_time(0.1)
    bench.delegate.paused = True
    await pass_time(1.5)

    assert bench.delegate.stats.get("prioqueue/lease/released", 0) <= 2
    assert (bench.inner.store.depth(0).pending, bench.inner.store.depth(0).leased) == (2, 0)
    assert not bench.pump.inbox
