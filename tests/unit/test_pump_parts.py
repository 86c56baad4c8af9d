"""The small parts of the pump: alarm, calls, polling, failures, rejections."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from scrapy_prioqueue.errors import (
    CrawlEnded,
    FrontierFull,
    FrontierRefused,
    FrontierUnavailable,
    NotPermitted,
    PrioQueueError,
)
from scrapy_prioqueue.frontier.base import Ack, Committed, Demand, Exchanged, Lease, Push
from scrapy_prioqueue.frontier.memory import MemoryFrontier
from scrapy_prioqueue.frontier.policy import Closing, HeldUp
from scrapy_prioqueue.pump.agenda import Polling
from scrapy_prioqueue.pump.backpressure import Rejections
from scrapy_prioqueue.pump.calls import Calls
from scrapy_prioqueue.pump.demand import MOST_NOTES, Notes
from scrapy_prioqueue.pump.outage import Failures
from scrapy_prioqueue.pump.outbox import HeldRequest, Outbox
from scrapy_prioqueue.pump.timing import (
    ANSWER_CHECK_S,
    EMPTY_FLUSH_S,
    FIRST_RETRY_S,
    FLUSH_S,
    FULL_RETRY_S,
    LAST_RETRY_S,
    POLL_S,
    POLL_WITHOUT_BELL_S,
    SLOW_S,
    SPREAD_PER_WORKER_S,
)
from scrapy_prioqueue.runtime import Alarm, AsyncioRunner, InlineRunner
from tests.support.clocks import Clock
from tests.unit.pumping import FakeDelegate, finished, frontier_config, in_loop_time
from tests.unit.virtual_time import in_virtual_time, pass_time

AWAY = FrontierUnavailable("redis://shop.example:6379/0", "connection reset")
LEASE = Lease(1, 1, 0, "shop.example", b"payload")


# Alarm


@in_virtual_time
async def test_alarm_goes_off_once_at_the_earliest_time_it_was_set_to() -> None:
    times: list[float] = []
    alarm = Alarm(in_loop_time, lambda: times.append(in_loop_time()))
    alarm.set(5.0)
    alarm.set(2.0)
    alarm.set(3.0)
    assert alarm.is_set

    await pass_time(10)

    assert times == [pytest.approx(2.0)]
    assert not alarm.is_set


@in_virtual_time
async def test_alarm_set_to_a_time_that_has_passed_goes_off_at_once() -> None:
    times: list[float] = []
    alarm = Alarm(in_loop_time, lambda: times.append(in_loop_time()))
    await pass_time(5)
    alarm.set(1.0)
    await pass_time(0.01)

    assert times == [pytest.approx(5.0)]


@in_virtual_time
async def test_alarm_that_is_cancelled_does_not_go_off_and_can_be_set_again() -> None:
    times: list[float] = []
    alarm = Alarm(in_loop_time, lambda: times.append(in_loop_time()))
    alarm.set(1.0)
    alarm.cancel()
    alarm.cancel()
    assert not alarm.is_set
    await pass_time(5)
    assert times == []

    alarm.set(7.0)
    await pass_time(5)
    assert times == [pytest.approx(7.0)]


@in_virtual_time
async def test_alarm_may_be_set_again_when_it_goes_off() -> None:
    times: list[float] = []

    def again() -> None:
        times.append(in_loop_time())
        if len(times) < 3:
            alarm.set(in_loop_time() + 1)

    alarm = Alarm(in_loop_time, again)
    alarm.set(1.0)
    await pass_time(10)

    assert times == [pytest.approx(1.0), pytest.approx(2.0), pytest.approx(3.0)]


# Calls


class Caller:
    """Who makes calls, and writes down what becomes of them."""

    def __init__(self) -> None:
        self.told: list[object] = []

    def on_answer(self) -> None:
        self.told.append("answers")

    def on_slow(self) -> None:
        self.told.append("slow")

    def on_failure(self, error: BaseException | None, *, was_sent: bool) -> None:
        self.told.append(("failed", error, was_sent))

    def on_not_permitted(self, why: NotPermitted) -> None:
        self.told.append(("refused", why))

    def on_free(self) -> None:
        self.told.append("free")


def calls_of(runner: AsyncioRunner | InlineRunner) -> tuple[Calls, Caller]:
    caller = Caller()
    return Calls(runner, caller, in_loop_time), caller


async def answering(result: object, after_s: float = 0.0) -> object:
    if after_s:
        await asyncio.sleep(after_s)
    if isinstance(result, BaseException):
        raise result
    return result


async def called(calls: Calls, caller: Caller, coroutine: Coroutine[Any, Any, object]) -> None:
    calls.call(coroutine, lambda result: caller.told.append(("result", result)))
    assert calls.running is not None
    await finished(calls.running)


@in_virtual_time
async def test_caller_hears_of_an_answer_before_its_result_and_then_that_the_next_call_may_be_made() -> None:
    calls, caller = calls_of(AsyncioRunner())
    await called(calls, caller, answering(7, SLOW_S / 2))

    assert caller.told == ["answers", ("result", 7), "free"]
    assert not calls.is_busy
    await pass_time(10)
    assert "slow" not in caller.told


@in_virtual_time
async def test_caller_hears_once_that_an_answer_takes_long_and_gets_it_nevertheless() -> None:
    calls, caller = calls_of(AsyncioRunner())
    await called(calls, caller, answering(7, 5 * SLOW_S))

    assert caller.told == ["slow", "answers", ("result", 7), "free"]


@in_virtual_time
async def test_no_answer_is_overdue_while_a_blocked_loop_could_not_read_it() -> None:
    caller, stalled_s = Caller(), 0.0
    calls = Calls(AsyncioRunner(), caller, lambda: in_loop_time() + stalled_s)
    calls.call(answering(7, SLOW_S - ANSWER_CHECK_S), lambda result: caller.told.append(("result", result)))
    while calls.is_busy:
        await pass_time(ANSWER_CHECK_S)
        stalled_s += SLOW_S

    assert caller.told == ["answers", ("result", 7), "free"]


@in_virtual_time
async def test_calls_that_are_closed_report_no_slowness() -> None:
    calls, caller = calls_of(AsyncioRunner())
    calls.call(answering(7, 5 * SLOW_S), caller.told.append)
    calls.close()
    await pass_time(10 * SLOW_S)

    assert caller.told == ["answers", 7, "free"]


@pytest.mark.parametrize("was_sent", [True, False])
def test_caller_hears_why_a_call_has_failed_and_whether_it_may_have_been_carried_out(was_sent: bool) -> None:
    error = FrontierUnavailable("redis://shop.example:6379/0", "why", was_sent=was_sent)

    @in_virtual_time
    async def test() -> None:
        calls, caller = calls_of(AsyncioRunner())
        await called(calls, caller, answering(error))
        assert caller.told == [("failed", error, was_sent), "free"]

    test()


@in_virtual_time
async def test_caller_hears_that_the_worker_is_not_permitted() -> None:
    calls, caller = calls_of(AsyncioRunner())
    why = NotPermitted("another process")
    await called(calls, caller, answering(why))

    assert caller.told == [("refused", why), "free"]


@in_virtual_time
async def test_calls_survive_a_bug_in_one_and_in_what_takes_its_result(caplog: pytest.LogCaptureFixture) -> None:
    calls, caller = calls_of(AsyncioRunner())
    bug = ZeroDivisionError("a bug")
    await called(calls, caller, answering(bug))
    assert caller.told == [("failed", bug, True), "free"]

    caller.told.clear()
    calls.call(answering({}), lambda result: result["missing"])  # type: ignore[index]
    assert calls.running is not None
    await finished(calls.running)

    assert [told if isinstance(told, str) else told[0] for told in caller.told] == ["answers", "failed", "free"]  # type: ignore[index]
    assert caplog.text.count("Unexpected error in the exchange") == 2


def test_call_of_an_in_process_frontier_is_answered_when_it_returns() -> None:
    calls, caller = calls_of(InlineRunner())
    calls.call(answering(7), caller.told.append)

    assert caller.told == ["answers", 7, "free"]
    assert not calls.is_busy


# Polling


def test_worker_that_got_nothing_sends_at_once_and_asks_again_after_the_bell() -> None:
    polling = Polling(0.0)
    assert (polling.got_nothing, polling.flush_s) == (False, FLUSH_S)

    polling.note_answer(Exchanged(), Demand(3), 100.0, has_due=False, hears_bell=True)
    assert (polling.got_nothing, polling.flush_s, polling.poll_at) == (True, EMPTY_FLUSH_S, 100 + POLL_S)
    polling.note_answer(Exchanged(), Demand(3), 100.0, has_due=False, hears_bell=False)
    assert polling.poll_at == 100 + POLL_WITHOUT_BELL_S


def test_worker_that_asked_for_nothing_or_got_something_is_not_dry() -> None:
    polling = Polling(0.0)
    polling.note_answer(Exchanged(), Demand(3), 100.0, has_due=False, hears_bell=True)
    polling.note_answer(Exchanged(), Demand(0), 100.0, has_due=False, hears_bell=True)
    assert not polling.got_nothing

    polling.note_answer(Exchanged(leases=[LEASE]), Demand(3), 100.0, has_due=True, hears_bell=True)
    assert not polling.got_nothing


def test_worker_asks_right_after_the_next_expiry() -> None:
    polling = Polling(0.0)
    polling.note_answer(Exchanged(next_due_s=0.5), Demand(3), 100.0, has_due=False, hears_bell=True)
    assert polling.poll_at == 100.5 + EMPTY_FLUSH_S

    polling.note_answer(Exchanged(next_due_s=50), Demand(3), 100.0, has_due=False, hears_bell=True)
    assert polling.poll_at == 100 + POLL_S


@pytest.mark.parametrize("is_asking", [True, False])
def test_bell_that_rings_while_an_answer_is_under_way_makes_that_answer_old(is_asking: bool) -> None:
    polling = Polling(0.0)
    polling.note_answer(Exchanged(), Demand(3), 100.0, has_due=False, hears_bell=True)

    polling.note_ring(is_asking=is_asking)
    assert not polling.got_nothing
    polling.note_answer(Exchanged(), Demand(3), 101.0, has_due=False, hears_bell=True)
    assert polling.got_nothing is not is_asking

    polling.note_answer(Exchanged(), Demand(3), 102.0, has_due=False, hears_bell=True)
    assert polling.got_nothing


# Notes


def test_a_waiting_page_is_noted_once_until_the_note_is_sent() -> None:
    notes = Notes(Clock())
    for _ in range(2 * MOST_NOTES):
        for slot in ("a", "b"):
            notes.add(HeldUp(slot))
    notes.add(Closing("a", 1000))

    assert notes.to_send() == [HeldUp("a"), HeldUp("b"), Closing("a", 1000)]

    notes.confirm(1)
    notes.add(HeldUp("a"))
    assert notes.to_send() == [HeldUp("b"), Closing("a", 1000), HeldUp("a")]


# Failures


def levels(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.levelname for record in caplog.records]


@pytest.mark.parametrize("goes_on, does", [(True, "continues with leased requests"), (False, "starts no new requests")])
def test_an_outage_is_logged_once(goes_on: bool, does: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    failures = Failures(Clock(), goes_on=goes_on)
    for _ in range(3):
        failures.begin(AWAY)

    assert levels(caplog) == ["WARNING"]
    assert does in caplog.messages[0]
    assert "connection reset" in caplog.messages[0]
    assert failures.is_on
    assert failures.keeps_from_starting is not goes_on


@pytest.mark.parametrize(("workers", "spread"), [(1, (0.03, 0.1)), (1000, (0.8, 1.1))])
def test_a_fleet_tries_again_over_a_time_that_grows_with_it(workers: int, spread: tuple[float, float]) -> None:
    def retry_at() -> float:
        failures = Failures(lambda: 0.0, goes_on=True)
        failures.begin(AWAY, workers=workers)
        return failures.retry_at

    tries = [retry_at() for _ in range(300)]

    assert spread[0] < max(tries) - min(tries) < spread[1]


def test_outage_that_waiting_does_not_mend_is_an_error(caplog: pytest.LogCaptureFixture) -> None:
    Failures(Clock(), goes_on=True).begin(FrontierRefused("redis://shop.example:6379/0", "wrong password"))

    assert levels(caplog) == ["ERROR"]


def test_end_of_an_outage_counts_what_was_done_in_it_alone(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    clock = Clock()
    failures = Failures(clock, goes_on=True)
    failures.end("address")
    assert caplog.messages == []
    for started, found in ((2, 3), (1, 0)):
        failures.note_started()
        failures.note_found()
        failures.begin(AWAY)
        for _ in range(started):
            failures.note_started()
        for _ in range(found):
            failures.note_found()
        clock.now += 12.34
        failures.begin(AWAY)
        failures.end("redis://shop.example:6379/0")
        assert not failures.is_on
        assert not failures.keeps_from_starting

    assert [message for message in caplog.messages if "available again" in message] == [
        "The frontier at redis://shop.example:6379/0 is available again after 12.3 s; meanwhile this worker"
        " started 2 requests and found 3 requests",
        "The frontier at redis://shop.example:6379/0 is available again after 12.3 s; meanwhile this worker"
        " started 1 request and found 0 requests",
    ]


def test_pauses_between_attempts_grow_up_to_a_limit_and_are_reset() -> None:
    clock = Clock()
    failures = Failures(clock, goes_on=True)
    assert failures.may_try()
    for longest in (FIRST_RETRY_S, 2 * FIRST_RETRY_S, 4 * FIRST_RETRY_S, *[None] * 2000, LAST_RETRY_S):
        failures.begin(AWAY)
        assert not failures.may_try()
        if longest is not None:
            assert longest / 2 <= failures.retry_at - clock.now <= longest + SPREAD_PER_WORKER_S

    failures.end("address")
    failures.begin(AWAY)
    assert failures.retry_at - clock.now <= FIRST_RETRY_S + SPREAD_PER_WORKER_S
    clock.now = failures.retry_at
    assert failures.may_try()


def test_an_attempt_that_took_longer_than_the_pause_is_repeated_at_once() -> None:
    clock = Clock()
    failures = Failures(clock, goes_on=True)
    for _ in range(20):
        failures.begin(AWAY)
        clock.now = failures.retry_at + LAST_RETRY_S
    failures.begin(AWAY)

    assert failures.retry_at - clock.now <= SPREAD_PER_WORKER_S


# Rejections


class Rejected:
    """Rejections with all that belongs to them, and an outbox with a request and the ack of a page without children."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.delegate = FakeDelegate()
        self.outbox: Outbox[str] = Outbox()
        self.rejections = Rejections(MemoryFrontier(frontier_config()), self.delegate, self.outbox, self.clock)
        self.outbox.push(Push(0, "shop.example", b"payload"), "request")
        self.outbox.settle(Ack(1, 1), HeldRequest(LEASE))
        self.outbox.batches()

    def note(self, refusal: Exception | None, *, had_requests: bool = True) -> None:
        """Take note of an answer."""
        self.rejections.note(refusal, had_requests=had_requests)


def test_full_server_gets_no_requests_until_it_is_time_for_a_try(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    rejected = Rejected()
    assert rejected.rejections.may_send_requests()

    rejected.note(FrontierFull("full"))

    assert not rejected.rejections.may_send_requests()
    assert rejected.outbox.has_free_entries()
    assert (rejected.rejections.is_full, rejected.rejections.must_wait) == (True, True)
    rejected.note(None, had_requests=False)
    assert rejected.rejections.is_full
    rejected.clock.now += FULL_RETRY_S
    assert rejected.rejections.may_send_requests()
    rejected.note(FrontierFull("full"))
    (batch,) = rejected.outbox.batches()
    rejected.outbox.confirm([Committed(batch.number)])
    rejected.note(None)

    assert (rejected.rejections.is_full, rejected.rejections.must_wait) == (False, False)
    assert rejected.rejections.may_send_requests()
    assert levels(caplog) == ["WARNING", "INFO"]
    assert rejected.delegate.stats == {"prioqueue/exchange/full": 2}


def test_full_server_that_has_taken_some_gets_more_at_once_and_is_full_until_it_has_all(
    caplog: pytest.LogCaptureFixture,
) -> None:
    rejected = Rejected()
    for number in range(40):
        rejected.outbox.push(Push(0, "shop.example", b"%d" % number), "request")
    rejected.note(FrontierFull("full"))
    sizes: list[int] = []
    while rejected.rejections.is_full:
        assert not sizes or rejected.rejections.may_send_requests()
        batches = rejected.outbox.batches()
        sizes.append(sum(isinstance(each, Push) for batch in batches for each in batch.operations))
        rejected.outbox.confirm([Committed(batch.number) for batch in batches])
        rejected.note(None)

    assert sum(sizes) == 41
    assert sizes == [9, 18, 14]
    assert levels(caplog) == ["WARNING"]


def test_a_full_server_is_no_more_when_the_crawl_is_over() -> None:
    rejected = Rejected()
    rejected.note(FrontierFull("full"))

    rejected.note(CrawlEnded("it is over"))

    assert (rejected.rejections.is_full, rejected.rejections.must_wait) == (False, False)


def test_crawl_that_is_over_empties_the_outbox_and_counts_what_was_lost(caplog: pytest.LogCaptureFixture) -> None:
    rejected = Rejected()

    rejected.note(CrawlEnded("it is over"))

    assert len(rejected.outbox) == 0
    assert not rejected.rejections.must_wait
    assert rejected.delegate.stats == {"prioqueue/rejected": 1}
    assert caplog.messages == ["Did not store 1 request: it is over"]


def test_crawl_that_is_over_is_not_warned_of_where_only_acks_are_lost(caplog: pytest.LogCaptureFixture) -> None:
    rejected = Rejected()
    rejected.outbox.confirm([Committed(1)])
    rejected.outbox.settle(Ack(1, 1), HeldRequest(LEASE))

    rejected.note(CrawlEnded("it is over"))

    assert (len(rejected.outbox), caplog.messages, rejected.delegate.stats) == (0, [], {})


def test_rejection_of_another_kind_is_an_error_that_keeps_the_batch_and_waits(caplog: pytest.LogCaptureFixture) -> None:
    rejected = Rejected()

    rejected.note(PrioQueueError("out of step"))

    assert len(rejected.outbox) == 2
    assert rejected.rejections.must_wait
    assert rejected.rejections.retry_at == rejected.clock.now + FULL_RETRY_S
    assert (levels(caplog), caplog.messages) == (["ERROR"], ["out of step"])
