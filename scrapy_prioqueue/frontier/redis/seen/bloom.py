"""How big the layers of a Bloom filter are, where a fingerprint is in them, and what it loses; pure functions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import inf

from scrapy_prioqueue.frontier.redis.seen.layers import Bits, Filters, Layer
from scrapy_prioqueue.frontier.seen import SeenPolicy

FIRST_SHARE = 0.95
"""Of the error rate, for the first layer; the others have half of what is left, a quarter of it, and so on."""

EXPECTED = 1_000_000
"""How many fingerprints there will be where nobody knows."""

LAYERS = 12
"""Each holds twice what the last one does; so many hold 4,095 times what was expected."""

_STEPS = 1000
_KINDS: Sequence[type[Bits] | type[Filters]] = (Bits, Filters)


def layers_for(capacity: int, error_rate: float, *, has_filters: bool = False) -> Sequence[Layer]:
    """Return the layers of a filter that is as good as promised however far it grows, up to the last layer.

    Args:
        has_filters: the server keeps them by commands of its own.
    """
    kind = Filters if has_filters else Bits
    shares = [FIRST_SHARE, *((1 - FIRST_SHARE) / 2**index for index in range(1, LAYERS))]
    return [kind.of(capacity << index, error_rate * share) for index, share in enumerate(shares)]


def text_for(policy: SeenPolicy, *, has_filters: bool = False) -> str:
    """Return the shape of a filter as the scripts read it, `lib/bloom.lua` says how."""
    capacity = policy.expected or EXPECTED
    layers = layers_for(capacity, policy.error_rate, has_filters=has_filters)
    texts = (layer.text() for layer in layers)
    return " ".join(["bloom", "0", str(capacity), f"{policy.error_rate * 1e9:.0f}", *texts])


def is_bloom(shape: str) -> bool:
    """Return whether what was seen is kept in such a filter."""
    return shape.startswith("bloom ")


def read_layers(shape: str) -> Sequence[Layer]:
    """Return the layers of a filter from its shape."""
    return [_read_layer(text) for text in shape.split()[4:]]


def _read_layer(text: str) -> Layer:
    kind = next(kind for kind in _KINDS if text.startswith(kind.LETTER))
    return kind.read(text[1:].split(":"))


def needs_filters(shape: str) -> bool:
    """Return whether only a server with commands of its own for such filters can keep it."""
    return is_bloom(shape) and any(isinstance(layer, Filters) for layer in read_layers(shape))


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
