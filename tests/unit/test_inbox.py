"""The inbox: its order, and when a lease leaves it without being started."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scrapy_prioqueue.frontier.base import Lease
from scrapy_prioqueue.pump.inbox import Inbox
from scrapy_prioqueue.pump.timing import STALE_AFTER_S
from tests.support.clocks import Clock


def lease(lease_id: int, rank: int = 0, slot: str = "a") -> Lease:
    return Lease(lease_id, 1, rank, slot, b"")


def ids(leases: Sequence[Lease]) -> list[int]:
    return [each.lease_id for each in leases]


def take_all_in_turn(inbox: Inbox) -> list[int]:
    return [taken.lease_id for _ in range(len(inbox)) if (taken := inbox.take(lambda _: True)) is not None]


def anything(_: Lease) -> bool:
    return True


# Order


def test_best_rank_goes_first_and_equal_ranks_in_the_order_granted(clock: Clock) -> None:
    inbox = Inbox(clock)

    inbox.add([lease(1, rank=5), lease(2, rank=3), lease(3, rank=5)])
    inbox.add([lease(4, rank=3), lease(5, rank=-1)])

    assert ids(list(inbox)) == [5, 2, 4, 1, 3]
    assert take_all_in_turn(inbox) == [5, 2, 4, 1, 3]


@given(st.lists(st.lists(st.integers(-3, 3), max_size=5), max_size=5))
def test_order_is_by_rank_and_arrival_however_leases_arrive(grants: list[list[int]]) -> None:
    inbox = Inbox(Clock())
    ranks = [rank for grant in grants for rank in grant]
    arrivals = iter(range(len(ranks)))
    for grant in grants:
        inbox.add([lease(next(arrivals), rank) for rank in grant])

    assert take_all_in_turn(inbox) == sorted(range(len(ranks)), key=lambda index: (ranks[index], index))


def test_lease_that_may_not_start_is_skipped_and_stays(clock: Clock) -> None:
    inbox = Inbox(clock)
    inbox.add([lease(1, slot="full"), lease(2, slot="free")])

    taken = inbox.take(lambda each: each.slot == "free")

    assert taken is not None
    assert taken.lease_id == 2
    assert inbox.take(lambda each: each.slot == "free") is None
    assert ids(list(inbox)) == [1]


def test_leases_are_counted_by_slot(clock: Clock) -> None:
    inbox = Inbox(clock)
    assert inbox.by_slot() == {}

    inbox.add([lease(1, slot="a"), lease(2, slot="b"), lease(3, slot="a")])

    assert inbox.by_slot() == {"a": 2, "b": 1}


# What leaves unstarted


def test_lease_is_stale_once_it_has_waited_for_too_long(clock: Clock) -> None:
    inbox = Inbox(clock)
    inbox.add([lease(1, rank=2)])
    clock.advance(STALE_AFTER_S)
    inbox.add([lease(2, rank=1)])
    assert not inbox.has_stale()

    clock.advance(STALE_AFTER_S / 2)

    assert inbox.has_stale()
    assert ids(inbox.take_stale()) == [1]
    assert not inbox.has_stale()
    assert ids(list(inbox)) == [2]


def test_each_lease_is_stale_in_its_own_time(clock: Clock) -> None:
    inbox = Inbox(clock)
    inbox.add([lease(1)])
    clock.advance(STALE_AFTER_S * 0.8)
    inbox.add([lease(2)])
    clock.advance(STALE_AFTER_S * 0.4)
    assert inbox.has_stale()

    assert inbox.take(lambda _: True) == lease(1)
    assert not inbox.has_stale()

    clock.advance(STALE_AFTER_S * 0.5)
    assert not inbox.has_stale()
    clock.advance(STALE_AFTER_S * 0.2)
    assert inbox.has_stale()


def test_empty_inbox_has_nothing_stale(clock: Clock) -> None:
    inbox = Inbox(clock)
    clock.advance(STALE_AFTER_S * 10)

    assert not inbox.has_stale()
    assert inbox.take_stale() == []


def test_only_what_ranks_behind_is_outranked(clock: Clock) -> None:
    inbox = Inbox(clock)
    inbox.add([lease(1, rank=1), lease(2, rank=2), lease(3, rank=3)])

    assert inbox.take_outranked([]) == []
    assert inbox.take_outranked([(3, "other")]) == []
    assert ids(inbox.take_outranked([(2, "other"), (2, "another")])) == [3]
    assert ids(list(inbox)) == [1, 2]


def test_the_worst_gives_way_to_each_better_request_and_the_best_stay(clock: Clock) -> None:
    inbox = Inbox(clock)
    inbox.add([lease(number, rank=number) for number in range(1, 6)])

    assert ids(inbox.take_outranked([(4, "other"), (0, "other"), (9, "other")])) == [5]
    assert ids(inbox.take_outranked([(0, "other")] * 2)) == [3, 4]
    assert ids(inbox.take_outranked([(0, "other")] * 9)) == [1, 2]


def test_a_better_request_finds_room_in_its_slot(clock: Clock) -> None:
    inbox = Inbox(clock)
    inbox.add([lease(1, rank=1, slot="a"), lease(2, rank=2, slot="a"), lease(3, rank=3, slot="b")])

    assert ids(inbox.take_outranked([(0, "a")])) == [2, 3]


def test_discarded_leases_are_gone_and_unknown_ids_do_no_harm(clock: Clock) -> None:
    inbox = Inbox(clock)
    inbox.add([lease(1), lease(2), lease(3)])

    inbox.discard([1, 3, 99])

    assert ids(list(inbox)) == [2]
    assert ids(inbox.take_all()) == [2]
    assert len(inbox) == 0


# Times of slots


def timed(lease_id: int, start_in_ms: int = 0, late_ms: int | None = 500, **fields: Any) -> Lease:
    return lease(lease_id, **fields)._replace(start_in_ms=start_in_ms, late_ms=late_ms)


def test_a_lease_is_there_from_its_start_until_it_is_too_late(clock: Clock) -> None:
    inbox = Inbox(clock)
    inbox.add([timed(1, start_in_ms=100, late_ms=50)], granted_at=clock.now - 0.02)

    assert (inbox.due(), inbox.later(), inbox.best_rank(), inbox.take(lambda _: True)) == (0, 1, None, None)
    assert inbox.next_turn() == pytest.approx(clock.now + 0.08)
    clock.advance(0.081)
    assert (inbox.due(), inbox.later(), inbox.best_rank()) == (1, 0, 0)
    assert inbox.next_turn() == pytest.approx(clock.now + 0.049)
    assert inbox.take_late() == []
    clock.advance(0.05)
    assert inbox.take(lambda _: True) is None
    assert ids(inbox.take_late()) == [1]
    assert inbox.next_turn() == inf


def test_leases_with_a_start_time_are_neither_stale_nor_outranked(clock: Clock) -> None:
    inbox = Inbox(clock)
    inbox.add([timed(1, rank=5, late_ms=10_000), lease(2, rank=5)])
    clock.advance(2 * STALE_AFTER_S)

    assert not inbox.has_outranked(5)
    assert inbox.has_outranked(4)
    assert ids(inbox.take_stale()) == [2]
    assert not inbox.has_stale()
    assert inbox.take_outranked([(0, "other")]) == []


def test_a_lease_of_a_slot_that_opens_once_is_stale_from_then_on(clock: Clock) -> None:
    inbox = Inbox(clock)
    inbox.add([timed(1, start_in_ms=200, late_ms=None)])
    clock.advance(STALE_AFTER_S + 0.1)
    assert not inbox.has_stale()
    clock.advance(0.2)
    assert ids(inbox.take_stale()) == [1]


def test_order_of_the_frontier_is_kept_where_it_is_not_that_of_ranks(clock: Clock) -> None:
    inbox = Inbox(clock, keeps_order=True)
    inbox.add([lease(1, rank=5), timed(2, rank=1), lease(3, rank=3)])

    assert inbox.best_rank() == 5
    assert not inbox.has_outranked(0)
    assert inbox.take_outranked([(0, "other")]) == []
    assert take_all_in_turn(inbox) == [1, 2, 3]


def test_everything_of_a_slot_can_be_taken(clock: Clock) -> None:
    inbox = Inbox(clock)
    inbox.add([lease(1, slot="a"), lease(2, slot="b"), timed(3, 100, slot="a")])

    assert ids(inbox.take_slot("a")) == [3, 1]
    assert ids(list(inbox)) == [2]


# Places that are kept


def test_the_last_place_is_kept_for_what_goes_first_and_has_to_wait() -> None:
    clock, places = Clock(), 1.0
    inbox = Inbox(clock, places=lambda: places, reserve_s=lambda: 0.5)
    inbox.add([lease(1, rank=0)._replace(start_in_ms=400, late_ms=300), lease(2, rank=5)])

    assert (inbox.reserved(), inbox.best_rank(), inbox.take(anything)) == (1, 0, None)
    places = 2.0
    assert (inbox.best_rank(), inbox.take(anything)) == (5, lease(2, rank=5))


def test_no_place_is_kept_for_what_another_one_becomes_free_for() -> None:
    clock = Clock()
    inbox = Inbox(clock, places=lambda: 1.0, reserve_s=lambda: 0.3)
    inbox.add([lease(1, rank=0)._replace(start_in_ms=400, late_ms=300), lease(2, rank=5)])

    assert (inbox.reserved(), inbox.take(anything)) == (0, lease(2, rank=5))


def test_a_place_once_kept_stays_so() -> None:
    clock, reserve_s = Clock(), 0.5
    inbox = Inbox(clock, places=lambda: 1.0, reserve_s=lambda: reserve_s)
    inbox.add([lease(1, rank=0)._replace(start_in_ms=400, late_ms=300), lease(2, rank=5)])
    reserve_s = 0.0

    assert (inbox.reserved(), inbox.take(anything)) == (1, None)


def test_nothing_waits_for_what_goes_after_it() -> None:
    inbox = Inbox(Clock(), places=lambda: 1.0, reserve_s=lambda: 0.5)
    inbox.add([lease(1, rank=9)._replace(start_in_ms=400, late_ms=300), lease(2, rank=5)])

    assert inbox.take(anything) == lease(2, rank=5)
