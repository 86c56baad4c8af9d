"""The packed fingerprints of the in-process frontier give the same answers as a dict, in few bytes."""

from __future__ import annotations

import random
import tracemalloc
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scrapy_prioqueue.frontier.base import Push
from scrapy_prioqueue.frontier.memory.seen import SeenSet
from scrapy_prioqueue.frontier.memory.store import Crawl, MemoryStore
from scrapy_prioqueue.frontier.seen import NEVER_S

pytestmark = pytest.mark.slow

NEVER = float("inf")
DOOMSDAY_MS = 2**33 * 1000
"""All fingerprints that ever expire have expired by then."""


def packed_of(fingerprints: Iterable[bytes]) -> SeenSet:
    packed = SeenSet()
    for fingerprint in fingerprints:
        packed.add(fingerprint)
    return packed


@given(st.integers(), st.integers(1, 800))
def test_answers_are_those_of_a_dict_of_when_they_expire(seed: int, most: int) -> None:
    source, packed, expiries, now_s = random.Random(seed), SeenSet(), dict[int, float](), 1_000_000
    for _ in range(1000):
        number, revisit_s = source.randrange(most), source.choice((None, 0, 1, 3, 30, 300, 2**33))
        now_s += source.choice((0, 0, 0, 1, 5))
        is_new = expiries.get(number, 0) <= now_s
        if is_new:
            expiries[number] = NEVER if revisit_s is None else now_s + revisit_s

        assert packed.add(number.to_bytes(20, "big"), now_s * 1000, revisit_s) is is_new

    assert len(packed) >= sum(expiry_s > now_s for expiry_s in expiries.values())
    lasting = [number for number in range(most) if packed.knows(number.to_bytes(20, "big"), DOOMSDAY_MS)]
    assert lasting == sorted(number for number, expiry_s in expiries.items() if expiry_s == NEVER)


@given(st.sets(st.binary(max_size=30), max_size=300), st.binary(max_size=30))
def test_fingerprints_of_any_length_and_kind_stay_apart(fingerprints: set[bytes], other: bytes) -> None:
    packed = packed_of(fingerprints)

    assert len(packed) == len(fingerprints)
    assert all(packed.knows(fingerprint, 0) for fingerprint in fingerprints)
    assert packed.knows(other, 0) is (other in fingerprints)

    packed.clear()
    assert not len(packed)
    assert not packed.knows(other, 0)


def test_a_fingerprint_takes_less_than_20_bytes() -> None:
    source = random.Random(6)
    tracemalloc.start()
    packed = packed_of(source.randbytes(20) for _ in range(30_000))
    taken = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()

    assert len(packed) == 30_000
    assert taken < 20 * 30_000


def test_expired_fingerprints_make_room() -> None:
    packed, source = SeenSet(), random.Random(6)
    for now_s in range(0, 20_000):
        packed.add(source.randbytes(20), now_s * 1000, 1000)

    assert 1000 <= len(packed) < 2000

    # Also where much fewer are added than there were.
    for now_s in range(20_000, 40_000, 10):
        packed.add(source.randbytes(20), now_s * 1000, 1000)

    assert 100 <= len(packed) < 200


def test_a_frontier_goes_by_the_time_of_a_push_before_its_own() -> None:
    store, crawl, start_ms = MemoryStore(), Crawl(None), 1_700_000_000_500
    store.revisit_s = 60

    def is_new(name: bytes, after_s: float, revisit_s: int | None = None) -> bool:
        push = Push(0, "shop.example", b"", fingerprint=name, revisit_s=revisit_s)
        return store.push(crawl, push, "lifo", start_ms + round(after_s * 1000)) is None

    for name, revisit_s in ((b"own", 5), (b"all", None), (b"never", NEVER_S), (b"at once", 0)):
        assert is_new(name, 0, revisit_s)
    assert is_new(b"at once", 0)
    assert not any(is_new(name, 4.9) for name in (b"own", b"all", b"never", b"at once"))
    assert is_new(b"own", 6)
    assert not is_new(b"all", 59.9)
    assert is_new(b"all", 61)
    assert not is_new(b"never", 10**9)
