"""The small parts of the pump, each alone: alarm, line, hunger, outage, refusals."""

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
from scrapy_prioqueue.pump.agenda import Hunger
from scrapy_prioqueue.pump.calls import Line
from scrapy_prioqueue.pump.demand import MOST_NOTES, Notes
from scrapy_prioqueue.pump.outage import Outage
from scrapy_prioqueue.pump.outbox import Hold, Outbox
from scrapy_prioqueue.pump.refusals import Refusals
from scrapy_prioqueue.pump.timing import (
    DRY_FLUSH_S,
    FIRST_RETRY_S,
    FLUSH_S,
    FULL_RETRY_S,
    LAST_RETRY_S,
    LOOK_S,
    POLL_S,
    POLL_WITHOUT_BELL_S,
    SLOW_S,
    SPREAD_PER_WORKER_S,
)
from scrapy_prioqueue.runtime import Alarm, AsyncioRunner, InlineRunner
from tests.support.clocks import Clock
from tests.unit.pumping import FakeHost, finished, frontier_config, in_loop_time
from tests.unit.test_pump import in_virtual_time
from tests.unit.virtual_time import pass_time

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


# Line


class Calls:
    """Who makes calls, and writes down what the line tells."""

    def __init__(self) -> None:
        self.told: list[object] = []

    def line_answers(self) -> None:
        self.told.append("answers")

    def line_is_slow(self) -> None:
        self.told.append("slow")

    def line_failed(self, error: BaseException | None, *, was_sent: bool) -> None:
        self.told.append(("failed", error, was_sent))

    def line_refused(self, why: NotPermitted) -> None:
        self.told.append(("refused", why))

    def line_is_free(self) -> None:
        self.told.append("free")


def line_with(runner: AsyncioRunner | InlineRunner) -> tuple[Line, Calls]:
    calls = Calls()
    return Line(runner, calls, in_loop_time), calls


async def answering(result: object, after_s: float = 0.0) -> object:
    if after_s:
        await asyncio.sleep(after_s)
    if isinstance(result, BaseException):
        raise result
    return result


async def called(line: Line, calls: Calls, coroutine: Coroutine[Any, Any, object]) -> None:
    line.call(coroutine, lambda result: calls.told.append(("result", result)))
    assert line.running is not None
    await finished(line.running)


@in_virtual_time
async def test_line_tells_of_an_answer_before_its_result_and_then_that_it_is_free() -> None:
    line, calls = line_with(AsyncioRunner())
    await called(line, calls, answering(7, SLOW_S / 2))

    assert calls.told == ["answers", ("result", 7), "free"]
    assert not line.is_busy
    await pass_time(10)
    assert "slow" not in calls.told


@in_virtual_time
async def test_line_tells_once_that_an_answer_takes_long_and_takes_it_nevertheless() -> None:
    line, calls = line_with(AsyncioRunner())
    await called(line, calls, answering(7, 5 * SLOW_S))

    assert calls.told == ["slow", "answers", ("result", 7), "free"]


@in_virtual_time
async def test_line_whose_loop_is_held_up_again_and_again_takes_no_answer_for_overdue_that_it_could_not_read() -> None:
    calls, stalled_s = Calls(), 0.0
    line = Line(AsyncioRunner(), calls, lambda: in_loop_time() + stalled_s)
    line.call(answering(7, SLOW_S - LOOK_S), lambda result: calls.told.append(("result", result)))
    while line.is_busy:
        await pass_time(LOOK_S)
        stalled_s += SLOW_S

    assert calls.told == ["answers", ("result", 7), "free"]


@in_virtual_time
async def test_line_that_is_closed_does_not_tell_of_slowness() -> None:
    line, calls = line_with(AsyncioRunner())
    line.call(answering(7, 5 * SLOW_S), calls.told.append)
    line.close()
    await pass_time(10 * SLOW_S)

    assert calls.told == ["answers", 7, "free"]


@pytest.mark.parametrize("was_sent", [True, False])
def test_line_tells_why_a_call_has_failed_and_whether_it_may_have_been_carried_out(was_sent: bool) -> None:
    error = FrontierUnavailable("redis://shop.example:6379/0", "why", was_sent=was_sent)

    @in_virtual_time
    async def test() -> None:
        line, calls = line_with(AsyncioRunner())
        await called(line, calls, answering(error))
        assert calls.told == [("failed", error, was_sent), "free"]

    test()


@in_virtual_time
async def test_line_tells_that_the_worker_is_not_permitted() -> None:
    line, calls = line_with(AsyncioRunner())
    why = NotPermitted("another process")
    await called(line, calls, answering(why))

    assert calls.told == [("refused", why), "free"]


@in_virtual_time
async def test_line_survives_a_bug_in_a_call_and_in_what_takes_its_result(caplog: pytest.LogCaptureFixture) -> None:
    line, calls = line_with(AsyncioRunner())
    bug = ZeroDivisionError("a bug")
    await called(line, calls, answering(bug))
    assert calls.told == [("failed", bug, True), "free"]

    calls.told.clear()
    line.call(answering({}), lambda result: result["missing"])  # type: ignore[index]
    assert line.running is not None
    await finished(line.running)

    assert [told if isinstance(told, str) else told[0] for told in calls.told] == ["answers", "failed", "free"]  # type: ignore[index]
    assert caplog.text.count("Unexpected error in the exchange") == 2


def test_line_to_an_in_process_frontier_has_its_answer_when_the_call_returns() -> None:
    line, calls = line_with(InlineRunner())
    line.call(answering(7), calls.told.append)

    assert calls.told == ["answers", 7, "free"]
    assert not line.is_busy


# Hunger


def test_worker_that_got_nothing_is_dry_flushes_at_once_and_asks_again_when_the_bell_might_have_rung() -> None:
    hunger = Hunger(0.0)
    assert (hunger.is_dry, hunger.flush_s) == (False, FLUSH_S)

    hunger.note_answer(Exchanged(), Demand(3), 100.0, has_food=False, hears_bell=True)
    assert (hunger.is_dry, hunger.flush_s, hunger.poll_at) == (True, DRY_FLUSH_S, 100 + POLL_S)
    hunger.note_answer(Exchanged(), Demand(3), 100.0, has_food=False, hears_bell=False)
    assert hunger.poll_at == 100 + POLL_WITHOUT_BELL_S


def test_worker_that_asked_for_nothing_or_got_something_is_not_dry() -> None:
    hunger = Hunger(0.0)
    hunger.note_answer(Exchanged(), Demand(3), 100.0, has_food=False, hears_bell=True)
    hunger.note_answer(Exchanged(), Demand(0), 100.0, has_food=False, hears_bell=True)
    assert not hunger.is_dry

    hunger.note_answer(Exchanged(leases=[LEASE]), Demand(3), 100.0, has_food=True, hears_bell=True)
    assert not hunger.is_dry


def test_worker_asks_right_after_the_next_expiry() -> None:
    hunger = Hunger(0.0)
    hunger.note_answer(Exchanged(next_due_s=0.5), Demand(3), 100.0, has_food=False, hears_bell=True)
    assert hunger.poll_at == 100.5 + DRY_FLUSH_S

    hunger.note_answer(Exchanged(next_due_s=50), Demand(3), 100.0, has_food=False, hears_bell=True)
    assert hunger.poll_at == 100 + POLL_S


@pytest.mark.parametrize("is_asking", [True, False])
def test_bell_that_rings_while_an_answer_is_under_way_makes_that_answer_old(is_asking: bool) -> None:
    hunger = Hunger(0.0)
    hunger.note_answer(Exchanged(), Demand(3), 100.0, has_food=False, hears_bell=True)

    hunger.note_ring(is_asking=is_asking)
    assert not hunger.is_dry
    hunger.note_answer(Exchanged(), Demand(3), 101.0, has_food=False, hears_bell=True)
    assert hunger.is_dry is not is_asking

    hunger.note_answer(Exchanged(), Demand(3), 102.0, has_food=False, hears_bell=True)
    assert hunger.is_dry


# Notes


def test_a_page_that_is_held_up_is_noted_once_until_that_is_sent() -> None:
    notes = Notes(Clock())
    for _ in range(2 * MOST_NOTES):
        for slot in ("a", "b"):
            notes.add(HeldUp(slot))
    notes.add(Closing("a", 1000))

    assert notes.told() == [HeldUp("a"), HeldUp("b"), Closing("a", 1000)]

    notes.confirm(1)
    notes.add(HeldUp("a"))
    assert notes.told() == [HeldUp("b"), Closing("a", 1000), HeldUp("a")]


# Outage


def levels(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.levelname for record in caplog.records]


@pytest.mark.parametrize("goes_on, does", [(True, "continues with leased requests"), (False, "starts no new requests")])
def test_outage_is_warned_of_once_whatever_comes(goes_on: bool, does: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    outage = Outage(Clock(), goes_on=goes_on)
    for _ in range(3):
        outage.begin(AWAY)

    assert levels(caplog) == ["WARNING", "DEBUG", "DEBUG"]
    assert does in caplog.messages[0]
    assert "connection reset" in caplog.messages[0]
    assert outage.is_on
    assert outage.keeps_from_starting is not goes_on


@pytest.mark.parametrize(("workers", "spread"), [(1, (0.03, 0.1)), (1000, (0.8, 1.1))])
def test_a_fleet_tries_again_over_a_time_that_grows_with_it(workers: int, spread: tuple[float, float]) -> None:
    def retry_at() -> float:
        outage = Outage(lambda: 0.0, goes_on=True)
        outage.begin(AWAY, workers=workers)
        return outage.retry_at

    tries = [retry_at() for _ in range(300)]

    assert spread[0] < max(tries) - min(tries) < spread[1]


def test_outage_that_waiting_does_not_mend_is_an_error(caplog: pytest.LogCaptureFixture) -> None:
    Outage(Clock(), goes_on=True).begin(FrontierRefused("redis://shop.example:6379/0", "wrong password"))

    assert levels(caplog) == ["ERROR"]


def test_end_of_an_outage_counts_what_was_done_in_it_alone(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    clock = Clock()
    outage = Outage(clock, goes_on=True)
    outage.end("address")
    assert caplog.messages == []
    for started, found in ((2, 3), (1, 0)):
        outage.note_started()
        outage.note_found()
        outage.begin(AWAY)
        for _ in range(started):
            outage.note_started()
        for _ in range(found):
            outage.note_found()
        clock.now += 12.34
        outage.begin(AWAY)
        outage.end("redis://shop.example:6379/0")
        assert not outage.is_on
        assert not outage.keeps_from_starting

    assert [message for message in caplog.messages if "available again" in message] == [
        "The frontier at redis://shop.example:6379/0 is available again after 12.3 s; meanwhile 2 requests were"
        " started and 3 were found here",
        "The frontier at redis://shop.example:6379/0 is available again after 12.3 s; meanwhile 1 requests were"
        " started and 0 were found here",
    ]


def test_tries_have_pauses_that_grow_up_to_a_limit_and_begin_anew() -> None:
    clock = Clock()
    outage = Outage(clock, goes_on=True)
    assert outage.may_try()
    for longest in (FIRST_RETRY_S, 2 * FIRST_RETRY_S, 4 * FIRST_RETRY_S, *[None] * 2000, LAST_RETRY_S):
        outage.begin(AWAY)
        assert not outage.may_try()
        if longest is not None:
            assert longest / 2 <= outage.retry_at - clock.now <= longest + SPREAD_PER_WORKER_S

    outage.end("address")
    outage.begin(AWAY)
    assert outage.retry_at - clock.now <= FIRST_RETRY_S + SPREAD_PER_WORKER_S
    clock.now = outage.retry_at
    assert outage.may_try()


# Refusals


class Refused:
    """Refusals with all that belongs to them, and an outbox with a request and the ack of a page without children."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.host = FakeHost()
        self.outbox: Outbox[str] = Outbox()
        self.refusals = Refusals(MemoryFrontier(frontier_config()), self.host, self.outbox, self.clock)
        self.outbox.push(Push(0, "shop.example", b"payload"), "request")
        self.outbox.settle(Ack(1, 1), Hold(LEASE))
        self.outbox.batches()

    def note(self, refusal: Exception | None, *, had_requests: bool = True) -> None:
        """Take note of an answer."""
        self.refusals.note(refusal, had_requests=had_requests)


def test_full_server_gets_no_requests_until_it_is_time_for_a_try(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    refused = Refused()
    assert refused.refusals.may_send_requests()

    refused.note(FrontierFull("full"))

    assert not refused.refusals.may_send_requests()
    assert refused.outbox.has_free_entries()
    assert (refused.refusals.is_full, refused.refusals.must_wait) == (True, True)
    refused.note(None, had_requests=False)
    assert refused.refusals.is_full
    refused.clock.now += FULL_RETRY_S
    assert refused.refusals.may_send_requests()
    refused.note(FrontierFull("full"))
    (batch,) = refused.outbox.batches()
    refused.outbox.confirm([Committed(batch.number)])
    refused.note(None)

    assert (refused.refusals.is_full, refused.refusals.must_wait) == (False, False)
    assert refused.refusals.may_send_requests()
    assert levels(caplog) == ["WARNING", "INFO"]
    assert refused.host.stats == {"prioqueue/exchange/full": 2}


def test_full_server_that_has_taken_some_gets_more_at_once_and_is_full_until_it_has_all(
    caplog: pytest.LogCaptureFixture,
) -> None:
    refused = Refused()
    for number in range(40):
        refused.outbox.push(Push(0, "shop.example", b"%d" % number), "request")
    refused.note(FrontierFull("full"))
    sizes: list[int] = []
    while refused.refusals.is_full:
        assert not sizes or refused.refusals.may_send_requests()
        batches = refused.outbox.batches()
        sizes.append(sum(isinstance(each, Push) for batch in batches for each in batch.operations))
        refused.outbox.confirm([Committed(batch.number) for batch in batches])
        refused.note(None)

    assert sum(sizes) == 41
    assert sizes == [9, 18, 14]
    assert levels(caplog) == ["WARNING"]


def test_a_full_server_is_no_more_when_the_crawl_is_over() -> None:
    refused = Refused()
    refused.note(FrontierFull("full"))

    refused.note(CrawlEnded("it is over"))

    assert (refused.refusals.is_full, refused.refusals.must_wait) == (False, False)


def test_crawl_that_is_over_empties_the_outbox_and_counts_what_was_lost(caplog: pytest.LogCaptureFixture) -> None:
    refused = Refused()

    refused.note(CrawlEnded("it is over"))

    assert len(refused.outbox) == 0
    assert not refused.refusals.must_wait
    assert refused.host.stats == {"prioqueue/refused": 1}
    assert caplog.messages == ["1 requests were not stored: it is over"]


def test_crawl_that_is_over_is_not_warned_of_where_only_acks_are_lost(caplog: pytest.LogCaptureFixture) -> None:
    refused = Refused()
    refused.outbox.confirm([Committed(1)])
    refused.outbox.settle(Ack(1, 1), Hold(LEASE))

    refused.note(CrawlEnded("it is over"))

    assert (len(refused.outbox), caplog.messages, refused.host.stats) == (0, [], {})


def test_refusal_of_another_kind_is_an_error_that_keeps_the_batch_and_waits(caplog: pytest.LogCaptureFixture) -> None:
    refused = Refused()

    refused.note(PrioQueueError("out of step"))

    assert len(refused.outbox) == 2
    assert refused.refusals.must_wait
    assert refused.refusals.retry_at == refused.clock.now + FULL_RETRY_S
    assert (levels(caplog), caplog.messages) == (["ERROR"], ["out of step"])
