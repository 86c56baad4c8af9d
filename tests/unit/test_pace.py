"""The number of prefetched requests, computed from the rate of starts, the duration of pages and round trips."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import pytest

from scrapy_prioqueue.pump.demand import Pace
from scrapy_prioqueue.pump.timing import AHEAD_S, MOST_AHEAD, MOST_AHEAD_PER_PLACE, STALE_AFTER_S
from tests.support.clocks import Clock


def start_requests(pace: Pace, clock: Clock, *, count: int, every_s: float) -> None:
    for number in range(count):
        if number:
            clock.advance(every_s)
        pace.note_start()


def test_nothing_is_prefetched_before_the_pace_is_known(clock: Clock) -> None:
    pace = Pace(lambda: 16, clock)
    assert pace.ahead() == 0

    pace.note_start()
    assert pace.ahead() == 0


def test_with_one_request_at_a_time_nothing_is_held_in_advance(clock: Clock) -> None:
    pace = Pace(lambda: 1, clock)
    pace.note_round_trip(10.0)
    start_requests(pace, clock, count=50, every_s=0.001)

    assert pace.ahead() == 0


def test_ahead_is_what_starts_within_the_shortest_useful_time(clock: Clock) -> None:
    pace = Pace(lambda: 1000, clock)
    start_requests(pace, clock, count=33, every_s=0.001)  # the last 32 of them within 31 ms

    assert pace.ahead() == round(32 / 0.031 * AHEAD_S)


def test_ahead_grows_to_two_round_trips_of_a_slow_server(clock: Clock) -> None:
    pace = Pace(lambda: 1000, clock)
    for _ in range(100):
        pace.note_round_trip(0.2)
    start_requests(pace, clock, count=33, every_s=0.01)

    assert pace.ahead() == round(32 / 0.31 * 2 * 0.2)


def test_one_slow_round_trip_counts_for_a_quarter(clock: Clock) -> None:
    pace = Pace(lambda: 1000, clock)
    pace.note_round_trip(0.4)
    start_requests(pace, clock, count=33, every_s=0.01)

    assert pace.ahead() == round(32 / 0.31 * 2 * 0.1)


def test_ahead_is_less_than_what_may_run_at_a_time(clock: Clock) -> None:
    pace = Pace(lambda: 16, clock)
    start_requests(pace, clock, count=32, every_s=0.0)

    assert pace.ahead() == 15


def test_ahead_shrinks_when_nothing_starts_any_more(clock: Clock) -> None:
    pace = Pace(lambda: 1000, clock)
    start_requests(pace, clock, count=32, every_s=0.001)

    clock.advance(60)

    assert pace.ahead() == 0


# Pages that are done sooner than a round trip


def work(
    pace: Pace, clock: Clock, *, places: int, page_s: float, round_trip_s: float, rounds: int = 100, given_back: int = 0
) -> int:
    """Let all places begin at once and end at once, again and again; return the most that was to be held meanwhile."""
    most = 0
    for _ in range(rounds):
        pace.note_given_back(given_back)
        pace.note_round_trip(round_trip_s)
        started = [pace.note_start() for _ in range(places)]
        most = max(most, pace.ahead())
        clock.advance(page_s)
        for started_at in started:
            pace.note_done(started_at)
        most = max(most, pace.ahead())
    return most


def test_with_pages_shorter_than_round_trips_the_inbox_holds_more_than_the_places(clock: Clock) -> None:
    assert work(Pace(lambda: 16, clock), clock, places=16, page_s=0.008, round_trip_s=0.01) == 16 * 2.5


def test_with_pages_longer_than_two_round_trips_the_inbox_holds_less_than_the_places(clock: Clock) -> None:
    for page_s, round_trip_s in ((0.005, 0.002), (0.02, 0.005), (0.1, 0.01), (1.0, 0.2)):
        assert work(Pace(lambda: 16, clock), clock, places=16, page_s=page_s, round_trip_s=round_trip_s) <= 15


def test_never_more_are_held_than_a_killed_worker_may_keep_from_others(clock: Clock) -> None:
    for places, most in ((100, 99), (32, MOST_AHEAD), (4, 4 * MOST_AHEAD_PER_PLACE)):
        assert work(Pace(partial(int, places), clock), clock, places=places, page_s=0.0001, round_trip_s=0.02) == most


def test_with_one_request_at_a_time_nothing_is_held_however_fast_it_is(clock: Clock) -> None:
    assert work(Pace(lambda: 1, clock), clock, places=1, page_s=0.0001, round_trip_s=0.02) == 0


def test_of_a_server_that_takes_long_no_more_is_held_than_starts_before_it_is_stale(clock: Clock) -> None:
    page_s = STALE_AFTER_S / 2
    assert work(Pace(lambda: 16, clock), clock, places=16, page_s=page_s, round_trip_s=10 * STALE_AFTER_S) == 2 * 16


def test_released_requests_reduce_the_number_prefetched(clock: Clock) -> None:
    pace = Pace(lambda: 16, clock)
    work_fast = partial(work, pace, clock, places=16, page_s=0.001, round_trip_s=0.01)
    assert work_fast() == MOST_AHEAD

    work_fast(rounds=10, given_back=1)
    assert pace.ahead() == 15

    assert work_fast(rounds=20) == MOST_AHEAD


def test_pages_that_become_slow_are_held_no_longer(clock: Clock) -> None:
    pace = Pace(lambda: 16, clock)
    assert work(pace, clock, places=16, page_s=0.001, round_trip_s=0.01) == MOST_AHEAD

    work(pace, clock, places=16, page_s=0.1, round_trip_s=0.01, rounds=1)

    assert work(pace, clock, places=16, page_s=0.1, round_trip_s=0.01) <= 15


# When a place becomes free


def finished(pace: Pace, clock: Clock, gaps: Sequence[float], running: int = 8) -> Pace:
    """Let pages be done so far apart, while so many places are taken."""
    for gap in gaps:
        clock.advance(gap)
        pace.note_done(clock(), running - 1)
    return pace


def test_a_place_becomes_free_as_often_as_pages_are_done() -> None:
    clock = Clock()
    pace = finished(Pace(lambda: 8, clock), clock, [0.5] * 20)

    assert pace.free_within(1) == pytest.approx(0.475)
    assert pace.surely_free_within(2.0) == 4


def test_of_places_that_become_free_together_the_wait_for_the_next_counts() -> None:
    clock = Clock()
    pace = finished(Pace(lambda: 8, clock), clock, [0, 0, 0, 1.0] * 5)

    assert pace.free_within(1) == pytest.approx(0.95)


def test_seldom_long_waits_count_little() -> None:
    clock = Clock()
    pace = finished(Pace(lambda: 8, clock), clock, [*[0.1] * 29, 0.2])

    assert 0.09 < pace.free_within(1) < 0.12


def test_in_a_fleet_others_have_places_too() -> None:
    clock = Clock()
    pace = finished(Pace(lambda: 8, clock), clock, [0.5] * 20)

    assert pace.free_within(1) > pace.free_within(2) > pace.free_within(20)


def test_that_places_are_kept_is_no_reason_to_keep_more() -> None:
    clock = Clock()
    pace = finished(Pace(lambda: 8, clock), clock, [1.0] * 20, running=4)

    assert pace.free_within(1) == pytest.approx(0.475)


def test_nothing_is_known_of_places_before_any_page_is_done() -> None:
    pace = Pace(lambda: 8, Clock())

    assert (pace.free_within(1), pace.surely_free_within(1.0)) == (0, 0)
