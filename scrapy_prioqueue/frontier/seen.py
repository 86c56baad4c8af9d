"""How fingerprints are remembered, as plain data; no storage."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Mode = Literal["exact", "compact", "bloom"]
"""With at least 80 bits of each fingerprint, with at least 52, or in bits that all of them share."""

NEVER_S = 2**32 - 1
"""Seconds, some 136 years, after which nothing is new again: so long a time, or a longer one, is for ever."""

LEAST_IN_BLOOM = 10_000
"""A Bloom filter for fewer fingerprints may lose more than its error rate, since chance has too much weight in it."""


@dataclass(frozen=True, slots=True)
class SeenPolicy:
    """What all workers of a frontier must agree on when it comes to what was seen.

    Args:
        mode: how much is kept of each fingerprint.
        expected: how many there will be, None where nobody knows; more is no error.
        error_rate: part of new requests that may be taken for duplicates, in mode "bloom" only.
        revisit_s: seconds after which what was seen is new again, where a push doesn't say otherwise; `NEVER_S` for
            never. With None no times are kept, and no push can say otherwise.
    """

    mode: Mode = "exact"
    expected: int | None = None
    error_rate: float = 0.01
    revisit_s: int | None = None
