"""Closing the pump: it sends its operations and releases leases, also if the server doesn't answer."""

from __future__ import annotations

import pytest

from scrapy_prioqueue.errors import NotPermitted
from scrapy_prioqueue.frontier.base import Depth
from scrapy_prioqueue.pump.outbox import BATCH_SIZE, MAX_BATCHES
from tests.unit.pumping import Bench, finished, in_loop_time, leased, stored
from tests.unit.virtual_time import in_virtual_time, pass_time, until


@in_virtual_time
async def test_close_commits_what_is_unsent_and_leaves() -> None:
    bench = await Bench().open()
    bench.push("a", "b")

    await bench.close()

    assert bench.delegate.tags == ["a", "b"]
    assert [call.verb for call in bench.remote.calls][-1] == "leave"
    assert bench.inner.store.workers == {}
    assert bench.remote.is_closed


@in_virtual_time
async def test_close_commits_more_than_one_exchange_takes() -> None:
    bench = await Bench(outbox_limit=10**6).open()
    count = 2 * BATCH_SIZE * MAX_BATCHES + 1
    bench.push(*map(str, range(count)))

    await bench.close()

    assert len(bench.delegate.outcomes) == count


@in_virtual_time
async def test_close_releases_what_was_not_started_and_what_runs() -> None:
    bench = await Bench().open()
    bench.offer(3)
    bench.push("a", "b", "c")
    await leased(bench, 3)
    bench.take()

    await bench.close()

    assert bench.inner.store.depth(0) == Depth(accepted=3, pending=3)
    assert bench.delegate.stats["prioqueue/lease/released"] == 3


@in_virtual_time
async def test_close_after_the_end_of_the_crawl_keeps_the_counts() -> None:
    bench = await Bench().open()
    bench.offer(1)
    bench.push("a")
    await leased(bench)
    bench.ack(bench.take())
    await until(lambda: bench.pump.depth.done == 1, what="the ack is confirmed")
    bench.inner.store.begin(None, 0, forget_seen=True, suspect_attempts=2)

    last = await finished(bench.pump.close(10))

    assert last == bench.pump.depth == Depth(accepted=1, done=1)


@in_virtual_time
async def test_ack_before_the_close_is_reported() -> None:
    bench = await Bench().open()
    bench.offer(1)
    bench.push("a")
    await leased(bench)
    bench.ack(bench.take())

    await bench.close()

    assert bench.inner.store.depth(0) == Depth(accepted=1, done=1)


@in_virtual_time
async def test_nothing_is_leased_any_more_once_the_spider_closes() -> None:
    bench = await Bench().open()
    bench.offer(1)
    bench.push("a", "b")
    await leased(bench)

    bench.delegate.closing = True
    assert bench.pump.take() is None
    bench.pump.consider()
    await until(lambda: bench.inner.store.depth(0).leased == 0, what="the lease is given back", within=1)
    await pass_time(5)

    assert bench.inner.store.depth(0).pending == 2


@in_virtual_time
async def test_lease_that_arrives_during_the_close_is_released() -> None:
    bench = await Bench().open()
    bench.push("a")
    await stored(bench, 1)
    bench.remote.is_answering.clear()
    bench.offer(1)
    await until(lambda: bench.inner.store.depth(0).leased == 1, what="a lease is on its way")

    bench.delegate.closing = True
    closing = bench.pump.close(10.0)
    bench.remote.is_answering.set()
    await until(lambda: closing.called and bench.remote.is_closed, what="the close")

    assert bench.inner.store.depth(0) == Depth(accepted=1, pending=1)


@in_virtual_time
async def test_close_waits_for_the_exchange_that_is_under_way() -> None:
    bench = await Bench().open()
    bench.remote.round_trip_s = 2.0
    bench.push("a")
    await until(lambda: bench.remote.running, what="an exchange is under way")

    await bench.close()

    assert bench.remote.most_running == 1
    assert bench.delegate.tags == ["a"]


@in_virtual_time
async def test_close_without_an_answer_ends_in_time_and_logs_unconfirmed_operations(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bench = await Bench().open()
    bench.remote.is_answering.clear()
    bench.push("a", "b")
    began = in_loop_time()

    await bench.close(timeout_s=7.0)

    assert in_loop_time() - began == pytest.approx(7.0)
    (warning,) = [record for record in caplog.records if record.levelname == "WARNING"]
    assert "(no answer within 7 s (PRIOQUEUE_CLOSE_TIMEOUT))" in warning.getMessage()
    assert "Not confirmed: 2 requests from no page" in warning.getMessage()
    assert bench.remote.is_closed


@in_virtual_time
async def test_close_says_what_the_frontier_has_not_confirmed(caplog: pytest.LogCaptureFixture) -> None:
    bench = await Bench().open()
    bench.offer(3)
    bench.push("a", "b", "c")
    await leased(bench, 3)
    done, running = bench.take(), bench.take()
    bench.remote.error = NotPermitted("no place")
    bench.push("of this page", found_on=running)
    bench.push("of any page")
    bench.ack(done)
    await until(lambda: bench.delegate.stopped_by is not None, what="the delegate is stopped")

    await bench.close()

    assert "everything (see the error above). Not confirmed: 2 requests found on pages: " in caplog.text
    assert "; 1 ack, " in caplog.text
    assert "; 2 requests to be released, " in caplog.text


@in_virtual_time
async def test_close_while_the_server_is_away_ends_in_time_and_says_why(caplog: pytest.LogCaptureFixture) -> None:
    bench = await Bench().open()
    await pass_time(1)
    bench.remote.is_away = True
    bench.push("a")
    began = in_loop_time()

    await bench.close(timeout_s=7.0)

    assert in_loop_time() - began < 7.5
    assert "the request was lost" in caplog.text
    assert "Not confirmed: 1 request from no page" in caplog.text


@in_virtual_time
async def test_close_tries_again_while_there_is_time() -> None:
    bench = await Bench().open()
    bench.offer(1)
    bench.push("a")
    await leased(bench)
    page = bench.take()
    await pass_time(1)
    bench.ack(page)
    bench.remote.lost_requests = 1

    await bench.close(timeout_s=7.0)

    assert bench.inner.store.depth(0) == Depth(accepted=1, done=1)
    assert bench.inner.store.workers == {}


@in_virtual_time
async def test_close_lets_start_continue_and_only_once() -> None:
    bench = await Bench(outbox_limit=1).open()
    bench.remote.is_answering.clear()
    bench.push("a")
    await until(lambda: bench.remote.running, what="an exchange is under way")
    waiting = bench.pump.gate.wait()
    assert waiting is not None

    closing = bench.pump.close(10.0)
    assert waiting.called
    bench.remote.is_answering.set()
    await until(lambda: closing.called and bench.remote.is_closed, what="the close")

    assert bench.delegate.stats.get("prioqueue/exchange/failed", 0) == 0


@in_virtual_time
async def test_after_the_close_nothing_is_started_and_nothing_is_sent() -> None:
    bench = await Bench().open()
    bench.offer(1)
    await bench.close()
    calls = len(bench.remote.calls)

    bench.pump.consider()
    bench.push("late")
    await pass_time(100)

    assert bench.pump.take() is None
    assert len(bench.remote.calls) == calls


@in_virtual_time
async def test_in_process_close_keeps_what_is_left_in_the_store() -> None:
    bench = await Bench(is_local=True).open()
    bench.push("a", "b")
    bench.take()

    await bench.close()

    assert bench.inner.store.depth(0) == Depth(accepted=2, pending=2)
