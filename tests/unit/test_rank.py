"""Ranks are exact in a double and ordered by tier, then by priority; `scrapy_prioqueue.rank`."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from scrapy_prioqueue.rank import (
    MAX_TIERS,
    PRIORITY_LIMIT,
    nearest_priority,
    priority_of,
    rank_of,
    tier_of,
    whole_priority,
)

HIGHEST = PRIORITY_LIMIT - 1

tiers = st.integers(0, MAX_TIERS - 1)
priorities = st.integers(-HIGHEST, HIGHEST)
places = st.tuples(tiers, priorities)


@given(places)
@example((0, HIGHEST))
@example((0, -HIGHEST))
@example((MAX_TIERS - 1, HIGHEST))
@example((MAX_TIERS - 1, -HIGHEST))
def test_tier_and_priority_follow_from_a_rank(place: tuple[int, int]) -> None:
    rank = rank_of(*place)

    assert (tier_of(rank), priority_of(rank)) == place


@given(places, places)
@example((0, -HIGHEST), (1, HIGHEST))
@example((0, 0), (0, 1))
def test_lower_rank_means_better_tier_then_higher_priority(one: tuple[int, int], other: tuple[int, int]) -> None:
    one_sorts_first = (one[0], -one[1]) < (other[0], -other[1])

    assert (rank_of(*one) < rank_of(*other)) == one_sorts_first


@given(places)
@example((MAX_TIERS - 1, -HIGHEST))
@example((0, HIGHEST))
def test_rank_is_exact_as_a_double(place: tuple[int, int]) -> None:
    rank = rank_of(*place)

    assert int(float(rank)) == rank


@pytest.mark.parametrize("priority", [PRIORITY_LIMIT, -PRIORITY_LIMIT, 2**64, 1.0, "1", None])
def test_priority_outside_its_range_is_refused_by_name(priority: int) -> None:
    with pytest.raises(ValueError, match="priority must be an integer") as refusal:
        rank_of(0, priority)

    assert repr(priority) in str(refusal.value)


@pytest.mark.parametrize("tier", [-1, MAX_TIERS])
def test_tier_outside_its_range_is_refused_by_name(tier: int) -> None:
    with pytest.raises(ValueError, match=f"tier index must be from 0 to {MAX_TIERS - 1}, not {tier}"):
        rank_of(tier, 0)


def test_rank_of_a_boolean_priority_is_a_plain_integer() -> None:
    assert type(rank_of(0, True)) is int


@pytest.mark.parametrize(
    "priority, whole, nearest",
    [
        (2**44, 2**44, HIGHEST),
        (-(2**80), -(2**80), -HIGHEST),
        (7.6, 8, 8),
        (-1e30, -int(1e30), -HIGHEST),
        (float("inf"), 2**44, HIGHEST),
        (float("-inf"), -(2**44), -HIGHEST),
        (float("nan"), 0, 0),
        (Fraction(5, 2), 2, 2),
        (True, 1, 1),
    ],
)
def test_any_number_has_a_nearest_priority(priority: object, whole: int, nearest: int) -> None:
    assert (whole_priority(priority), nearest_priority(priority)) == (whole, nearest)
    assert type(whole_priority(priority)) is type(nearest_priority(priority)) is int


@pytest.mark.parametrize("priority", ["1", None, 1j])
def test_a_priority_that_is_not_a_number_is_rejected_by_name(priority: object) -> None:
    with pytest.raises(ValueError, match="priority must be a number, not"):
        nearest_priority(priority)
