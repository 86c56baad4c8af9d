"""The exchange loop after a server has lost writes: it renews and claims its leases before it takes new ones."""

from __future__ import annotations

from scrapy_prioqueue.frontier.base import Ack, Claim, Depth, Lease, Recall
from tests.unit.pumping import Bench, leased, stored
from tests.unit.virtual_time import in_virtual_time, pass_time, until


async def working(bench: Bench) -> tuple[Lease, Lease]:
    """Let a worker run two pages and hold a third unstarted, in that order."""
    await bench.open()
    bench.offer(3)
    bench.push("page 1", rank=1)
    bench.push("page 2", rank=2)
    bench.push("unstarted", rank=3)
    await leased(bench, 3)
    pages = bench.take(), bench.take()
    bench.delegate.full_slots, bench.delegate.places = {"shop.example"}, 0
    return pages


def forget(bench: Bench, *payloads: bytes) -> None:
    """Let the server forget that these requests are leased, and the next exchange find that out."""
    store = bench.inner.store
    for lease_id in store.leases.of_worker("w1"):
        held = store.leases.find(lease_id)
        if held is not None and held.envelope.payload in payloads:
            store.give_back(store.leases.end(lease_id), was_attempt=False)
    bench.remote.recall = Recall(resent=7)


def claims(bench: Bench) -> list[bytes]:
    return [operation.push.payload for operation in bench.operations if isinstance(operation, Claim)]


async def recalled(bench: Bench) -> None:
    await until(lambda: bench.delegate.recalls, what="the worker is told of a recall")


@in_virtual_time
async def test_leases_are_checked_before_anything_else_then_compared_then_claimed() -> None:
    bench = Bench()
    await working(bench)
    forget(bench, b"page 2")
    before = len(bench.remote.calls)
    bench.offer(5)
    bench.push("next", rank=9)
    await recalled(bench)
    await until(lambda: claims(bench), what="a claim")

    calls = bench.remote.calls[before:]
    told_at = next(at for at, call in enumerate(calls) if call.verb == "renew") - 1
    assert [call.verb for call in calls[told_at : told_at + 4]] == ["exchange", "renew", "reconcile", "exchange"]
    assert len(calls[told_at + 1].held) >= 3
    assert claims(bench) == [b"page 2"]
    assert bench.delegate.recalls == [Recall(resent=7)]


@in_virtual_time
async def test_forgotten_pages_are_claimed_and_acked_and_none_is_fetched_twice() -> None:
    bench = Bench()
    first, second = await working(bench)
    forget(bench, b"page 1", b"page 2")
    bench.push("next", rank=9)
    await recalled(bench)
    bench.ack(first)
    await until(lambda: len(claims(bench)) >= 2, what="the claims")
    bench.ack(second)
    await until(lambda: bench.inner.store.depth(0).done == 2, what="the acks")

    assert set(claims(bench)) == {b"page 1", b"page 2"}
    assert not any(outcome.is_void for outcome in bench.delegate.outcomes)
    bench.delegate.full_slots = set()
    bench.offer(9)
    await leased(bench, 2)
    assert {bench.take().payload, bench.take().payload} == {b"unstarted", b"next"}


@in_virtual_time
async def test_lost_lease_that_was_not_started_is_claimed_and_released() -> None:
    bench = Bench()
    await working(bench)
    forget(bench, b"unstarted")
    bench.push("next", rank=9)
    await recalled(bench)
    await until(lambda: bench.inner.store.depth(0).pending == 2, what="both are pending")

    assert len(bench.pump.inbox) == 0
    assert bench.inner.store.depth(0) == Depth(accepted=4, pending=2, leased=2, workers=1)
    bench.delegate.full_slots = set()
    bench.offer(1)
    await leased(bench)
    assert bench.take().attempt == 1


@in_virtual_time
async def test_ack_that_waits_unsent_is_claimed_too() -> None:
    bench = Bench()
    page, _ = await working(bench)
    bench.ack(page)
    forget(bench, b"page 1")
    await recalled(bench)
    await until(lambda: bench.inner.store.depth(0).done == 1, what="the ack")

    assert claims(bench) == [b"page 1"]
    acks = [operation for operation in bench.operations if isinstance(operation, Ack)]
    assert [ack.attempt for ack in acks] == [1]


@in_virtual_time
async def test_nothing_is_leased_before_the_leases_were_checked_even_if_the_check_fails() -> None:
    bench = Bench()
    await working(bench)
    forget(bench, b"page 1", b"page 2")
    bench.offer(5)
    bench.delegate.full_slots = set()

    def lose_the_server(recall: Recall) -> None:
        bench.delegate.recalls.append(recall)
        bench.remote.is_away = True

    bench.delegate.recalled = lose_the_server  # type: ignore[method-assign]
    bench.push("next", rank=9)
    await recalled(bench)
    await pass_time(5)
    bench.remote.is_away = False
    await until(lambda: claims(bench), what="the claims")

    calls = bench.remote.calls
    calls = calls[next(at for at, call in enumerate(calls) if call.verb == "renew") :]
    checks = [at for at, call in enumerate(calls) if call.verb == "renew"]
    assert checks
    assert all(call.verb == "renew" for call in calls[: checks[-1]])
    await leased(bench, 2)
    assert {lease.payload for lease in bench.pump.inbox} == {b"unstarted", b"next"}


@in_virtual_time
async def test_unconfirmed_batches_are_divided_anew_after_a_recall() -> None:
    bench = await Bench().open()
    bench.push("a")
    await stored(bench, 1)
    bench.remote.lost_requests = 1
    bench.push("b")
    await until(lambda: bench.remote.lost_requests == 0, what="the request was lost")
    bench.remote.recall = Recall()
    bench.push("c")
    await stored(bench, 3)

    carrying = [call.batches for call in bench.remote.sent("exchange") if call.batches]
    assert [(batch.number, len(batch.operations)) for batch in carrying[-1]] == [(2, 2)]
    assert bench.delegate.tags == ["a", "b", "c"]


@in_virtual_time
async def test_worker_that_was_idle_says_so_again_after_a_recall() -> None:
    bench = await Bench().open()
    bench.remote.recall = Recall()

    bench.end_start()

    await until(lambda: bench.pump.has_ended, what="the end")
    assert bench.delegate.recalls == [Recall()]


@in_virtual_time
async def test_nothing_is_leased_before_what_was_forgotten_is_claimed_even_if_a_call_between_fails() -> None:
    bench = Bench()
    page, _ = await working(bench)
    forget(bench, b"page 1", b"page 2")
    bench.delegate.full_slots = set()
    bench.offer(5)
    bench.push("next", rank=9)
    await recalled(bench)
    bench.ack(page)
    await until(lambda: bench.remote.sent("reconcile"), what="the worker reconciles")
    bench.remote.lost_answers = 1
    await until(lambda: len(claims(bench)) == 2, what="the claims")

    await leased(bench, 2)
    assert "prioqueue/exchange/failed" in bench.delegate.stats
    assert {lease.payload for lease in bench.pump.inbox} == {b"unstarted", b"next"}
    assert not any(outcome.is_void for outcome in bench.delegate.outcomes)
