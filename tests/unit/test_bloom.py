"""How big Bloom filters are made, and what they are said to lose."""

from __future__ import annotations

import random

import pytest

from scrapy_prioqueue.frontier.redis.bloom import (
    Layer,
    error_rate,
    expected_losses,
    is_bloom,
    layers_for,
    promised,
    read_layers,
    text_for,
)
from scrapy_prioqueue.frontier.seen import SeenPolicy


@pytest.mark.parametrize("capacity", [1, 100, 3_000, 100_000, 1_000_000, 300_000_000])
@pytest.mark.parametrize("rate", [0.1, 0.01, 0.001, 1e-9])
def test_the_error_rate_is_near_the_promised_one_at_capacity_and_never_above_it(capacity: int, rate: float) -> None:
    layers = layers_for(capacity, rate)

    # Where there are few, a bit more or less makes a difference.
    assert rate * (0.9 if capacity >= 3_000 else 0) <= error_rate(layers, capacity) <= rate
    for growth in (2, 4, 8, 64, 1024):
        assert error_rate(layers, capacity * growth) <= rate


def test_a_url_takes_1_22_bytes_at_one_percent() -> None:
    for capacity in (1_000_000, 10_000_000, 123_456_789):
        layer = layers_for(capacity, 0.01)[0]

        assert layer.chunks * (layer.chunk_bytes + 100) / capacity < 1.23
        assert layer.chunk_bytes < 16384


def test_shape_says_the_layers_and_the_promise() -> None:
    shape = text_for(SeenPolicy("bloom", 50_000, 0.005))

    assert is_bloom(shape)
    assert read_layers(shape) == layers_for(50_000, 0.005)
    assert promised(shape) == (50_000, 0.005)


def test_losses_are_about_what_a_simulation_loses() -> None:
    layers = [Layer(4, 1, 1000, 1000), Layer(6, 2, 1000, 2000)]
    source, held, lost, count = random.Random(6), [set[tuple[int, int]](), set()], 0, 0
    while count < 3000:
        digest = source.randbytes(12)
        places = []
        for layer in layers:
            chunk, positions = layer.positions(digest)
            places.append({(chunk, position) for position in positions})
        if any(place <= bits for place, bits in zip(places, held, strict=True)):
            lost += 1
        else:
            held[0 if count < 1000 else 1] |= places[0 if count < 1000 else 1]
            count += 1

    assert expected_losses(layers, 0) == 0
    assert expected_losses(layers, 3000) == pytest.approx(lost, rel=0.3)
    assert lost > 20
