"""Notes of one worker about a slot apply to all: pauses, crawl delays, and delays that follow the latency.

Requests that stay in a worker are reported, and known when the worker is lost."""

from __future__ import annotations

import pytest

from scrapy_prioqueue.frontier.kept import Kept
from scrapy_prioqueue.frontier.policy import (
    Closing,
    CrawlDelay,
    HeldUp,
    Latency,
    LimitsInForce,
    Policy,
    SlotLimit,
    Throttle,
)
from tests.contract.backends import TTL_S, Backend, RedisBackend, Worker, ack, push

THROTTLE = Policy(throttle=Throttle(start_delay_s=1.0, max_delay_s=10.0, target_concurrency=2.0))


def fill(worker: Worker, slots: str, number: int) -> None:
    worker.commit(*(push(f"{slot}{at}", 0, slot) for at in range(number) for slot in slots))


def interval_ms(backend: Backend, worker: Worker) -> int:
    """Serve the slot twice, and return the milliseconds between; it has to be open."""
    worker.commit(*map(ack, worker.lease(1)))
    waited = 0
    while not (leases := worker.lease(1)):
        due_s = worker.ask().next_due_s
        assert due_s is not None
        waited += round(due_s * 1000)
        backend.clock.advance(due_s)
    worker.commit(*map(ack, leases))
    backend.clock.advance(1000)
    return waited


# Closings


def test_a_closed_slot_is_closed_to_all_workers(backend: Backend) -> None:
    first, second = backend.join("w1"), backend.join("w2")
    fill(first, "ab", 2)

    answer = first.ask(1, notes=[Closing("a", 30_000)])

    assert [lease.slot for lease in answer.leases] == ["b"]
    assert answer.must_ask
    assert [lease.slot for lease in second.lease(10)] == ["b"]
    backend.clock.advance(29.999)
    assert "a" not in {lease.slot for lease in second.lease(10)}
    backend.clock.advance(0.001)
    assert [lease.slot for lease in second.lease(10)].count("a") == 2


def test_a_worker_learns_when_a_closed_slot_opens(backend: Backend) -> None:
    worker = backend.join()
    fill(worker, "a", 2)

    assert worker.ask(1, notes=[Closing("a", 3_000)]).next_due_s == 3.0


def test_the_later_of_two_closings_counts(backend: Backend) -> None:
    worker = backend.join()
    fill(worker, "a", 2)

    worker.ask(1, notes=[Closing("a", 3_000), Closing("a", 1_000)])

    backend.clock.advance(2.999)
    assert not worker.lease(1)
    backend.clock.advance(0.001)
    assert len(worker.lease(1)) == 1


def test_a_slot_with_a_burst_is_closed_as_long_and_opens_without_one(backend: Backend) -> None:
    worker = backend.join(policy=Policy({"a": SlotLimit(1.0, burst=3)}))
    fill(worker, "a", 9)

    worker.ask(notes=[Closing("a", 5_000)])

    backend.clock.advance(4.999)
    assert not worker.lease(9)
    backend.clock.advance(0.001)
    assert len(worker.lease(9)) == 1


def test_an_empty_slot_can_be_closed(backend: Backend) -> None:
    worker = backend.join()
    worker.ask(notes=[Closing("a", 3_000)])

    fill(worker, "a", 1)

    assert not worker.lease(1)
    backend.clock.advance(3)
    assert len(worker.lease(1)) == 1


def test_a_closed_slot_may_be_leased_for_when_it_opens(backend: Backend) -> None:
    worker = backend.join()
    fill(worker, "a", 2)

    leases = worker.lease(1, notes=[Closing("a", 200)], later_limit=1, horizon_ms=250)

    assert [(lease.start_in_ms, lease.late_ms) for lease in leases] == [(200, None)]


def test_a_closing_lasts_when_workers_come_and_not_into_the_next_crawl(backend: Backend) -> None:
    worker = backend.join()
    worker.ask(notes=[Closing("a", 30_000)])
    other = backend.join("w2")
    fill(other, "a", 1)
    assert not other.lease(1)
    assert other.ask().must_ask
    backend.clock.advance(30)
    other.commit(*map(ack, other.lease(1)))
    worker.ask(is_idle=True, notes=[Closing("a", 30_000)])
    assert other.ask(is_idle=True).has_ended

    again = backend.join()
    fill(again, "a", 1)

    assert len(again.lease(1)) == 1
    assert not again.ask().must_ask


def test_a_pause_that_is_over_for_long_leaves_no_limits(backend: Backend) -> None:
    worker, other = backend.join("w1"), backend.join("w2")
    fill(worker, "a", 3)
    (held,) = other.lease(1)
    assert worker.ask(notes=[Closing("a", 1000)]).must_ask

    backend.clock.advance(10.9)
    assert worker.ask().must_ask
    backend.clock.advance(0.2)
    assert not worker.ask().must_ask
    assert [lease.start_in_ms for lease in worker.lease(1)] == [0]

    assert other.ask(notes=[Closing("a", 1000), Closing("a", 10)]).must_ask
    other.commit(ack(held))
    assert not other.lease(1)
    assert other.ask().next_due_s == 1.0
    backend.clock.advance(12)
    assert len(other.lease(1)) == 1
    assert not other.ask().must_ask


def test_a_pause_in_a_crawl_with_limits_leaves_these(backend: Backend) -> None:
    worker = backend.join(policy=Policy({"b": SlotLimit(1.0)}))
    worker.ask(notes=[Closing("a", 1000)])

    backend.clock.advance(20)

    assert worker.ask().must_ask


# Crawl delays


def test_a_crawl_delay_counts_where_it_is_longer(backend: Backend) -> None:
    worker = backend.join(policy=Policy({"*": SlotLimit(1.0)}))
    fill(worker, "a", 9)

    worker.ask(notes=[CrawlDelay("a", 500)])
    assert interval_ms(backend, worker) == 960
    worker.ask(notes=[CrawlDelay("a", 3000)])
    assert interval_ms(backend, worker) == 2980
    worker.ask(notes=[CrawlDelay("a", 0)])
    assert interval_ms(backend, worker) == 960


def test_a_crawl_delay_needs_no_limits(backend: Backend) -> None:
    worker = backend.join()
    fill(worker, "a", 9)
    fill(worker, "b", 2)

    answer = worker.ask(9, notes=[CrawlDelay("a", 500)])

    assert sorted(lease.slot for lease in answer.leases) == ["a", "b", "b"]
    assert answer.must_ask


def test_a_crawl_delay_counts_from_the_page_that_its_robots_txt_was_fetched_for(backend: Backend) -> None:
    worker = backend.join(policy=Policy(awaits_crawl_delay=True))
    fill(worker, "a", 3)
    (lease,) = worker.lease(9)
    backend.clock.advance(0.4)
    worker.ask(notes=[CrawlDelay("a", 1000, starts_now=True)])
    worker.commit(ack(lease))

    assert worker.ask(9).next_due_s == 1.01
    backend.clock.advance(1.01)
    (second,) = worker.lease(9)

    # Another worker reads it for the second page, which goes out that much later.
    backend.clock.advance(0.3)
    worker.ask(notes=[CrawlDelay("a", 1000, starts_now=True)])
    worker.commit(ack(second))
    assert worker.ask(9).next_due_s == 1.01


def test_a_crawl_delay_counts_from_the_last_report_of_a_waiting_page(backend: Backend) -> None:
    worker = backend.join(policy=Policy(awaits_crawl_delay=True))
    fill(worker, "a", 3)
    worker.ask(notes=[CrawlDelay("a", 1000), HeldUp("b")])
    (lease,) = worker.lease(9)
    for _ in range(3):
        backend.clock.advance(0.9)
        worker.ask(notes=[HeldUp("a")])
    worker.commit(ack(lease))

    assert worker.ask(9).next_due_s == 1.01
    backend.clock.advance(1.01)
    assert len(worker.lease(9)) == 1


def test_a_page_that_waits_before_its_crawl_delay_is_known_delays_no_other(backend: Backend) -> None:
    worker = backend.join(policy=Policy(awaits_crawl_delay=True))
    fill(worker, "a", 3)
    (lease,) = worker.lease(9)
    worker.ask(9, notes=[HeldUp("a")])
    worker.commit(ack(lease))
    worker.ask(9, notes=[HeldUp("a"), CrawlDelay("a", 1000, starts_now=True)])
    backend.clock.advance(1.01)

    assert len(worker.lease(9)) == 1


def test_the_burst_of_a_slot_goes_by_its_crawl_delay(backend: Backend) -> None:
    worker = backend.join(policy=Policy({"*": SlotLimit(burst=2)}))
    fill(worker, "a", 9)

    assert len(worker.lease(9, notes=[CrawlDelay("a", 1000)])) == 2


# Delays that follow the latency


def test_a_slot_begins_with_the_start_delay(backend: Backend) -> None:
    worker = backend.join(policy=THROTTLE)
    fill(worker, "a", 9)

    assert interval_ms(backend, worker) == 960


@pytest.mark.parametrize(
    ("latencies_ms", "delay_ms"),
    [
        # Half the way to the target, which is the latency by the concurrency aimed at.
        ([200], 550),
        ([200, 200], 325),
        # Up at once.
        ([8000], 4000),
        # Never above the longest delay.
        ([40_000], 10_000),
    ],
)
def test_the_delay_follows_the_latency(backend: Backend, latencies_ms: list[int], delay_ms: int) -> None:
    worker = backend.join(policy=THROTTLE)
    fill(worker, "a", 9)

    worker.ask(notes=[Latency("a", latency_ms, is_success=True) for latency_ms in latencies_ms])

    assert interval_ms(backend, worker) == pytest.approx(delay_ms * 1.01 - 50, abs=1)


def test_a_failure_never_shortens_the_delay(backend: Backend) -> None:
    worker = backend.join(policy=THROTTLE)
    fill(worker, "a", 9)

    worker.ask(notes=[Latency("a", 10, is_success=False)])
    assert interval_ms(backend, worker) == 960
    worker.ask(notes=[Latency("a", 8000, is_success=False)])
    assert interval_ms(backend, worker) == 3990


def test_the_delay_never_falls_below_the_limit_of_the_slot(backend: Backend) -> None:
    worker = backend.join(policy=Policy({"a": SlotLimit(0.8)}, throttle=THROTTLE.throttle))
    fill(worker, "a", 9)

    worker.ask(notes=[Latency("a", 10, is_success=True) for _ in range(9)])

    assert interval_ms(backend, worker) == 758


def test_a_limit_longer_than_the_longest_delay_counts(backend: Backend) -> None:
    worker = backend.join(policy=Policy({"a": SlotLimit(20.0)}, throttle=THROTTLE.throttle))
    fill(worker, "a", 9)

    worker.ask(notes=[Latency("a", 10, is_success=True)])

    assert interval_ms(backend, worker) == 20_150


def test_a_limit_that_is_lowered_leaves_nothing_of_it_in_what_latency_asks_for(backend: Backend) -> None:
    worker = backend.join(policy=Policy({"a": SlotLimit(20.0)}, throttle=THROTTLE.throttle))
    fill(worker, "a", 9)
    worker.ask(notes=[Latency("a", 10, is_success=True) for _ in range(9)])

    backend.join("other", policy=Policy({"a": SlotLimit(0.8)}, throttle=THROTTLE.throttle))

    assert interval_ms(backend, worker) == 758


def test_a_shorter_delay_opens_a_slot_no_sooner_than_it_was_to_open(backend: Backend) -> None:
    worker = backend.join(policy=THROTTLE)
    fill(worker, "a", 9)
    worker.lease(1)

    answer = worker.ask(1, notes=[Latency("a", 10, is_success=True) for _ in range(20)])

    assert answer.next_due_s == 0.96


@pytest.mark.parametrize(("latency_ms", "opens_s"), [(8000, 0.0), (1, 1.97)])
def test_a_changed_delay_changes_when_a_burst_may_continue(backend: Backend, latency_ms: int, opens_s: float) -> None:
    worker = backend.join(policy=Policy({"a": SlotLimit(burst=3)}, throttle=THROTTLE.throttle))
    fill(worker, "a", 9)
    assert worker.ask(9).next_due_s == 0.96

    answer = worker.ask(1, notes=[Latency("a", latency_ms, is_success=True)])

    assert len(answer.leases) == (opens_s == 0)
    if opens_s:
        assert answer.next_due_s == opens_s


def test_a_delay_learnt_with_a_closing_counts_at_once(backend: Backend) -> None:
    worker = backend.join(policy=Policy({"a": SlotLimit(burst=3)}, throttle=THROTTLE.throttle))
    fill(worker, "a", 9)
    worker.lease(9)

    # 2,980 ms paced less twice the new interval of 1,313 ms.
    assert worker.ask(notes=[Closing("a", 0), CrawlDelay("a", 1300)]).next_due_s == 0.354


def test_latencies_are_of_no_account_where_nothing_is_throttled(backend: Backend) -> None:
    worker = backend.join()
    fill(worker, "a", 9)

    answer = worker.ask(9, notes=[Latency("a", 10_000, is_success=True)])

    assert len(answer.leases) == 9
    assert not answer.must_ask


def test_a_slot_is_served_one_at_a_time_until_its_crawl_delay_is_known(backend: Backend) -> None:
    worker = backend.join(policy=Policy(awaits_crawl_delay=True))
    worker.commit(*(push("", 0, slot) for slot in "aaabbb"))

    assert [lease.slot for lease in worker.lease(6)] == ["a", "b"]
    assert not worker.lease(6)
    assert [lease.slot for lease in worker.lease(6, notes=[CrawlDelay("a", 0)])] == ["a", "a"]
    assert [lease.slot for lease in worker.lease(6, notes=[CrawlDelay("b", 1000)])] == ["b"]
    backend.clock.advance(1.01)
    assert [lease.slot for lease in worker.lease(6)] == ["b"]


# What a worker keeps to itself


def test_requests_kept_by_a_lost_worker_are_reported_once(backend: Backend) -> None:
    first, second = backend.join("w1"), backend.join("w2")
    fill(first, "a", 3)
    kept = Kept(5, 1, {lease.lease_id: 4 for lease in first.lease(1)})
    first.ask(notes=[Kept(1, 1), kept])
    second.ask(notes=[Kept(7), Kept()])
    backend.clock.advance(TTL_S / 2)
    second.ask()
    backend.clock.advance(TTL_S / 2)

    answers = [second.ask(), second.ask()]

    is_told = isinstance(backend, RedisBackend)
    assert [answer.reaped for answer in answers] == [1, 0]
    assert [dict(answer.lost) for answer in answers] == [{"w1": kept} if is_told else {}, {}]


def test_requests_kept_by_an_earlier_process_are_reported_to_the_next(backend: Backend) -> None:
    first, second = backend.join("w1"), backend.join("w2")
    first.ask(notes=[Kept(5, 1, {9: 4})])
    second.ask(notes=[Kept(1)])
    second.leave()

    joined = [first.join(), first.join(), second.join()]

    is_told = isinstance(backend, RedisBackend)
    assert [dict(each.lost) for each in joined] == [{"w1": Kept(5, 1, {9: 4})} if is_told else {}, {}, {}]


# For an outage


def test_a_worker_learns_which_limits_are_in_force(backend: Backend) -> None:
    worker = backend.join(policy=Policy({"b": SlotLimit(1.0)}))
    worker.ask(notes=[Closing("a", 1000), Closing("c", 10)])
    backend.clock.advance(0.4)
    worker.ask()

    found = worker.run(worker.frontier.limits_in_force())

    assert found == LimitsInForce(are_known=True, closed_ms={"a": 600})
    backend.join("w2", policy=Policy({"b": SlotLimit(2.0)}))
    assert not worker.run(worker.frontier.limits_in_force()).are_known
