"""Bloom filters as the scripts keep them, so small that several layers are used."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from scrapy_prioqueue.frontier.redis.bloom import Layer, read_layers, text_for
from scrapy_prioqueue.frontier.redis.fingerprints import hashed
from scrapy_prioqueue.frontier.seen import SeenPolicy
from tests.lua.test_seen import Frontier, fingerprint
from tests.support.servers import RedisServer


def bits_in(frontier: Frontier, level: int, layer: Layer) -> Sequence[int]:
    """Return the strings of a layer as numbers."""
    client: Any = frontier.scripts.client
    return [
        int.from_bytes(client.get(frontier.scripts.keys.seen(level, chunk)) or bytes(layer.chunk_bytes), "big")
        for chunk in range(layer.chunks)
    ]


def is_in(bits: Sequence[int], layer: Layer, digest: bytes) -> bool:
    chunk, positions = layer.positions(digest)
    return all(bits[chunk] >> (8 * layer.chunk_bytes - 1 - position) & 1 for position in positions)


@settings(
    max_examples=25,
    phases=(Phase.generate,),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    batches=st.lists(st.lists(st.integers(0, 300), min_size=1, max_size=60), max_size=8),
    capacity=st.sampled_from([1, 7, 20]),
    rate=st.sampled_from([0.1, 0.01, 1e-9]),
)
def test_what_was_pushed_is_never_new_again(
    redis_server: RedisServer, frontier_name: str, batches: list[list[int]], capacity: int, rate: float
) -> None:
    shape = text_for(SeenPolicy("bloom", capacity, rate))
    frontier, layers, known, lost = Frontier(redis_server, frontier_name, shape), read_layers(shape), set[int](), 0
    for batch in batches:
        duplicates = set(frontier.push([(number, None) for number in batch]))
        for index, number in enumerate(batch):
            assert index in duplicates or number not in known
            lost += index in duplicates and number not in known
            known.add(number)
    assert len(frontier.known([(number, None) for number in known])) == len(known)

    assert frontier.count == len(known) - lost
    assert lost <= len(known) / 2 + 2 if rate == 0.1 else lost <= 10
    used = [(bits_in(frontier, *each), each[1]) for each in enumerate(layers)]
    for number in known:
        assert any(is_in(bits, layer, hashed(fingerprint(number))) for bits, layer in used)


def test_strings_have_their_length_from_the_beginning_and_the_rate_is_about_the_promised_one(
    redis_server: RedisServer, frontier_name: str
) -> None:
    shape = text_for(SeenPolicy("bloom", 5_000, 0.02))
    frontier, (layer, second, *_) = Frontier(redis_server, frontier_name, shape), read_layers(shape)
    client: Any = frontier.scripts.client
    numbers, lost = iter(range(10**6)), 0
    while frontier.count < 5_000:
        batch = [(next(numbers), None) for _ in range(min(500, 5_000 - frontier.count))]
        lost += len(frontier.push(batch))
        # Then the batch is there.
        assert len(frontier.push(batch)) == len(batch)

    lengths = [client.strlen(frontier.scripts.keys.seen(0, chunk)) for chunk in range(layer.chunks)]
    assert lengths == [layer.chunk_bytes] * layer.chunks
    source = random.Random(6)
    bits = bits_in(frontier, 0, layer)
    found = sum(is_in(bits, layer, source.randbytes(12)) for _ in range(5_000))
    assert 60 <= found <= 140
    assert lost < 60
    frontier.push([(next(numbers), None)])
    assert client.strlen(frontier.scripts.keys.seen(1, 0)) in (0, second.chunk_bytes)
