"""Sizes of Bloom filters, and the number of pages that they are expected to lose."""

from __future__ import annotations

import random

import pytest

from scrapy_prioqueue.frontier.redis.seen.bloom import (
    error_rate,
    expected_losses,
    is_bloom,
    needs_filters,
    read_subfilters,
    subfilters_for,
    text_for,
)
from scrapy_prioqueue.frontier.redis.seen.subfilters import Bits, Filters
from scrapy_prioqueue.frontier.seen import SeenPolicy


@pytest.mark.parametrize("has_filters", [False, True])
@pytest.mark.parametrize("capacity", [1, 100, 3_000, 100_000, 1_000_000, 300_000_000])
@pytest.mark.parametrize("rate", [0.1, 0.01, 0.001, 1e-9])
def test_the_error_rate_is_near_the_promised_one_at_capacity_and_never_above_it(
    capacity: int, rate: float, has_filters: bool
) -> None:
    subfilters = subfilters_for(capacity, rate, has_filters=has_filters)

    # Where there are few, a bit more or less makes a difference.
    assert rate * (0.9 if capacity >= 3_000 else 0) <= error_rate(subfilters, capacity) <= rate
    for growth in (2, 4, 8, 64, 1024):
        assert error_rate(subfilters, capacity * growth) <= rate


def test_a_url_takes_1_22_bytes_at_one_percent() -> None:
    for capacity in (1_000_000, 10_000_000, 123_456_789):
        subfilter = subfilters_for(capacity, 0.01)[0]

        assert isinstance(subfilter, Bits)
        assert subfilter.chunks * (subfilter.chunk_bytes + 100) / capacity < 1.23
        assert subfilter.chunk_bytes < 16384


@pytest.mark.parametrize("capacity", [1, 10_000, 1_000_000, 10_000_000, 123_456_789])
def test_filters_of_the_server_have_room_for_chance_and_take_little_more(capacity: int) -> None:
    for subfilter in subfilters_for(capacity, 0.01, has_filters=True)[:3]:
        assert isinstance(subfilter, Filters)
        mean = subfilter.capacity / subfilter.chunks
        assert subfilter.room >= mean + (6 * mean**0.5 if subfilter.chunks > 1 else 0)
        assert subfilter.room < mean * 1.03 + 1
        assert subfilter.room * 1.22 < 5 * 2**20 or subfilter.error_rate < 0.009


@pytest.mark.parametrize("has_filters", [False, True])
def test_shape_says_the_layers(has_filters: bool) -> None:
    shape = text_for(SeenPolicy("bloom", 50_000, 0.005), has_filters=has_filters)

    assert is_bloom(shape)
    assert needs_filters(shape) == has_filters
    assert read_subfilters(shape) == subfilters_for(50_000, 0.005, has_filters=has_filters)


def test_losses_are_about_what_a_simulation_loses() -> None:
    subfilters = [Bits(4, 1, 1000, 1000), Bits(6, 2, 1000, 2000)]
    source, held, lost, count = random.Random(6), [set[tuple[int, int]](), set()], 0, 0
    while count < 3000:
        digest = source.randbytes(12)
        places = []
        for subfilter in subfilters:
            chunk, positions = subfilter.positions(digest)
            places.append({(chunk, position) for position in positions})
        if any(place <= bits for place, bits in zip(places, held, strict=True)):
            lost += 1
        else:
            held[0 if count < 1000 else 1] |= places[0 if count < 1000 else 1]
            count += 1

    assert expected_losses(subfilters, 0) == 0
    assert expected_losses(subfilters, 3000) == pytest.approx(lost, rel=0.3)
    assert lost > 20
