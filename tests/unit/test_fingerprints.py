"""The form in which fingerprints are passed to the scripts."""

from __future__ import annotations

import pytest

from scrapy_prioqueue.frontier.redis.seen.fingerprints import (
    HASH_BYTES,
    bucket_of,
    hashed,
    record_of,
    records_of,
    seen_argument,
)
from scrapy_prioqueue.frontier.redis.seen.shapes import read_shape


def test_a_request_that_is_not_filtered_has_none() -> None:
    assert seen_argument(None) == seen_argument(None, 60) == b""


@pytest.mark.parametrize("fingerprint", [b"", b"a", b"\x00" * 20, bytes(range(20)), b"x" * 1000])
def test_hashes_have_one_length_and_their_time_is_behind_them(fingerprint: bytes) -> None:
    assert len(hashed(fingerprint)) == HASH_BYTES
    assert seen_argument(fingerprint) == hashed(fingerprint)
    assert seen_argument(fingerprint, 60) == hashed(fingerprint) + b"60"


def test_a_fingerprint_is_kept_as_it_was_in_earlier_releases() -> None:
    assert hashed(b"\x00" * 20).hex() == "3235550b26f63706a3e766ce"


def test_fingerprints_that_differ_in_few_bits_spread_evenly() -> None:
    counts = [0] * 64
    for number in range(6400):
        counts[bucket_of(hashed(number.to_bytes(20, "little")), 6)] += 1

    assert min(counts) > 50 and max(counts) < 160


def test_bytes_that_choose_the_bucket_are_not_in_the_record() -> None:
    digest = bytes(range(HASH_BYTES))

    assert bucket_of(digest, 8) == 0
    assert bucket_of(digest, 24) == 0x020100
    assert record_of(digest, 9) == digest[3:]


def test_records_of_a_field_leave_out_forgotten_fingerprints() -> None:
    plain, timed = read_shape("compact 0 64 64 p20:4"), read_shape("compact 2 64 64 t20:4")

    assert list(records_of(plain, plain.levels[0], b"aaaa\0\0\0\0cccc")) == [(b"aaaa", None), (b"cccc", None)]
    assert list(records_of(timed, timed.levels[0], b"aaaa\0\0\1\0" + b"\0" * 8)) == [(b"aaaa", 256)]
