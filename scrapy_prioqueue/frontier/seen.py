"""Settings of the set of seen fingerprints, as plain data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

Mode = Literal["exact", "compact", "bloom"]
"""Store at least 80 bits of each fingerprint, at least 52, or only bits of a filter that all share."""

NEVER_S = 2**32 - 1
"""Number of seconds, about 136 years, from which on a revisit time means never."""

LEAST_IN_BLOOM = 10_000
"""Minimum for a Bloom filter; a smaller one could exceed its error rate by chance."""

MOST_EXPECTED = 10**11
"""Limit of the number of buckets that can be addressed."""

LEAST_ERROR_RATE, MOST_ERROR_RATE = 1e-9, 0.1
"""Limits for a Bloom filter: below the first another mode is smaller; above the second most requests could be lost."""


IDENTITIES = ("scrapy-redis", "scrapy-2.6")
"""Fingerprints of other software by which a frontier may tell requests apart, if its crawl was begun with that."""


@dataclass(frozen=True, slots=True)
class SeenPolicy:
    """Settings of seen fingerprints, on which all workers of a frontier must agree.

    Args:
        mode: how much of each fingerprint is stored.
        expected: expected number of fingerprints, None if unknown; it may be exceeded.
        error_rate: share of new requests that may be taken for duplicates, in mode "bloom" only.
        revisit_s: default number of seconds after which a URL may be fetched again; `NEVER_S` for never. With None no
            times are stored, so no push can have its own time. A Bloom filter has no times.

    Raises:
        TypeError, ValueError: a value is invalid.
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
