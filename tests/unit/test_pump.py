"""The exchange loop without failures: when exchanges are made, the inbox, and reports of being idle."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from scrapy_prioqueue.errors import FrontierUnavailable
from scrapy_prioqueue.frontier.base import Ack, Depth, Lease, Push, Release
from scrapy_prioqueue.pump.outbox import BATCH_SIZE, MAX_BATCHES
from scrapy_prioqueue.pump.timing import (
    FLUSH_S,
    MOST_AHEAD_PER_PLACE,
    POLL_S,
    POLL_WITHOUT_BELL_S,
    RENEWALS_PER_TTL,
    STALE_AFTER_S,
    TICK_S,
)
from tests.unit.pumping import ROUND_TRIP_S, TTL_S, Bench, finished, in_loop_time, leased, stored
from tests.unit.virtual_time import in_virtual_time, pass_time, until

# Sending


@in_virtual_time
async def test_pushes_are_settled_with_their_tags_in_order() -> None:
    bench = await Bench().open()

    bench.push("a", "b", fingerprint=b"0123456789")
    bench.push("c")
    await stored(bench, 3)

    assert bench.delegate.tags == ["a", "b", "c"]
    assert [outcome.is_duplicate for outcome in bench.delegate.outcomes] == [False, True, False]
    assert bench.inner.store.depth(0).accepted == 2


@in_virtual_time
async def test_one_exchange_carries_all_that_was_put_in_within_the_flush_time() -> None:
    bench = await Bench().open()
    await pass_time(1)

    bench.push("a")
    await pass_time(FLUSH_S / 2)
    bench.push("b")
    await stored(bench, 2)

    carrying = [call for call in bench.remote.sent("exchange") if call.batches]
    assert [[len(batch.operations) for batch in call.batches] for call in carrying] == [[2]]


@in_virtual_time
async def test_full_batch_does_not_wait() -> None:
    bench = await Bench().open()
    await pass_time(1)
    put_at = in_loop_time()

    bench.push(*map(str, range(BATCH_SIZE)))
    await stored(bench, BATCH_SIZE)

    (carrying,) = [call for call in bench.remote.sent("exchange") if call.batches]
    assert carrying.at == put_at


@in_virtual_time
async def test_exchanges_never_overlap() -> None:
    bench = await Bench(concurrency=4).open()
    bench.remote.round_trip_s = 0.3
    bench.offer(4)

    for number in range(200):
        bench.push(str(number), rank=-number)
        if (lease := bench.pump.take()) is not None:
            bench.ack(lease)
        await pass_time(0.02)
    await stored(bench, 200)

    assert len(bench.remote.calls) > 5
    assert bench.remote.most_running == 1


@in_virtual_time
async def test_more_than_one_exchange_takes_is_sent_by_the_next_ones() -> None:
    bench = await Bench(outbox_limit=10**6).open()
    count = BATCH_SIZE * MAX_BATCHES + 3

    bench.push(*map(str, range(count)))
    await stored(bench, count)

    assert bench.delegate.tags == [str(number) for number in range(count)]


@in_virtual_time
async def test_children_are_in_the_log_before_the_ack_of_their_page() -> None:
    bench = await Bench().open()
    bench.offer(1)
    bench.push("page")
    await leased(bench)
    page = bench.take()

    bench.push("child-1", "child-2")
    bench.ack(page)
    await stored(bench, 4)

    kinds = [
        operation.payload.decode() if isinstance(operation, Push) else type(operation).__name__
        for operation in bench.operations
    ]
    assert kinds == ["page", "child-1", "child-2", "Ack"]


@in_virtual_time
async def test_lease_is_finished_once_and_only_by_who_holds_it() -> None:
    bench = await Bench().open()
    bench.offer(1)
    bench.push("page")
    await leased(bench)
    page = bench.take()

    bench.ack(page)
    bench.ack(page)
    bench.pump.finish(Ack(page.lease_id + 1, 1))
    await stored(bench, 2)

    assert [type(operation) for operation in bench.operations] == [Push, Ack]
    assert bench.inner.store.depth(0).done == 1


@in_virtual_time
async def test_start_waits_while_too_much_is_unsent_and_continues_when_it_is_sent() -> None:
    bench = await Bench(outbox_limit=2).open()
    assert bench.pump.gate.wait() is None

    bench.push("a", "b")
    waiting = bench.pump.gate.wait()
    assert waiting is not None
    assert not waiting.called
    await finished(waiting)

    assert bench.delegate.tags == ["a", "b"]
    assert bench.pump.gate.wait() is None


# Leasing


@in_virtual_time
async def test_requests_that_can_start_are_leased_in_order_and_the_engine_is_woken() -> None:
    bench = await Bench().open()
    bench.push("low", rank=2)
    bench.push("high", rank=1)
    await stored(bench, 2)

    wakes = bench.delegate.wakes
    bench.offer(2)
    await leased(bench, 2)

    assert bench.delegate.wakes > wakes
    assert [bench.take().payload, bench.take().payload] == [b"high", b"low"]
    assert bench.pump.take() is None
    assert len(bench.pump.held) == 2


@in_virtual_time
async def test_nothing_is_leased_where_nothing_can_start() -> None:
    bench = await Bench().open()
    bench.push("a")
    await pass_time(10)

    assert bench.delegate.tags == ["a"]
    assert bench.inner.store.depth(0).leased == 0


@in_virtual_time
async def test_slot_that_is_full_here_is_left_to_others() -> None:
    bench = await Bench().open()
    bench.delegate.places, bench.delegate.full_slots = 5, {"full.example"}
    bench.push("a", slot="full.example")
    bench.push("b", slot="free.example")
    await leased(bench)

    assert bench.take().payload == b"b"
    await pass_time(5)
    assert bench.inner.store.depth(0) == Depth(accepted=2, pending=1, leased=1, workers=1)


@in_virtual_time
async def test_lease_whose_slot_became_full_stays_and_the_engine_is_asked_to_consider() -> None:
    bench = await Bench().open()
    bench.offer(1)
    bench.push("a")
    await leased(bench)
    bench.delegate.full_slots = {"shop.example"}
    assert bench.pump.take() is None

    wakes = bench.delegate.wakes
    await pass_time(2 * TICK_S)

    assert bench.delegate.wakes > wakes


@in_virtual_time
async def test_unstarted_lease_that_has_waited_for_long_is_exchanged_before_it_is_started() -> None:
    first = await Bench().open()
    second = await Bench(store=first.inner.store, worker="w2").open()
    first.offer(1)
    first.push("worse", rank=5)
    await leased(first)
    second.push("better", rank=1)
    await stored(second, 1)
    await pass_time(2 * STALE_AFTER_S)

    assert first.pump.take() is None
    await leased(first)

    assert first.take().payload == b"better"
    assert first.delegate.stats["prioqueue/lease/released"] == 1


async def most_in_inbox(*, page_s: float, round_trip_s: float) -> int:
    """Let a worker that is never without requests work for a while; return the most that it had in advance."""
    bench = await Bench(concurrency=8, outbox_limit=10**6).open()
    bench.remote.round_trip_s = round_trip_s
    bench.push(*map(str, range(4000)))
    await stored(bench, 4000)
    bench.offer(8)
    running: list[tuple[float, Lease]] = []
    most, end = 0, in_loop_time() + 4
    while in_loop_time() < end:
        for entry in [entry for entry in running if entry[0] <= in_loop_time()]:
            running.remove(entry)
            bench.delegate.places += 1
            bench.ack(entry[1])
        while bench.delegate.places > 0 and (lease := bench.pump.take()) is not None:
            bench.delegate.places -= 1
            running.append((in_loop_time() + page_s, lease))
        most = max(most, len(bench.pump.inbox))
        await pass_time(0.001)
    await bench.close()
    return most


@in_virtual_time
async def test_more_is_held_in_advance_where_pages_are_done_sooner_than_an_exchange() -> None:
    assert 8 < await most_in_inbox(page_s=0.002, round_trip_s=0.02) <= 8 * MOST_AHEAD_PER_PLACE


@in_virtual_time
async def test_better_request_pushed_here_goes_before_what_is_held() -> None:
    bench = await Bench().open()
    bench.offer(1)
    bench.push("worse", rank=5)
    await leased(bench)

    bench.push("better", rank=1)
    await until(lambda: bench.pump.inbox.best_rank() == 1, what="the better one is here")

    assert bench.take().payload == b"better"
    assert Release in map(type, bench.operations)


@in_virtual_time
async def test_leases_are_renewed_in_time_while_they_are_held() -> None:
    bench = await Bench().open()
    bench.offer(1)
    bench.push("slow")
    await leased(bench)
    page = bench.take()
    bench.offer(0)

    await pass_time(10 * TTL_S)
    bench.ack(page)
    await stored(bench, 2)

    assert not bench.delegate.outcomes[-1].is_void
    assert len(bench.remote.sent("renew")) >= 10 * RENEWALS_PER_TTL - 1
    assert (page.lease_id, page.attempt) in bench.remote.sent("renew")[-1].held


@in_virtual_time
async def test_unstarted_lease_that_was_lost_is_forgotten() -> None:
    bench = await Bench().open()
    bench.offer(1)
    bench.push("a")
    await leased(bench)
    lease = next(iter(bench.pump.inbox))
    bench.delegate.places, bench.delegate.full_slots = 0, {"shop.example"}
    await finished(bench.pump.runner.start(bench.inner.reconcile([])))

    await until(lambda: not bench.pump.inbox, what="the lost lease is gone", within=TTL_S)

    assert lease.lease_id not in bench.pump.held
    assert bench.delegate.stats.get("prioqueue/lease/lost") == 1
    assert bench.delegate.lost_names == [("a", False)]


# Work from elsewhere


@in_virtual_time
async def test_bell_brings_what_others_pushed_at_once() -> None:
    first = await Bench().open()
    second = await Bench(store=first.inner.store, worker="w2").open()
    second.offer(1)
    await pass_time(2 * POLL_S)

    first.push("a")
    await stored(first, 1)
    for ring in list(second.remote.rings):
        ring()
    await until(lambda: second.pump.inbox, what="a lease for the second worker", within=3 * ROUND_TRIP_S)


@in_virtual_time
async def test_without_a_bell_work_of_others_is_found_by_asking() -> None:
    first = await Bench().open()
    second = await Bench(store=first.inner.store, worker="w2").open()
    second.offer(1)
    await pass_time(2 * POLL_S)

    first.push("a")
    await until(lambda: second.pump.inbox, what="a lease for the second worker", within=POLL_S + 1)


@in_virtual_time
async def test_worker_whose_bell_was_lost_listens_again() -> None:
    bench = Bench()
    listen, losses = bench.remote.listen, 2

    async def lost(ring: Callable[[], object]) -> None:
        nonlocal losses
        losses -= 1
        if losses >= 0:
            raise FrontierUnavailable("redis", "the connection was lost")
        await listen(ring)

    bench.remote.listen = lost  # type: ignore[method-assign]
    await bench.open()
    assert not bench.remote.rings
    await until(lambda: bench.remote.rings, what="it listens again")
    await bench.close()


@in_virtual_time
async def test_worker_that_hears_no_bell_asks_more_often() -> None:
    bench = Bench()

    async def deaf(ring: object) -> None:
        raise PermissionError("NOPERM")

    bench.remote.listen = deaf  # type: ignore[method-assign]
    await bench.open()
    bench.offer(1)
    await pass_time(10)

    assert len(bench.remote.sent("exchange")) >= 10 / (POLL_WITHOUT_BELL_S + TICK_S)


# The end of a crawl


@in_virtual_time
async def test_crawl_without_anything_ends() -> None:
    bench = await Bench().open()

    bench.end_start()
    bench.offer(1)
    assert bench.pump.awaits_answer()
    await until(lambda: bench.pump.has_ended, what="the end", within=1)

    assert bench.delegate.wakes > 0
    assert not bench.pump.awaits_answer()


@in_virtual_time
async def test_worker_is_not_idle_while_the_host_is_busy() -> None:
    bench = await Bench().open()
    await pass_time(30)
    assert not any(call.demand and call.demand.is_idle for call in bench.remote.sent("exchange"))

    bench.end_start()
    await until(lambda: bench.pump.has_ended, what="the end", within=1)


@in_virtual_time
async def test_idle_is_reported_without_leases_unsent_operations_and_unread_start() -> None:
    bench = await Bench().open()
    bench.offer(1)
    seen: list[tuple[bool, int, int, int]] = []
    exchange = bench.remote.exchange

    async def watched(batches: Any, demand: Any) -> Any:
        state = (len(bench.pump.held), len(bench.pump.inbox), len(bench.pump.outbox))
        seen.append((bool(demand and demand.is_idle), *state))
        return await exchange(batches, demand)

    bench.remote.exchange = watched  # type: ignore[method-assign]
    bench.push("a")
    await leased(bench)
    bench.end_start()
    page = bench.take()
    await pass_time(5)
    bench.push("child")
    bench.ack(page)
    await leased(bench)
    bench.ack(bench.take())
    await until(lambda: bench.pump.has_ended, what="the end")

    assert [state for is_idle, *state in seen if is_idle] == [[0, 0, 0]]


@in_virtual_time
async def test_idle_worker_waits_for_as_long_as_the_setting_says() -> None:
    bench = await Bench(max_idle_s=30).open()
    bench.offer(1)
    bench.end_start()

    await pass_time(29)
    assert not bench.pump.has_ended
    await until(lambda: bench.pump.has_ended, what="the end", within=2)


@in_virtual_time
async def test_worker_stays_while_another_holds_a_lease_and_gets_its_children() -> None:
    first = await Bench().open()
    second = await Bench(store=first.inner.store, worker="w2").open()
    first.offer(1)
    first.push("page")
    await leased(first)
    page = first.take()
    first.offer(0)
    second.offer(1)
    first.end_start()
    second.end_start()
    await pass_time(30)
    assert not second.pump.has_ended

    first.push("child")
    first.ack(page)
    await leased(second)
    first.offer(1)
    second.ack(second.take())

    await until(lambda: first.pump.has_ended and second.pump.has_ended, what="the end for both")


@in_virtual_time
async def test_push_after_the_end_goes_on_with_the_crawl() -> None:
    bench = await Bench().open()
    bench.end_start()
    await until(lambda: bench.pump.has_ended, what="the end")

    bench.push("late")
    assert not bench.pump.has_ended


# Slots


@pytest.mark.parametrize("is_local", [False, True], ids=["remote", "in process"])
@in_virtual_time
async def test_requests_that_would_wait_in_the_downloader_give_way_to_others(is_local: bool) -> None:
    bench = await Bench(is_local=is_local).open()
    bench.delegate.full_slots, bench.delegate.patient_slots = {"full.example", "stuck.example"}, {"full.example"}
    bench.delegate.room = dict.fromkeys(bench.delegate.full_slots, 1)
    bench.push("stuck", rank=0, slot="stuck.example")
    bench.push("waits", rank=1, slot="full.example")
    bench.push("starts", rank=2)
    bench.offer(8)
    await until(lambda: is_local or len(bench.pump.inbox) == 3, what="all have come")

    assert [bench.take().payload, bench.take().payload] == [b"starts", b"waits"]
    assert bench.pump.take() is None


@in_virtual_time
async def test_a_slot_with_room_again_makes_an_exchange_due_after_a_dry_answer() -> None:
    bench = await Bench().open()
    bench.delegate.full_slots = {"shop.example"}
    bench.push("page")
    bench.offer(1)
    await pass_time(1)
    assert not bench.pump.inbox

    bench.delegate.full_slots = set()
    wakes = bench.delegate.wakes
    bench.pump.note_room()
    await until(lambda: len(bench.pump.inbox) == 1, what="the request has come", within=0.1)
    assert bench.delegate.wakes > wakes


@in_virtual_time
async def test_more_are_held_in_advance_once_more_may_run() -> None:
    bench = await Bench(concurrency=1).open()
    bench.push(*map(str, range(20)))
    for _ in range(4):
        bench.offer(1)
        await until(lambda: len(bench.pump.inbox) > 0, what="a request has come")
        bench.take()
        assert not bench.pump.inbox

    bench.delegate.most_running = 8
    bench.offer(1)
    await until(lambda: len(bench.pump.inbox) > 1, what="requests have come in advance")


# In process


@in_virtual_time
async def test_in_process_each_call_is_carried_out_at_once_and_in_exact_order() -> None:
    bench = await Bench(is_local=True).open()
    bench.offer(8)

    bench.push("low", rank=2)
    bench.push("mid", rank=1)
    assert bench.delegate.tags == ["low", "mid"]
    first = bench.take()
    bench.push("high", rank=0)

    assert [first.payload, bench.take().payload, bench.take().payload] == [b"mid", b"high", b"low"]
    assert bench.pump.take() is None
    assert len(bench.pump.inbox) == 0


@in_virtual_time
async def test_in_process_nothing_waits_for_an_exchange_as_long_as_no_time_or_policy_is_involved() -> None:
    bench = await Bench(is_local=True).open()
    exchanges = bench.delegate.stats.get("prioqueue/exchange/count")
    bench.offer(8)
    for name in ("one", "two", "one"):
        bench.push(name, fingerprint=name.encode().ljust(16))

    first, second = bench.take(), bench.take()
    assert bench.pump.take() is None
    bench.ack(first)

    assert bench.pump.depth == Depth(accepted=2, leased=1, done=1, workers=1)
    assert bench.delegate.stats.get("prioqueue/exchange/count") == exchanges
    bench.ack(second)
    bench.pump.consider()
    assert bench.delegate.stats["prioqueue/lease/count"] == 2


@in_virtual_time
async def test_in_process_crawl_ends_when_the_last_page_is_done() -> None:
    bench = await Bench(is_local=True).open()
    bench.push("page")
    page = bench.take()
    bench.end_start()
    await pass_time(100)
    assert not bench.pump.has_ended

    bench.ack(page)

    await until(lambda: bench.pump.has_ended, what="the end", within=1)


@in_virtual_time
async def test_a_question_is_asked_once_the_line_is_free() -> None:
    bench = await Bench().open()
    await pass_time(1)
    found: list[int] = []

    bench.push("a")
    await until(lambda: bench.remote.running > 0, what="an exchange is under way")
    assert bench.pump.ask(bench.remote.waits, lambda waits: found.append(waits.pending))
    assert not bench.pump.ask(bench.remote.waits, lambda waits: found.append(-1))
    await until(lambda: bool(found), what="an answer")

    assert found == [1]
    assert bench.remote.most_running == 1


@in_virtual_time
async def test_nothing_is_asked_of_a_server_that_is_away() -> None:
    bench = await Bench().open()
    bench.remote.is_away = True
    bench.push("a")
    await until(lambda: bench.pump.is_away, what="the outage is noticed")

    assert not bench.pump.ask(bench.remote.waits, lambda waits: None)


@in_virtual_time
async def test_counts_are_asked_for_if_the_latest_are_too_old() -> None:
    bench = await Bench().open()
    bench.offer(1)
    bench.push("page")
    await leased(bench)
    bench.take()
    bench.delegate.places = 0
    await pass_time(10)
    exchanges = len(bench.remote.sent("exchange"))
    other = await Bench(store=bench.inner.store, worker="w2").open()
    other.push("other")
    await stored(other, 1)

    assert bench.pump.refresh(60)
    assert not bench.pump.refresh(5)
    await until(lambda: bench.pump.refresh(5), what="the counts are new")

    assert bench.pump.depth.accepted == 2
    assert len(bench.remote.sent("exchange")) == exchanges + 1
