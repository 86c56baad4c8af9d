"""How fingerprints are remembered, as plain data; no storage."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

Mode = Literal["exact", "compact", "bloom"]
"""With at least 80 bits of each fingerprint, with at least 52, or in bits that all of them share."""

NEVER_S = 2**32 - 1
"""Seconds, some 136 years, after which nothing is new again: so long a time, or a longer one, is for ever."""

LEAST_IN_BLOOM = 10_000
"""A Bloom filter for fewer fingerprints may lose more than its error rate, since chance has too much weight in it."""

MOST_EXPECTED = 10**11
"""More fingerprints would take more buckets than are told apart."""

LEAST_ERROR_RATE, MOST_ERROR_RATE = 1e-9, 0.1
"""Of a Bloom filter; beyond them another mode is smaller, or most of a crawl could be lost."""


@dataclass(frozen=True, slots=True)
class SeenPolicy:
    """What all workers of a frontier must agree on when it comes to what was seen.

    Args:
        mode: how much is kept of each fingerprint.
        expected: how many there will be, None where nobody knows; more is no error.
        error_rate: part of new requests that may be taken for duplicates, in mode "bloom" only.
        revisit_s: seconds after which what was seen is new again, where a push doesn't say otherwise; `NEVER_S` for
            never. With None no times are kept, and no push can say otherwise. A Bloom filter has none.

    Raises:
        TypeError, ValueError: one of them isn't what it should be.
    """

    mode: Mode = "exact"
    expected: int | None = None
    error_rate: float = 0.01
    revisit_s: int | None = None

    def __post_init__(self) -> None:
        if self.mode not in get_args(Mode):
            raise ValueError(f"mode is {self.mode!r} and must be one of {', '.join(get_args(Mode))}")
        if self.expected is not None and not 1 <= self.expected <= MOST_EXPECTED:
            raise ValueError(f"expected is {self.expected} and must be from 1 to {MOST_EXPECTED:,}, or None")
        if not LEAST_ERROR_RATE <= self.error_rate <= MOST_ERROR_RATE:
            raise ValueError(f"error_rate is {self.error_rate} and must be {LEAST_ERROR_RATE} to {MOST_ERROR_RATE}")
        if self.revisit_s is not None and (self.revisit_s < 0 or self.mode == "bloom"):
            raise ValueError(
                f"revisit_s is {self.revisit_s} and must be a number of seconds (NEVER_S for never), or None,"
                " as for a Bloom filter"
            )
