"""The journal keeps the newest committed batches, limited by age and number."""

from __future__ import annotations

from scrapy_prioqueue.frontier.base import Ack, Batch, Fail, Push
from scrapy_prioqueue.frontier.redis.session import JOURNAL_BYTES, Journal
from tests.support.clocks import Clock


def batch(number: int, operations: int = 1) -> Batch:
    return Batch(number, [Ack(number, 1)] * operations)


def numbers(journal: Journal, last_batch: int = 0) -> list[int]:
    return [each.number for each in journal.after(last_batch)]


def test_batches_after_a_position_come_in_order() -> None:
    journal = Journal(30.0, 100, Clock())
    journal.add([batch(1), batch(2)])
    journal.add([batch(3)])

    assert (numbers(journal), numbers(journal, 1), numbers(journal, 3)) == ([1, 2, 3], [2, 3], [])
    assert journal.after(2) == [batch(3)]
    assert journal.start == 0


def test_oldest_are_dropped_where_there_are_too_many_operations() -> None:
    journal = Journal(30.0, 5, Clock())
    journal.add([batch(1, 2), batch(2, 2), batch(3, 1)])
    assert (numbers(journal), journal.start) == ([1, 2, 3], 0)

    journal.add([batch(4, 1)])

    assert (numbers(journal), journal.start) == ([2, 3, 4], 1)


def test_oldest_are_dropped_where_they_are_too_large() -> None:
    journal = Journal(30.0, 100, Clock())
    payload = bytes(JOURNAL_BYTES // 4)
    journal.add(Batch(number, [Push(0, "slot", payload)]) for number in range(1, 5))
    assert journal.start == 0

    journal.add([Batch(5, [Fail(1, 1, "callback", "why", "x" * 10)])])

    assert (numbers(journal), journal.start) == ([2, 3, 4, 5], 1)


def test_batch_that_is_too_large_alone_is_not_kept() -> None:
    journal = Journal(30.0, 5, Clock())
    journal.add([batch(1), batch(2, 6)])
    assert (numbers(journal), journal.start) == ([], 2)

    journal.add([batch(3, 5)])

    assert (numbers(journal), journal.start) == ([3], 2)


def test_batches_sent_again_are_kept_as_long_as_new_ones() -> None:
    clock = Clock()
    journal = Journal(30.0, 100, clock)
    journal.add([batch(1), batch(2), batch(3)])
    clock.now += 25
    journal.renew(1)
    clock.now += 10
    journal.add([batch(4)])

    assert (numbers(journal), journal.start) == ([2, 3, 4], 1)


def test_old_batches_are_dropped_when_the_next_one_is_confirmed() -> None:
    clock = Clock()
    journal = Journal(30.0, 100, clock)
    journal.add([batch(1)])
    clock.now += 10
    journal.add([batch(2)])
    clock.now += 1000
    assert numbers(journal) == [1, 2]

    clock.now -= 980
    journal.add([batch(3)])
    assert (numbers(journal), journal.start) == ([1, 2, 3], 0)
    clock.now += 0.1
    journal.add([batch(4)])

    assert (numbers(journal), journal.start) == ([2, 3, 4], 1)


def test_nothing_is_kept_for_no_time_but_what_was_confirmed_last() -> None:
    clock = Clock()
    journal = Journal(0.0, 100, clock)
    journal.add([batch(1)])
    assert numbers(journal) == [1]
    clock.now += 0.001
    journal.add([batch(2), batch(3)])

    assert (numbers(journal), journal.start) == ([2, 3], 1)
