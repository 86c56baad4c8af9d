"""Bloom filters: the sizes of their subfilters, their error rates and expected losses; pure functions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import inf

from scrapy_prioqueue.frontier.redis.seen.subfilters import Bits, Filters, Subfilter
from scrapy_prioqueue.frontier.seen import SeenPolicy

FIRST_SHARE = 0.95
"""The first subfilter's share of the error rate; the others have a half of the rest, a quarter of it, and so on."""

EXPECTED = 1_000_000
"""Expected number of fingerprints if unknown."""

SUBFILTERS = 12
"""Number of subfilters. Each holds twice as many as the one before, so all hold 4,095 times the expected number."""

_STEPS = 1000
_KINDS: Sequence[type[Subfilter]] = (Bits, Filters)


def subfilters_for(capacity: int, error_rate: float, *, has_filters: bool = False) -> Sequence[Subfilter]:
    """Return the subfilters of a filter that keeps its error rate until the last subfilter is full.

    Args:
        has_filters: the server has commands for Bloom filters.
    """
    kind = Filters if has_filters else Bits
    shares = [FIRST_SHARE, *((1 - FIRST_SHARE) / 2**index for index in range(1, SUBFILTERS))]
    return [kind.of(capacity << index, error_rate * share) for index, share in enumerate(shares)]


def text_for(policy: SeenPolicy, *, has_filters: bool = False) -> str:
    """Return the shape of a filter as the scripts read it; `lib/bloom.lua` describes it."""
    capacity = policy.expected or EXPECTED
    subfilters = subfilters_for(capacity, policy.error_rate, has_filters=has_filters)
    texts = (subfilter.text() for subfilter in subfilters)
    return " ".join(["bloom", "0", str(capacity), f"{policy.error_rate * 1e9:.0f}", *texts])


def is_bloom(shape: str) -> bool:
    """Return whether a shape is that of a Bloom filter."""
    return shape.startswith("bloom ")


def read_subfilters(shape: str) -> Sequence[Subfilter]:
    """Return the subfilters of a filter from its shape."""
    return [_read_subfilter(text) for text in shape.split()[4:]]


def _read_subfilter(text: str) -> Subfilter:
    kind = next(kind for kind in _KINDS if text.startswith(kind.LETTER))
    return kind.read(text[1:].split(":"))


def needs_filters(shape: str) -> bool:
    """Return whether a filter needs a server with commands for Bloom filters."""
    return is_bloom(shape) and any(isinstance(subfilter, Filters) for subfilter in read_subfilters(shape))


def fills(subfilters: Sequence[Subfilter], count: int) -> Iterator[tuple[Subfilter, int]]:
    """Yield the subfilters in use, each with its number of fingerprints."""
    for index, subfilter in enumerate(subfilters):
        held = count if index == len(subfilters) - 1 else min(count, subfilter.capacity)
        yield subfilter, held
        count -= held
        if count == 0 and held < subfilter.capacity:
            return


def error_rate(subfilters: Sequence[Subfilter], count: int) -> float:
    """Return the current probability that a new fingerprint is taken for a seen one."""
    is_told_apart = 1.0
    for subfilter, held in fills(subfilters, count):
        is_told_apart *= 1 - subfilter.rate(held)
    return 1 - is_told_apart


def expected_losses(subfilters: Sequence[Subfilter], count: int) -> float:
    """Return the expected number of new pages that were taken for duplicates while `count` pages were marked as seen.

    For each page that was marked, f / (1 - f) others were not, where f is the error rate at that moment; this is the
    integral of that over the pages marked.
    """
    lost, passed = 0.0, 1.0
    for subfilter, held in fills(subfilters, count):
        steps = min(_STEPS, held)
        for step in range(steps):
            is_told_apart = passed * (1 - subfilter.rate(round(held * (step + 0.5) / steps)))
            lost += held / steps * (1 / is_told_apart - 1 if is_told_apart else inf)
        passed *= 1 - subfilter.rate(held)
    return lost
