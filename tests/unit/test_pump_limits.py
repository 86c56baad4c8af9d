"""When `start()` may be read further: during a flood only if nothing else can end it."""

from __future__ import annotations

import logging
from math import inf
from types import SimpleNamespace
from typing import Any, cast

import pytest

from scrapy_prioqueue.frontier.base import Depth, Exchanged, Orders
from scrapy_prioqueue.frontier.policy import Policy
from scrapy_prioqueue.pump.backpressure import OUTBOX_BYTES, Backpressure
from scrapy_prioqueue.pump.delegate import PumpConfig


def limits(
    *,
    pushes: int = 0,
    size: int = 0,
    is_stuck: bool = False,
    is_full: bool = False,
    policy: Policy | None = None,
    counts_starts: bool = True,
) -> Backpressure:
    outbox = SimpleNamespace(pushes=pushes, pushed_bytes=size)
    rejections = SimpleNamespace(is_full=is_full, log=logging.getLogger())
    outage = SimpleNamespace(is_on=is_stuck, keeps_from_starting=False)
    config = PumpConfig(60, 0, outbox_limit=10, counts_starts=counts_starts)
    return Backpressure(cast("Any", outbox), cast("Any", rejections), cast("Any", outage), config, policy or Policy())


@pytest.mark.parametrize(
    ("size", "places"), [(0, inf), (OUTBOX_BYTES - 1, inf), (OUTBOX_BYTES, 1), (2 * OUTBOX_BYTES, 0)]
)
def test_few_large_requests_that_wait_keep_others_from_being_started(size: int, places: float) -> None:
    tested = limits(pushes=3, size=size, is_stuck=True)

    assert tested.places(running=0) == places
    assert tested.has_room_for_starts(has_work=True) == (size < OUTBOX_BYTES)


@pytest.mark.parametrize("has_work", [True, False])
def test_in_a_flood_start_is_read_only_where_nothing_else_is_to_be_done(has_work: bool) -> None:
    tested = limits()
    tested.orders = Orders(is_flooded=True)

    assert tested.has_room_for_starts(has_work=has_work) != has_work


@pytest.mark.parametrize("has_work", [True, False])
def test_start_is_not_read_while_too_much_waits_or_the_crawl_is_paused(has_work: bool) -> None:
    paused = limits()
    paused.orders = Orders(is_paused=True)

    for tested in (paused, limits(pushes=10), limits(is_full=True)):
        assert not tested.has_room_for_starts(has_work=has_work)


def test_requests_on_their_way_count_towards_the_high_mark() -> None:
    tested = limits(pushes=3, policy=Policy(high_water=5, low_water=1))
    tested.pending = 1
    assert tested.has_room_for_starts(has_work=True)

    tested.pending = 2

    assert not tested.has_room_for_starts(has_work=True)


def test_requests_that_can_not_be_served_soon_do_not_count_towards_the_high_mark() -> None:
    tested = limits(policy=Policy(high_water=5, low_water=1, pending_limit=50))

    tested.note_answer(Exchanged(depth=Depth(pending=44), held_back=40))
    assert tested.has_room_for_starts(has_work=True)

    tested.note_answer(Exchanged(depth=Depth(pending=45), held_back=40))
    assert not tested.has_room_for_starts(has_work=True)


def test_a_starving_worker_reads_start_in_a_flood_up_to_the_limit_of_pending_requests() -> None:
    tested = limits(pushes=1, policy=Policy(high_water=5, low_water=1, pending_limit=50))
    tested.orders = Orders(is_flooded=True)

    tested.pending = 48
    assert not tested.has_room_for_starts(has_work=True)
    assert tested.has_room_for_starts(has_work=True, is_starving=True)

    tested.pending = 49
    assert not tested.has_room_for_starts(has_work=True, is_starving=True)


@pytest.mark.parametrize("has_work", [True, False])
def test_a_starving_worker_adds_nothing_to_a_server_that_is_short_of_memory(has_work: bool) -> None:
    tested = limits()
    tested.orders = Orders(is_flooded=True, is_at_limit=True)

    assert tested.has_room_for_starts(has_work=has_work, is_starving=True) != has_work


def test_start_requests_that_stay_in_the_worker_are_read_even_in_a_flood() -> None:
    tested = limits(policy=Policy(high_water=5, low_water=1), counts_starts=False)
    tested.pending, tested.orders = 9, Orders(is_flooded=True)

    assert tested.has_room_for_starts(has_work=True)
