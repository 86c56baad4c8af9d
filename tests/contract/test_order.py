"""Invariant 3 within a slot: lowest rank first, and equal ranks in Scrapy's order."""

from __future__ import annotations

import random

import pytest

from scrapy_prioqueue.frontier.base import Order
from scrapy_prioqueue.rank import MAX_TIERS, PRIORITY_LIMIT, rank_of
from tests.contract.backends import Backend, push, release

ORDERS = pytest.mark.parametrize("order", ["lifo", "fifo"])


def test_the_lowest_rank_is_served_first_in_any_order_of_pushes(backend: Backend) -> None:
    worker = backend.join()
    ranks = list(range(-20, 20))
    random.Random(1).shuffle(ranks)

    worker.commit(*(push(str(rank), rank) for rank in ranks))

    assert worker.lease_payloads() == [str(rank) for rank in range(-20, 20)]


def test_a_lower_rank_pushed_later_is_served_before_what_waits(backend: Backend) -> None:
    worker = backend.join()
    worker.commit(push("second", 5), push("third", 6))

    worker.commit(push("first", 4))

    assert worker.lease_payloads() == ["first", "second", "third"]


def test_ranks_are_exact_over_the_whole_range_of_tiers_and_priorities(backend: Backend) -> None:
    worker = backend.join(tiers=tuple(f"tier {tier}" for tier in range(MAX_TIERS)))
    top = PRIORITY_LIMIT - 1
    priorities = [top, top - 1, 2, 1, 0, -1, -2, 1 - top, -top]
    best_first = [rank_of(tier, priority) for tier in range(MAX_TIERS) for priority in priorities]
    shuffled = random.Random(2).sample(best_first, len(best_first))

    worker.commit(*(push(str(rank), rank, f"{rank % 7}.example") for rank in shuffled))

    leases = worker.lease(len(best_first))
    assert [lease.rank for lease in leases] == best_first
    assert [lease.payload.decode() for lease in leases] == [str(rank) for rank in best_first]


def test_lifo_serves_the_newest_of_equal_rank_first(backend: Backend) -> None:
    worker = backend.join(order="lifo")
    worker.commit(push("1"), push("2"))
    worker.commit(push("3"))

    assert worker.lease_payloads() == ["3", "2", "1"]


def test_fifo_serves_the_oldest_of_equal_rank_first(backend: Backend) -> None:
    worker = backend.join(order="fifo")
    worker.commit(push("1"), push("2"))
    worker.commit(push("3"))

    assert worker.lease_payloads() == ["1", "2", "3"]


def test_ties_keep_their_order_past_the_width_of_a_byte(backend: Backend) -> None:
    worker = backend.join(order="lifo")
    worker.commit(*(push(str(number)) for number in range(300)))

    assert worker.lease_payloads() == [str(number) for number in reversed(range(300))]


@ORDERS
def test_start_requests_come_after_others_of_equal_rank_in_the_order_pushed(backend: Backend, order: Order) -> None:
    worker = backend.join(order=order)
    worker.commit(push("start 1", is_start=True), push("link"), push("start 2", is_start=True))
    worker.commit(push("start 3", is_start=True))

    assert worker.lease_payloads() == ["link", "start 1", "start 2", "start 3"]


@ORDERS
def test_start_requests_are_served_newest_first_with_the_setting(backend: Backend, order: Order) -> None:
    worker = backend.join(order=order)
    worker.commit(*(push(name, is_start=True, is_lifo_start=True) for name in ("start 1", "start 2")), push("link"))
    worker.commit(push("start 3", is_start=True, is_lifo_start=True))

    assert worker.lease_payloads() == ["link", "start 3", "start 2", "start 1"]


@ORDERS
def test_a_start_request_of_lower_rank_goes_before_others(backend: Backend, order: Order) -> None:
    worker = backend.join(order=order)
    worker.commit(push("link", 1), push("start", 0, is_start=True))

    assert worker.lease_payloads() == ["start", "link"]


@ORDERS
def test_a_released_request_keeps_its_place_among_ties(backend: Backend, order: Order) -> None:
    worker = backend.join(order=order)
    worker.commit(*(push(name) for name in "1234"))
    expected = worker.lease(3)

    worker.commit(release(expected[1]), release(expected[0]), release(expected[2]))

    assert worker.lease_payloads(3) == [lease.payload.decode() for lease in expected]
    assert worker.lease_payloads() == ["1" if order == "lifo" else "4"]


def test_leases_are_granted_in_order_across_exchanges_and_workers(backend: Backend) -> None:
    workers = [backend.join("w1"), backend.join("w2")]
    workers[0].commit(*(push(f"{rank:02}", rank) for rank in reversed(range(30))))

    served = [name for turn in range(10) for name in workers[turn % 2].lease_payloads(3)]

    assert served == [f"{rank:02}" for rank in range(30)]
