"""Leases with a start time: when they are requested, started and released; and notes about slots."""

from __future__ import annotations

from dataclasses import replace

import pytest

from scrapy_prioqueue.errors import FrontierUnavailable
from scrapy_prioqueue.frontier.base import Ack, Exchanged, Lease, Orders, Release
from scrapy_prioqueue.frontier.memory.serving import OVER_BUDGET_LIMIT
from scrapy_prioqueue.frontier.policy import Budget, Closing, CrawlDelay, Latency, Policy, SlotLimit
from scrapy_prioqueue.pump.demand import MOST_NOTES, MOST_SENT
from scrapy_prioqueue.pump.timing import (
    FLUSH_S,
    HORIZON_S,
    LAST_SLOT_POLL_S,
    POLL_S,
    SLOT_POLL_S,
    SLOW_S,
    STALE_AFTER_S,
)
from tests.contract.backends import labelled_push
from tests.unit.pumping import ROUND_TRIP_S, Bench, in_loop_time, stored
from tests.unit.virtual_time import in_virtual_time, pass_time, until

LIMITED = Policy(slots={"*": SlotLimit(delay=0.0)})
"""Limits that limit nothing, since each test says itself what the frontier answers."""

SLOT = "shop.example"


async def limited_bench(**config: object) -> Bench:
    """Return a bench over a frontier that says that there are limits."""
    bench = Bench(policy=LIMITED, **config)  # type: ignore[arg-type]
    bench.remote.must_ask = True
    return await bench.open()


async def with_leases(bench: Bench, **timing: tuple[int, int | None]) -> None:
    """Let a worker lease a request of each of these names, with the times given."""
    bench.remote.timing = {name.encode(): times for name, times in timing.items()}
    bench.push(*timing)
    bench.offer(8)
    await until(lambda: len(bench.pump.inbox) == len(timing), what="the leases are here", within=5)


def payloads(bench: Bench) -> list[bytes]:
    """Return what may start now."""
    found = []
    while (lease := bench.pump.take()) is not None:
        found.append(lease.payload)
    return found


# When they start


@in_virtual_time
async def test_a_lease_starts_at_its_time_and_the_engine_is_woken_right_then() -> None:
    bench = await limited_bench()
    await with_leases(bench, a=(200, 500), b=(0, 500))
    granted_at = bench.remote.sent("exchange")[-1].at + ROUND_TRIP_S / 2
    assert payloads(bench) == [b"b"]

    await pass_time(granted_at + 0.2 - in_loop_time() - 0.001)
    assert payloads(bench) == []
    wakes = bench.delegate.wakes
    await pass_time(0.002)

    assert bench.delegate.wakes > wakes
    assert payloads(bench) == [b"a"]


@in_virtual_time
async def test_a_lease_is_on_time_though_its_answer_was_long_under_way() -> None:
    bench = await limited_bench()
    bench.remote.round_trip_s = 0.1
    await with_leases(bench, a=(80, 500))
    answered_at = in_loop_time()
    await until(lambda: payloads(bench) == [b"a"], what="it starts")

    assert in_loop_time() - answered_at == pytest.approx(0.08 - 0.05, abs=0.003)


@in_virtual_time
async def test_a_lease_starts_at_its_time_while_an_exchange_is_under_way() -> None:
    bench = await limited_bench()
    await with_leases(bench, a=(200, 500))
    bench.remote.round_trip_s = 1.0
    bench.push("b", slot="other.example")
    await pass_time(0.15)
    assert bench.remote.running == 1
    wakes = bench.delegate.wakes
    await pass_time(0.055)

    assert bench.remote.running == 1
    assert bench.delegate.wakes > wakes
    assert payloads(bench) == [b"a"]


@in_virtual_time
async def test_leases_that_wait_for_their_time_do_not_delay_others() -> None:
    bench = await limited_bench()
    bench.remote.timing = {b"later": (200, 500)}
    bench.push("later", rank=0)
    bench.push("now", rank=1, slot="other.example")
    bench.offer(8)
    await until(lambda: len(bench.pump.inbox) == 2, what="both are leased")

    assert bench.pump.inbox.best_rank() == 1
    assert payloads(bench) == [b"now"]


@in_virtual_time
async def test_requests_with_a_start_time_go_first_among_equals() -> None:
    bench = await limited_bench()
    bench.remote.timing = {b"b": (0, 500)}
    bench.push("a", "b", "c")
    bench.offer(8)
    await until(lambda: len(bench.pump.inbox) == 3, what="all are leased")

    assert payloads(bench)[0] == b"b"


# When they don't


@in_virtual_time
async def test_a_lease_that_could_not_start_in_time_is_released_at_once() -> None:
    bench = await limited_bench()
    await with_leases(bench, a=(100, 150))
    bench.delegate.full_slots = {SLOT}
    bench.delegate.places = 0
    granted_at = bench.remote.sent("exchange")[-1].at + ROUND_TRIP_S / 2
    await pass_time(granted_at + 0.24 - in_loop_time())
    assert len(bench.pump.inbox) == 1
    await pass_time(0.02)

    assert len(bench.pump.inbox) == 0
    await until(lambda: bench.inner.store.depth(0).pending == 1, what="it is given back", within=FLUSH_S + 0.01)


@in_virtual_time
async def test_a_lease_with_a_time_limit_is_not_exchanged_because_it_is_old_or_outranked() -> None:
    bench = await limited_bench()
    await with_leases(bench, a=(100, 3_000))
    bench.delegate.full_slots = {SLOT}
    bench.push("better", rank=-1, slot="other.example")
    await pass_time(0.1 + 2 * STALE_AFTER_S)

    bench.delegate.full_slots = set()
    assert payloads(bench)[0] == b"a"


@in_virtual_time
async def test_leases_do_not_start_in_a_slot_that_waits_for_robots_txt_and_no_more_are_requested() -> None:
    bench = await limited_bench()
    await with_leases(bench, a=(100, 150), b=(0, None))
    bench.delegate.held_up_slots = {SLOT}
    await pass_time(0.12)

    assert payloads(bench) == [b"b"]
    bench.push("c")
    await pass_time(1)
    demand = bench.remote.sent("exchange")[-1].demand
    assert demand is not None
    assert demand.slot_room[SLOT] == 0


@in_virtual_time
async def test_a_paused_worker_releases_what_waits_for_its_time() -> None:
    bench = await limited_bench()
    await with_leases(bench, a=(200, 500))
    bench.remote.orders = Orders(is_paused=True)
    bench.push("b")
    await pass_time(0.15)

    assert len(bench.pump.inbox) == 0
    assert bench.inner.store.depth(0).pending == 2


@in_virtual_time
async def test_a_worker_that_leaves_releases_what_waits_for_its_time() -> None:
    bench = await limited_bench()
    await with_leases(bench, a=(200, 500))
    await bench.close()
    wakes = bench.delegate.wakes
    await pass_time(1)

    assert bench.inner.store.depth(0).pending == 1
    assert bench.delegate.wakes == wakes


# What is asked for


@in_virtual_time
async def test_leases_of_later_are_no_places_and_have_places_of_their_own() -> None:
    bench = await limited_bench()
    await with_leases(bench, a=(240, 500), b=(240, 500), c=(0, 500))
    bench.remote.calls.clear()
    bench.push("d")
    await pass_time(FLUSH_S + 2 * ROUND_TRIP_S)

    demand = bench.remote.sent("exchange")[0].demand
    assert demand is not None
    assert (demand.limit, demand.later_limit, demand.horizon_ms) == (7, 5, round(HORIZON_S * 1000))


@in_virtual_time
async def test_nothing_of_later_is_asked_for_where_nothing_would_start_then() -> None:
    bench = await limited_bench()
    await with_leases(bench, a=(0, 500))
    bench.delegate.places = 0
    assert payloads(bench) == [b"a"]
    bench.remote.calls.clear()
    await pass_time(10)
    bench.push("b")
    await pass_time(1)

    demands = [call.demand for call in bench.remote.sent("exchange") if call.demand is not None]
    assert demands
    assert {(demand.limit, demand.later_limit) for demand in demands} == {(0, 0)}


@in_virtual_time
async def test_without_limits_nothing_of_later_is_asked_for() -> None:
    bench = await Bench().open()
    bench.push("a")
    bench.offer(4)
    await pass_time(10)

    demands = [call.demand for call in bench.remote.sent("exchange") if call.demand is not None]
    assert {(demand.later_limit, demand.horizon_ms, tuple(demand.notes)) for demand in demands} == {(0, 0, ())}


@in_virtual_time
async def test_only_leases_of_later_are_no_reason_to_ask_all_the_time() -> None:
    bench = await limited_bench()
    await with_leases(bench, a=(200, 500))
    bench.remote.calls.clear()
    await pass_time(0.19)

    assert len(bench.remote.sent("exchange")) <= 1


@in_virtual_time
async def test_a_worker_with_other_work_asks_again_when_a_slot_opens() -> None:
    bench = await limited_bench()
    bench.remote.next_due_s = 0.5
    await with_leases(bench, a=(0, None), b=(0, None))
    bench.delegate.full_slots = {SLOT}
    bench.remote.calls.clear()
    answered_at = in_loop_time()
    await until(lambda: bench.remote.sent("exchange"), what="it asks again")

    assert in_loop_time() - answered_at == pytest.approx(0.5, abs=0.01)
    demand = bench.remote.sent("exchange")[0].demand
    assert demand is not None
    assert demand.later_limit > 0


@in_virtual_time
async def test_slots_that_open_but_bring_nothing_are_asked_for_less_and_less_often() -> None:
    bench = await limited_bench()
    bench.remote.next_due_s = 0.0
    bench.offer(4)
    await pass_time(2)
    bench.remote.calls.clear()
    await pass_time(10)

    times = [call.at for call in bench.remote.sent("exchange")]
    gaps = [second - first for first, second in zip(times, times[1:], strict=False)]
    assert min(gaps) >= LAST_SLOT_POLL_S
    # And one to ask which limits are in force.
    assert max(gaps) <= LAST_SLOT_POLL_S + 3 * ROUND_TRIP_S

    bench.push("a")
    await stored(bench, 1)
    await until(lambda: bench.remote.sent("exchange")[-1].demand.limit > 0, what="it asks")  # type: ignore[union-attr]


@in_virtual_time
async def test_requests_over_budget_are_given_up_by_consecutive_exchanges() -> None:
    bench = await Bench(policy=Policy(budgets={"k": Budget(pages=0)}), outbox_limit=10_000).open()
    bench.remote.must_ask = True
    for number in range(10 * OVER_BUDGET_LIMIT):
        bench.pump.push(labelled_push(f"{number}", "k", slot=SLOT), str(number))
    await until(lambda: bench.pump.depth.pending == 10 * OVER_BUDGET_LIMIT, what="all are stored", within=10)

    began = in_loop_time()
    bench.offer(4)
    await until(lambda: bench.pump.depth.dead == 10 * OVER_BUDGET_LIMIT, what="all are given up", within=10)

    assert in_loop_time() - began < 12 * ROUND_TRIP_S


@in_virtual_time
async def test_exchanges_for_other_reasons_do_not_put_off_the_question_for_slots() -> None:
    bench = await limited_bench()
    bench.remote.next_due_s = 0.0
    bench.offer(4)
    await pass_time(2)
    bench.delegate.places = 0
    bench.remote.calls.clear()

    for number in range(20):
        bench.push(str(number), slot="full.example")
        await pass_time(FLUSH_S)
    bench.delegate.places = 4
    await pass_time(LAST_SLOT_POLL_S + SLOT_POLL_S)

    demand = bench.remote.sent("exchange")[-1].demand
    assert demand is not None
    assert demand.later_limit > 0


# Order


@in_virtual_time
async def test_with_weights_the_frontiers_order_is_kept_and_nothing_is_outranked() -> None:
    bench = await Bench(policy=Policy(weights=[2, 1])).open()
    order = [Lease(1, 1, 5, SLOT, b"a"), Lease(2, 1, 0, SLOT, b"b"), Lease(3, 1, 5, SLOT, b"c", late_ms=500)]
    bench.pump.inbox.add(order)
    bench.push("d", rank=1)
    await stored(bench, 1)
    bench.offer(4)

    assert payloads(bench) == [b"a", b"b", b"c"]
    assert not [operation for operation in bench.operations if isinstance(operation, Release)]


# Outage


@pytest.mark.parametrize("policy", [LIMITED, Policy(budgets={"*": Budget(pages=10)})])
def test_in_an_outage_nothing_is_started_that_limits_are_about(policy: Policy) -> None:
    @in_virtual_time
    async def outage() -> None:
        bench = await Bench(policy=policy).open()
        bench.remote.is_unreachable = True
        bench.offer(4)
        bench.push("found")
        await pass_time(2 * SLOW_S)

        assert bench.pump.take() is None

    outage()


@in_virtual_time
async def test_in_an_outage_what_is_leased_starts_at_its_time(caplog: pytest.LogCaptureFixture) -> None:
    bench = await limited_bench()
    await with_leases(bench, a=(240, 500))
    bench.remote.error = FrontierUnavailable("redis://shop.example", "gone")
    bench.push("found")
    await pass_time(0.1)
    assert payloads(bench) == []
    await until(lambda: payloads(bench) == [b"a"], what="it starts", within=0.2)

    assert "its share of those that it finds and of the limits of slots" in caplog.text


# Notes


@in_virtual_time
async def test_a_note_is_sent_soon_and_once() -> None:
    bench = await Bench().open()
    await pass_time(1)
    noted_at = in_loop_time()
    bench.pump.note(Latency(SLOT, 120, is_success=True))
    await pass_time(FLUSH_S / 2)
    bench.pump.note(CrawlDelay(SLOT, 3_000))
    await pass_time(10)

    told = [call for call in bench.remote.sent("exchange") if call.demand is not None and call.demand.notes]
    assert [list(call.demand.notes) for call in told if call.demand is not None] == [
        [Latency(SLOT, 120, is_success=True), CrawlDelay(SLOT, 3_000)]
    ]
    assert told[0].at - noted_at == pytest.approx(FLUSH_S, abs=0.001)


@in_virtual_time
async def test_a_note_is_sent_to_a_frontier_in_process_too() -> None:
    bench = await Bench(is_local=True).open()
    demands = []
    exchange = bench.inner.exchange

    async def followed(batches: object, demand: object) -> Exchanged:
        demands.append(demand)
        return await exchange(batches, demand)  # type: ignore[arg-type]

    bench.inner.exchange = followed  # type: ignore[method-assign]
    bench.pump.note(CrawlDelay(SLOT, 3_000))
    await pass_time(FLUSH_S + 0.01)

    assert [list(demand.notes) for demand in demands if demand.notes] == [[CrawlDelay(SLOT, 3_000)]]  # type: ignore[attr-defined]


@in_virtual_time
async def test_a_note_whose_answer_was_lost_is_reported_again_and_a_closing_is_as_long_as_it_was() -> None:
    bench = await Bench().open()
    await pass_time(1)
    bench.remote.is_away = True
    bench.pump.note(Closing(SLOT, 10_000))
    noted_at = in_loop_time()
    await pass_time(2)
    bench.remote.is_away = False
    bench.remote.calls.clear()
    await pass_time(10)

    told = [call for call in bench.remote.sent("exchange") if call.demand is not None and call.demand.notes]
    assert len(told) == 1
    ((closing,),) = [call.demand.notes for call in told if call.demand is not None]
    assert isinstance(closing, Closing)
    assert closing.wait_ms == pytest.approx(10_000 - 1000 * (told[0].at - noted_at), abs=2)


@in_virtual_time
async def test_notes_do_not_pile_up() -> None:
    bench = await Bench().open()
    bench.remote.is_away = True
    for number in range(5_000):
        bench.pump.note(CrawlDelay(SLOT, number))
    await pass_time(5)
    bench.remote.is_away = False
    bench.remote.calls.clear()
    await pass_time(20)

    demands = [call.demand for call in bench.remote.sent("exchange") if call.demand is not None]
    assert [len(demand.notes) for demand in demands if demand.notes] == [MOST_SENT] * (MOST_NOTES // MOST_SENT)
    assert demands[-1].notes[-1:] in ((), [CrawlDelay(SLOT, 4_999)])


@in_virtual_time
async def test_a_slot_that_closes_gets_back_what_has_not_started() -> None:
    bench = await Bench().open()
    bench.push("a", "b")
    bench.push("c", slot="other.example")
    bench.offer(8)
    await until(lambda: len(bench.pump.inbox) == 3, what="the leases are here")
    bench.pump.note(Closing(SLOT, 10_000))

    assert payloads(bench) == [b"c"]
    await pass_time(FLUSH_S + 2 * ROUND_TRIP_S)
    assert sum(isinstance(operation, Release) for operation in bench.operations) == 2


# Time in process


@in_virtual_time
async def test_over_a_frontier_in_process_the_engine_is_woken_when_a_slot_opens() -> None:
    bench = await Bench(is_local=True, policy=LIMITED).open()
    exchange = bench.inner.exchange

    async def limited(batches: object, demand: object) -> Exchanged:
        answer = await exchange(batches, replace(demand, limit=0))  # type: ignore[arg-type, type-var]
        return replace(answer, must_ask=True, next_due_s=max(0.0, 5.0 - in_loop_time()))

    bench.inner.exchange = limited  # type: ignore[method-assign]
    bench.push("a")
    bench.offer(4)
    assert bench.pump.take() is None
    await pass_time(4.9)
    wakes = bench.delegate.wakes
    await pass_time(0.11)

    assert bench.delegate.wakes > wakes


# Floods


@in_virtual_time
async def test_start_is_not_read_while_the_frontier_is_flooded() -> None:
    bench = await Bench().open()
    bench.remote.orders = Orders(is_flooded=True)
    bench.push("a")
    await until(lambda: bench.delegate.orders == [Orders(is_flooded=True)], what="the worker knows")

    waiting = bench.pump.gate.wait()
    assert waiting is not None
    bench.remote.orders = Orders()
    bench.push("b")
    await until(lambda: waiting.called, what="start() goes on")


@in_virtual_time
async def test_a_flooded_worker_starts_what_it_is_given() -> None:
    bench = await Bench().open()
    bench.remote.orders = Orders(is_flooded=True)
    bench.push("a")
    bench.offer(1)
    await until(lambda: len(bench.pump.inbox) == 1, what="a request has come")

    assert bench.take().payload == b"a"


@in_virtual_time
async def test_start_is_read_up_to_the_high_mark() -> None:
    bench = await Bench(policy=Policy(high_water=3, low_water=1)).open()
    bench.push("a", "b")
    assert bench.pump.gate.is_open
    bench.push("c")
    waiting = bench.pump.gate.wait()
    assert waiting is not None
    await stored(bench, 3)
    await pass_time(POLL_S)
    assert not waiting.called

    bench.offer(1)
    await until(lambda: len(bench.pump.inbox) > 0, what="a request has come")
    bench.pump.finish(Ack(*_token(bench.take())))
    await until(lambda: waiting.called, what="start() goes on")


def _token(lease: Lease) -> tuple[int, int]:
    return lease.lease_id, lease.attempt


@in_virtual_time
async def test_a_worker_that_joins_knows_how_much_there_is() -> None:
    first = await Bench().open()
    first.push("a", "b", "c")
    await stored(first, 3)

    second = await Bench(store=first.inner.store, worker="w2", policy=Policy(high_water=3, low_water=1)).open()

    assert not second.pump.gate.is_open
