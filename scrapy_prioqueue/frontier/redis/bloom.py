"""How big the layers of a Bloom filter are, where a fingerprint's bits are, and what it loses; pure functions."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import ceil, exp, inf, log

from scrapy_prioqueue.frontier.seen import SeenPolicy

FIRST_SHARE = 0.95
"""Of the error rate, for the first layer; the others have half of what is left, a quarter of it, and so on."""

EXPECTED = 1_000_000
"""How many fingerprints there will be where nobody knows."""

LAYERS = 12
"""Each holds twice what the last one does; so many hold 4,095 times what was expected."""

_ALLOCATED = (*range(4096, 8192, 1024), *range(8192, 16384 + 1, 2048))
"""Sizes in which jemalloc gives memory out. Longer strings would save half a percent, and a call that begins some
hundred of them would hold the server up for milliseconds."""

_HEADER_BYTES = 8
"""What Redis adds to a string, with a byte or two to spare; and"""
_KEY_BYTES = 100
"""what a key costs."""

_STEPS = 1000
_HASH = struct.Struct("<I")
_HASHES = struct.Struct(">II")


@dataclass(frozen=True, slots=True)
class Layer:
    """A part of a filter, in strings.

    Args:
        hashes: bits per fingerprint.
        chunks: strings; all bits of a fingerprint are in one of them.
        chunk_bytes: length of each.
        capacity: fingerprints after which the next layer is begun.
    """

    hashes: int
    chunks: int
    chunk_bytes: int
    capacity: int

    def rate(self, count: int) -> float:
        """Return the chance of a false positive with so many fingerprints in it: (1 - e^(-kn/m))^k.

        That is the usual approximation for k bits of m each (Mitzenmacher and Upfal, Probability and Computing, 5.5.3).
        """
        bits = 8 * self.chunks * self.chunk_bytes
        return (1 - exp(-self.hashes * count / bits)) ** self.hashes

    def positions(self, digest: bytes) -> tuple[int, Sequence[int]]:
        """Return the chunk and the positions in it of the bits of a hash of 12 bytes, as `_bloom.lua` finds them.

        They are numbered from `a`, `b` apart, and `c` more apart each time. With two numbers only, as is usual, too few
        sets of positions would be possible for low error rates.
        """
        c, chunk = divmod(_HASH.unpack_from(digest)[0], self.chunks)
        a, b = _HASHES.unpack_from(digest, 4)
        bits = 8 * self.chunk_bytes
        return chunk, [(a + i * b + i * (i - 1) // 2 * c) % bits for i in range(self.hashes)]


def layers_for(capacity: int, error_rate: float) -> Sequence[Layer]:
    """Return the layers of a filter that is as good as promised however far it grows, up to the last layer."""
    shares = [FIRST_SHARE, *((1 - FIRST_SHARE) / 2**index for index in range(1, LAYERS))]
    return [_layer(capacity << index, error_rate * share) for index, share in enumerate(shares)]


def _layer(capacity: int, error_rate: float) -> Layer:
    hashes = max(1, round(-log(error_rate) / log(2)))
    size = ceil(-hashes * capacity / log(1 - error_rate ** (1 / hashes)) / 8)
    if size < _ALLOCATED[0]:
        return Layer(hashes, 1, size, capacity)
    choices = ((ceil(size / (allocated - _HEADER_BYTES)), allocated) for allocated in _ALLOCATED)
    chunks, _ = min(choices, key=lambda choice: choice[0] * (choice[1] + _KEY_BYTES))
    return Layer(hashes, chunks, ceil(size / chunks), capacity)


def text_for(policy: SeenPolicy) -> str:
    """Return the shape of a filter as the scripts read it, `_bloom.lua` says how."""
    capacity = policy.expected or EXPECTED
    layers = layers_for(capacity, policy.error_rate)
    parts = [f"b{layer.hashes}:{layer.chunks}:{layer.chunk_bytes}:{layer.capacity}" for layer in layers]
    return " ".join(["bloom", "0", str(capacity), f"{policy.error_rate * 1e9:.0f}", *parts])


def is_bloom(shape: str) -> bool:
    """Return whether what was seen is kept in such a filter."""
    return shape.startswith("bloom ")


def read_layers(shape: str) -> Sequence[Layer]:
    """Return the layers of a filter from its shape."""
    return [Layer(*map(int, part[1:].split(":"))) for part in shape.split()[4:]]


def promised(shape: str) -> tuple[int, float]:
    """Return how many fingerprints a filter was made for, and the error rate that it was promised to keep."""
    _, _, capacity, rate = shape.split()[:4]
    return int(capacity), int(rate) / 1e9


def fills(layers: Sequence[Layer], count: int) -> Iterator[tuple[Layer, int]]:
    """Yield the layers in use and how many fingerprints are in each."""
    for index, layer in enumerate(layers):
        held = count if index == len(layers) - 1 else min(count, layer.capacity)
        yield layer, held
        count -= held
        if count == 0 and held < layer.capacity:
            return


def error_rate(layers: Sequence[Layer], count: int) -> float:
    """Return the chance that a new fingerprint is now taken for one of those that were seen."""
    is_told_apart = 1.0
    for layer, held in fills(layers, count):
        is_told_apart *= 1 - layer.rate(held)
    return 1 - is_told_apart


def expected_losses(layers: Sequence[Layer], count: int) -> float:
    """Return how many new pages were taken for duplicates, by expectation, until so many were marked seen.

    For each page that was marked, f / (1 - f) others were not, f being the error rate at that moment; this is the
    integral of that over the pages marked.
    """
    lost, passed = 0.0, 1.0
    for layer, held in fills(layers, count):
        steps = min(_STEPS, held)
        for step in range(steps):
            is_told_apart = passed * (1 - layer.rate(round(held * (step + 0.5) / steps)))
            lost += held / steps * (1 / is_told_apart - 1 if is_told_apart else inf)
        passed *= 1 - layer.rate(held)
    return lost
