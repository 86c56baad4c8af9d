"""Delayed requests."""

from __future__ import annotations

import pytest

from scrapy_prioqueue.frontier.base import Claim, Push
from tests.contract.backends import TTL_S, Backend, ack


def delayed(payload: bytes, seconds: float, rank: int = 0, slot: str = "a") -> Push:
    return Push(rank, slot, payload, delay_ms=round(seconds * 1000))


def test_a_delayed_request_is_not_served_before_its_time(backend: Backend) -> None:
    worker = backend.join("w1")
    worker.commit(delayed(b"later", 5))

    early = worker.ask(10)
    backend.clock.advance(4.999)
    still_early = worker.ask(10)
    backend.clock.advance(0.001)
    due = worker.ask(10)

    assert not early.leases and not still_early.leases
    assert (early.depth.pending, early.depth.delayed, early.next_due_s) == (0, 1, 5)
    assert [lease.payload for lease in due.leases] == [b"later"]
    assert (due.depth.delayed, due.depth.leased) == (0, 1)


def test_a_moment_in_the_past_delays_nothing(backend: Backend) -> None:
    worker = backend.join("w1")
    worker.commit(Push(0, "a", b"now", not_before_ms=backend.clock() - 1), Push(0, "a", b"due", not_before_ms=1))

    assert len(worker.ask(10).leases) == 2


def test_the_later_of_delay_and_moment_counts(backend: Backend) -> None:
    worker = backend.join("w1")
    now_ms = backend.clock()
    worker.commit(
        Push(0, "a", b"by moment", delay_ms=1000, not_before_ms=now_ms + 3000),
        Push(0, "a", b"by delay", delay_ms=2000, not_before_ms=now_ms + 1000),
    )

    backend.clock.advance(2)
    assert [lease.payload for lease in worker.ask(10).leases] == [b"by delay"]
    backend.clock.advance(1)
    assert [lease.payload for lease in worker.ask(10).leases] == [b"by moment"]


def test_due_requests_are_served_by_rank_and_not_by_waiting_time(backend: Backend) -> None:
    worker = backend.join("w1")
    worker.commit(delayed(b"worse", 1, rank=5), delayed(b"better", 2, rank=1), Push(3, "a", b"between"))
    backend.clock.advance(10)

    assert [lease.payload for lease in worker.ask(10).leases] == [b"better", b"between", b"worse"]


def test_a_delayed_request_is_a_duplicate_like_any_other(backend: Backend) -> None:
    worker = backend.join("w1")
    worker.commit(Push(0, "a", b"first", b"fingerprint", delay_ms=9000))

    committed = worker.commit(Push(0, "a", b"second", b"fingerprint"))

    assert list(committed.duplicates) == [0]


def test_a_crawl_with_only_delayed_requests_has_not_ended(backend: Backend) -> None:
    worker = backend.join("w1")
    worker.commit(delayed(b"later", 100))

    assert not worker.ask(0, is_idle=True).has_ended
    backend.clock.advance(100)
    (lease,) = worker.ask(1, is_idle=True).leases
    worker.commit(ack(lease))
    assert worker.ask(0, is_idle=True).has_ended


def test_delayed_requests_outlive_their_worker(backend: Backend) -> None:
    backend.join("w1").commit(delayed(b"later", 5))
    backend.clock.advance(TTL_S + 1)

    (lease,) = backend.join("w2").ask(1).leases

    assert lease.payload == b"later"


def test_many_requests_due_at_once_all_come(backend: Backend) -> None:
    worker = backend.join("w1")
    worker.commit(*(delayed(b"%d" % number, 1, slot=f"slot {number % 7}") for number in range(75)))
    backend.clock.advance(1)

    first = worker.ask(200)
    second = worker.ask(200)

    assert (len(first.leases), first.next_due_s) == (50, 0)
    assert len(second.leases) == 25


@pytest.mark.parametrize("order", ["lifo", "fifo"])
def test_books_balance(backend: Backend, order: str) -> None:
    worker = backend.join("w1", order=order)
    worker.commit(delayed(b"later", 5), Push(0, "a", b"now"))

    depth = worker.ask(1).depth

    assert depth.accepted == depth.pending + depth.delayed + depth.leased + depth.dead + depth.done == 2


def test_a_claim_stores_a_delayed_request_as_leased(backend: Backend) -> None:
    worker = backend.join("w1")

    committed = worker.commit(Claim(delayed(b"begun", 5)))

    assert len(committed.claimed) == 1
    assert worker.ask(5).depth.leased == 1
