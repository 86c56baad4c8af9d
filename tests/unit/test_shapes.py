"""The number of buckets in each level of the seen set."""

from __future__ import annotations

from typing import Literal

import pytest

from scrapy_prioqueue.frontier.redis.seen.fingerprints import MEMBER_BYTES
from scrapy_prioqueue.frontier.redis.seen.shapes import (
    BITS,
    DEFAULT_SHAPE,
    USUAL,
    EncodingLimits,
    limits_of,
    read_shape,
    shape_for,
)
from scrapy_prioqueue.frontier.seen import SeenPolicy

EXPECTED = [None, 1, 100, 10_000, 1_000_000, 3_000_000, 10_000_000, 10**9]


@pytest.mark.parametrize("revisit_s", [None, 3600])
@pytest.mark.parametrize("expected", EXPECTED)
@pytest.mark.parametrize("mode", ["exact", "compact"])
def test_every_level_keeps_as_many_bits_as_the_mode_says(
    mode: Literal["exact", "compact"], expected: int | None, revisit_s: int | None
) -> None:
    shape = shape_for(SeenPolicy(mode, expected, revisit_s=revisit_s))

    assert shape.levels
    stored = [8 * (level.size if level.is_packed else MEMBER_BYTES) for level in shape.levels]
    assert all(level.bits + bits >= BITS[mode] for level, bits in zip(shape.levels, stored, strict=True))
    # What chooses the bucket is not in the record.
    assert all(level.bits + 8 * level.size <= 96 for level in shape.levels if level.is_packed)
    assert [level.bits for level in shape.levels if level.is_packed] == sorted(
        {level.bits for level in shape.levels if level.is_packed}
    )
    assert read_shape(shape.text()) == shape
    assert shape.has_times == (revisit_s is not None)


def test_the_default_shape_is_that_of_the_scripts() -> None:
    assert shape_for(SeenPolicy()).text().startswith(DEFAULT_SHAPE)


@pytest.mark.parametrize(
    ("policy", "first"),
    [
        (SeenPolicy(expected=10_000), "p12:9"),
        (SeenPolicy(), "p18:8"),
        (SeenPolicy(expected=10_000_000), "s16:384"),
        (SeenPolicy(expected=100_000_000), "s19:384"),
        (SeenPolicy("compact"), "p20:4"),
        (SeenPolicy("compact", 100_000), "p14:5"),
        (SeenPolicy(revisit_s=60), "t16:8"),
        (SeenPolicy(expected=10_000, revisit_s=60), "t8:9"),
        (SeenPolicy(expected=10**9, revisit_s=60), "t16:8"),
        (SeenPolicy("compact", revisit_s=60), "t20:4"),
    ],
)
def test_the_first_level_is_for_what_is_expected(policy: SeenPolicy, first: str) -> None:
    assert shape_for(policy).text().split()[4] == first


def test_sizes_follow_the_limits_of_the_server() -> None:
    assert shape_for(SeenPolicy(), EncodingLimits(integers=256)).text().split()[5] == "s16:192"
    assert {level.is_packed for level in shape_for(SeenPolicy(), EncodingLimits(integers=16)).levels} == {True}
    assert shape_for(SeenPolicy(), EncodingLimits(fields=40, field_bytes=40)).text().startswith("exact 0 32 40 ")
    assert shape_for(SeenPolicy(), EncodingLimits(fields=0, field_bytes=0)).text().startswith("exact 0 1 32 ")


def test_limits_are_read_by_the_names_of_either_version() -> None:
    assert limits_of({}) == USUAL
    assert limits_of({"hash-max-listpack-entries": "9", "hash-max-listpack-value": "8"}) == EncodingLimits(9, 8)
    old = {"hash-max-ziplist-entries": "7", "hash-max-ziplist-value": "6", "set-max-intset-entries": "5"}
    assert limits_of(old) == EncodingLimits(7, 6, 5)
