"""Fingerprints as the seen sets keep them: a bucket of 24 bits and a member of 64."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from scrapy_prioqueue.frontier.redis.fingerprints import bucket_and_member


def test_request_that_is_not_filtered_has_neither() -> None:
    assert bucket_and_member(None) == ("", "")


@given(st.binary())
def test_both_are_decimal_numbers_in_range_and_always_the_same(fingerprint: bytes) -> None:
    bucket, member = bucket_and_member(fingerprint)

    assert 0 <= int(bucket) < 2**24
    assert -(2**63) <= int(member) < 2**63
    assert (bucket, member) == (str(int(bucket)), str(int(member)))
    assert bucket_and_member(fingerprint) == (bucket, member)


def test_what_is_stored_does_not_change_between_releases() -> None:
    found = bucket_and_member(b"\x00" * 20)

    assert found == ("14748310", "-7318681502198459509")


def test_different_fingerprints_stay_apart() -> None:
    numbers = [number.to_bytes(20, "big") for number in range(10_000)]

    assert len({bucket_and_member(number) for number in numbers}) == len(numbers)


def test_fingerprints_that_differ_in_one_place_spread_evenly() -> None:
    counts = [0] * 64
    for number in range(6400):
        counts[int(bucket_and_member(number.to_bytes(20, "little"))[0]) % 64] += 1

    assert min(counts) > 50
    assert max(counts) < 150
