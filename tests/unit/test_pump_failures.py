"""The exchange loop with failures: lost calls and answers, a server that is unavailable, full or refuses calls."""

from __future__ import annotations

from itertools import pairwise

import pytest

from scrapy_prioqueue.errors import NotPermitted
from scrapy_prioqueue.frontier.base import Depth, Release
from scrapy_prioqueue.pump.timing import FIRST_RETRY_S, FULL_RETRY_S, LAST_RETRY_S, TICK_S
from tests.unit.pumping import TTL_S, Bench, leased, stored
from tests.unit.virtual_time import in_virtual_time, pass_time, until

# Lost requests and answers


@in_virtual_time
async def test_request_that_was_lost_is_sent_again() -> None:
    bench = await Bench().open()
    await pass_time(1)
    bench.remote.lost_requests = 3

    bench.push("a", "b")
    await stored(bench, 2)

    assert bench.delegate.tags == ["a", "b"]
    assert bench.inner.store.depth(0).accepted == 2
    assert bench.delegate.stats["prioqueue/exchange/failed"] == 3


@in_virtual_time
async def test_after_a_lost_answer_the_same_batch_is_sent_with_the_same_number_and_applied_once() -> None:
    bench = await Bench().open()
    await pass_time(1)
    bench.remote.lost_answers = 2

    bench.push("a", "b")
    await until(lambda: bench.remote.lost_answers == 1, what="an answer was lost")
    bench.push("c")
    await stored(bench, 3)

    carrying = [call.batches for call in bench.remote.sent("exchange") if call.batches]
    assert len(carrying) >= 3
    assert all(batches[0] == carrying[0][0] for batches in carrying[:3])
    assert bench.delegate.tags == ["a", "b", "c"]
    assert bench.inner.store.depth(0).accepted == 3


@in_virtual_time
async def test_lease_that_was_granted_in_a_lost_answer_goes_back_without_counting_as_an_attempt() -> None:
    bench = await Bench().open()
    bench.push("a")
    await stored(bench, 1)
    bench.remote.lost_answers = 1
    bench.offer(1)
    await until(lambda: bench.remote.lost_answers == 0, what="the answer was lost")
    assert bench.inner.store.depth(0).leased == 1

    await until(lambda: bench.remote.sent("reconcile"), what="the worker reconciles")
    await leased(bench)

    assert bench.take().attempt == 1


@in_virtual_time
async def test_unstarted_leases_survive_an_outage() -> None:
    bench = await Bench().open()
    bench.offer(2)
    bench.push("held", rank=0)
    bench.push("unstarted", rank=1)
    await leased(bench, 2)
    held = bench.take()
    bench.delegate.places, bench.delegate.full_slots = 0, {"shop.example"}
    bench.remote.is_away = True
    bench.push("x", rank=9)
    await until(lambda: "prioqueue/exchange/failed" in bench.delegate.stats, what="a failure")

    bench.remote.is_away = False
    await until(lambda: bench.remote.sent("reconcile"), what="the worker reconciles")
    await stored(bench, 3)

    assert (held.lease_id, held.attempt) in bench.remote.sent("reconcile")[0].held
    assert len(bench.remote.sent("reconcile")[0].held) == 2
    assert bench.inner.store.depth(0) == Depth(accepted=3, pending=1, leased=2, workers=1)


@in_virtual_time
async def test_requests_still_start_while_the_server_is_unavailable() -> None:
    bench = await Bench().open()
    bench.offer(3)
    bench.push("a", "b", "c")
    await leased(bench, 3)

    bench.remote.is_away = True
    bench.push("x")
    await pass_time(30)

    assert [bench.pump.take() is not None for _ in range(3)] == [True] * 3


async def finish_in_the_middle_of_recovery(bench: Bench) -> None:
    """Finish a page during the exchange that ends an outage: its ack is not in that exchange."""
    bench.offer(1)
    bench.push("page")
    await leased(bench)
    page = bench.take()
    bench.offer(0)
    bench.remote.lost_requests = 1
    bench.push("child", rank=9)
    await until(lambda: "prioqueue/exchange/failed" in bench.delegate.stats, what="a failure")
    bench.remote.is_answering.clear()
    await until(lambda: bench.remote.running, what="the next try is under way")
    bench.ack(page)
    bench.remote.is_answering.set()
    await stored(bench, 3)


@in_virtual_time
async def test_page_finished_while_the_worker_recovers_from_an_outage_is_not_fetched_again() -> None:
    bench = await Bench().open()

    await finish_in_the_middle_of_recovery(bench)

    assert not any(outcome.is_void for outcome in bench.delegate.outcomes)
    assert bench.inner.store.depth(0) == Depth(accepted=2, pending=1, done=1, workers=1)


@in_virtual_time
async def test_page_finished_in_an_outage_longer_than_a_renewal_is_not_fetched_again() -> None:
    bench = await Bench().open()
    bench.offer(1)
    bench.push("page")
    await leased(bench)
    page = bench.take()
    bench.offer(0)
    bench.remote.is_away = True
    await until(lambda: bench.remote.sent("renew"), what="a renewal is tried", within=TTL_S)

    bench.ack(page)
    bench.remote.round_trip_s = 0.1
    await pass_time(TTL_S / 2)
    bench.remote.is_away = False
    await stored(bench, 2)

    assert not bench.delegate.outcomes[-1].is_void
    assert bench.inner.store.depth(0).done == 1


# Trying again


@in_virtual_time
async def test_tries_continue_with_growing_pauses_that_have_bounds_and_jitter() -> None:
    bench = await Bench().open()
    await pass_time(1)
    bench.remote.is_away = True
    before = len(bench.remote.calls)
    bench.push("a")
    await until(lambda: len(bench.remote.calls) > before + 25, what="25 tries", within=1000, every=1)

    tries = [call.at for call in bench.remote.calls[before:]]
    pauses = [later - earlier for earlier, later in pairwise(tries)]
    slack = 0.01 + bench.remote.round_trip_s
    assert FIRST_RETRY_S / 2 <= pauses[0] <= FIRST_RETRY_S + slack
    assert all(LAST_RETRY_S / 2 <= pause <= LAST_RETRY_S + TICK_S + slack for pause in pauses[8:])
    assert len({round(pause, 3) for pause in pauses[8:]}) > 10


@in_virtual_time
async def test_outage_is_warned_of_once_and_its_end_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    bench = await Bench().open()
    await pass_time(1)
    bench.remote.is_away = True
    bench.push("a")
    await pass_time(60)
    bench.remote.is_away = False
    await stored(bench, 1)

    messages = [(record.levelname, record.getMessage()) for record in caplog.records if "pump" in record.name]
    assert [level for level, _ in messages] == ["WARNING", "INFO"]
    assert bench.remote.address in messages[0][1]
    assert "is available again" in messages[1][1]


@in_virtual_time
async def test_reconciling_is_repeated_where_it_failed() -> None:
    bench = await Bench().open()
    bench.push("a")
    await stored(bench, 1)
    bench.remote.lost_answers = 1
    bench.offer(1)
    await until(lambda: bench.remote.lost_answers == 0, what="the answer was lost")
    await until(lambda: bench.remote.sent("reconcile"), what="the worker reconciles")
    bench.remote.lost_answers = 1

    await leased(bench)
    lease = bench.take()
    await pass_time(2 * TTL_S)

    assert len(bench.remote.sent("reconcile")) >= 2
    assert bench.inner.store.depth(0) == Depth(accepted=1, leased=1, workers=1)
    assert lease.attempt == 1


@in_virtual_time
async def test_idle_is_logged_again_after_a_failure() -> None:
    bench = await Bench().open()
    bench.remote.lost_requests = 5

    bench.end_start()
    await until(lambda: bench.pump.has_ended, what="the end", within=60)


@in_virtual_time
async def test_bug_in_the_frontier_is_logged_and_the_work_continues(caplog: pytest.LogCaptureFixture) -> None:
    bench = await Bench().open()
    await pass_time(1)
    bench.remote.error = ZeroDivisionError("a bug")
    bench.push("a")
    await until(lambda: "prioqueue/exchange/failed" in bench.delegate.stats, what="a failure")

    bench.remote.error = None
    await stored(bench, 1)

    assert "Unexpected error in the exchange" in caplog.text
    assert "ZeroDivisionError: a bug" in caplog.text


# Refused


@in_virtual_time
async def test_worker_that_is_not_permitted_stops_its_host_and_goes_silent() -> None:
    bench = await Bench().open()
    bench.remote.error = NotPermitted("another process has joined under this id")
    bench.push("a")
    await until(lambda: bench.delegate.stopped_by is not None, what="the delegate is stopped")
    calls = len(bench.remote.calls)

    await pass_time(2 * TTL_S)

    assert bench.delegate.stopped_by is bench.remote.error
    assert bench.pump.take() is None
    assert len(bench.remote.calls) == calls


@in_virtual_time
async def test_full_server_keeps_pushes_waiting_and_gets_them_in_order_when_there_is_room(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    bench = await Bench().open()
    bench.remote.is_full = True
    bench.push("a", "b")
    await pass_time(10)
    bench.push("c")
    assert bench.delegate.tags == []
    assert bench.pump.outbox.pushes == 3

    bench.remote.is_full = False
    await stored(bench, 3)

    assert bench.delegate.tags == ["a", "b", "c"]
    assert bench.inner.store.depth(0).accepted == 3
    messages = [(record.levelname, record.getMessage()) for record in caplog.records if "pump" in record.name]
    assert [level for level, _ in messages] == ["WARNING", "INFO"]
    assert "maxmemory" in messages[0][1]
    assert "stores requests again" in messages[1][1]


@in_virtual_time
async def test_full_server_is_asked_again_once_a_second_and_still_leases() -> None:
    bench = await Bench().open()
    bench.push("before")
    await stored(bench, 1)
    bench.remote.is_full = True
    bench.push("a")
    await until(lambda: bench.remote.sent("exchange")[-1].batches, what="a try")
    before = len(bench.remote.sent("exchange"))
    await pass_time(20 * FULL_RETRY_S)
    tries = len(bench.remote.sent("exchange")) - before

    assert 10 <= tries <= 25
    bench.offer(1)
    await leased(bench)
    assert bench.take().payload == b"before"


@in_virtual_time
async def test_worker_whose_crawl_is_over_says_what_was_not_stored_and_ends(caplog: pytest.LogCaptureFixture) -> None:
    bench = await Bench().open()
    bench.end_start()
    await until(lambda: bench.pump.has_ended, what="the end")
    await Bench(store=bench.inner.store, worker="w2").open()

    bench.push("too late")
    await until(lambda: bench.pump.has_ended, what="the end again")

    assert bench.delegate.stats["prioqueue/rejected"] == 1
    assert "Did not store 1 request" in caplog.text
    assert bench.inner.store.depth(0).accepted == 0


@in_virtual_time
async def test_leases_whose_answer_comes_after_they_have_expired_are_released_unstarted() -> None:
    bench = await Bench().open()
    bench.push("a")
    await stored(bench, 1)
    bench.remote.is_answering.clear()
    bench.offer(1)
    await until(lambda: bench.remote.running, what="an exchange is under way")

    await pass_time(TTL_S + 1)
    bench.remote.is_answering.set()
    await until(lambda: any(isinstance(each, Release) for each in bench.operations), what="it is given back")
    await leased(bench)

    assert bench.take().payload == b"a"
