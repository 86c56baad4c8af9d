"""The two kinds of subfilters of a Bloom filter, and their sizes; pure functions."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, exp, log, sqrt
from typing import ClassVar

from scrapy_prioqueue.frontier.redis.keys import Keys

Lookup = tuple[str | bytes | int, ...]
"""A command that returns 1 or 0."""

_ALLOCATED = (*range(4096, 8192, 1024), *range(8192, 16384 + 1, 2048))
"""Sizes that jemalloc allocates, for strings. Longer ones would save half a percent, but a call that creates some
hundred of them would block the server for milliseconds."""

_ALLOCATED_TO_FILTERS = tuple(quarters << power for power in range(14, 21) for quarters in (4, 5, 6, 7))[:-2]
"""Sizes for filters, from 64 KiB to 5 MiB. Short ones need more spare room because of chance; longer ones would block
the server when they are dropped or exported."""

_HEADER_BYTES = 8
"""What Redis adds to a string, with a byte or two to spare."""
_KEY_BYTES = 100
"""Memory for a key."""

_DEVIATIONS = 6
"""Spare room of a filter above its share of a subfilter, in standard deviations; one filter in a billion exceeds it."""

_STRICTEST, _MOST_LENIENT, _STEPS = 0.5, 4.0, 16
"""Range of the search for the error rate of filters, as factors of the required one, and its number of steps."""

_BLOCK_BITS = 64
"""RedisBloom rounds the size of filters up to whole blocks."""

FILTER_TYPE = "MBbloom--"
"""Type of RedisBloom's filters in replies of `TYPE`."""

_HASH = struct.Struct("<I")
_HASHES = struct.Struct(">II")


def _false_positives(hashes: int, bits: int, count: int) -> float:
    """Return the probability that all bits of a new fingerprint are set: (1 - e^(-kn/m))^k.

    That is the usual approximation for k bits among m (Mitzenmacher and Upfal, Probability and Computing, 5.5.3).
    """
    return (1 - exp(-hashes * count / bits)) ** hashes


@dataclass(frozen=True, slots=True)
class Bits:
    """A subfilter in plain strings; see `lib/bits.lua`.

    Args:
        hashes: bits per fingerprint.
        chunks: number of strings; all bits of a fingerprint are in one of them.
        chunk_bytes: length of each.
        capacity: number of fingerprints after which the next subfilter begins.
    """

    LETTER: ClassVar[str] = "b"

    hashes: int
    chunks: int
    chunk_bytes: int
    capacity: int

    @classmethod
    def of(cls, capacity: int, error_rate: float) -> Bits:
        """Return a subfilter that keeps its error rate until it is full."""
        hashes = max(1, round(-log(error_rate) / log(2)))
        size = ceil(-hashes * capacity / log(1 - error_rate ** (1 / hashes)) / 8)
        if size < _ALLOCATED[0]:
            return cls(hashes, 1, size, capacity)
        choices = ((ceil(size / (allocated - _HEADER_BYTES)), allocated) for allocated in _ALLOCATED)
        chunks, _ = min(choices, key=lambda choice: choice[0] * (choice[1] + _KEY_BYTES))
        return cls(hashes, chunks, ceil(size / chunks), capacity)

    @classmethod
    def read(cls, words: Sequence[str]) -> Bits:
        """Return a subfilter from the parts of its text."""
        return cls(*map(int, words))

    def text(self) -> str:
        """Return the subfilter as the scripts read it."""
        return f"{self.LETTER}{self.hashes}:{self.chunks}:{self.chunk_bytes}:{self.capacity}"

    def rate(self, count: int) -> float:
        """Return the probability of a false positive with `count` fingerprints in it."""
        return _false_positives(self.hashes, 8 * self.chunks * self.chunk_bytes, count)

    def lookups(self, keys: Keys, level: int, digest: bytes) -> Sequence[Lookup]:
        """Return commands that all return 1 if a hash of 12 bytes is in this subfilter, whose number is `level`."""
        chunk, positions = self.positions(digest)
        return [("GETBIT", keys.seen(level, chunk), position) for position in positions]

    def positions(self, digest: bytes) -> tuple[int, Sequence[int]]:
        """Return the chunk of a hash of 12 bytes and the positions of its bits there, as `lib/bits.lua` computes them.

        The first position is `a`; the distance to the next is `b` and grows by `c` each time. The usual two numbers
        would allow too few sets of positions for low error rates.
        """
        c, chunk = divmod(_HASH.unpack_from(digest)[0], self.chunks)
        a, b = _HASHES.unpack_from(digest, 4)
        bits = 8 * self.chunk_bytes
        return chunk, [(a + i * b + i * (i - 1) // 2 * c) % bits for i in range(self.hashes)]


@dataclass(frozen=True, slots=True)
class Filters:
    """A subfilter in filters of RedisBloom; see `lib/filters.lua`.

    Args:
        chunks: number of filters; a fingerprint is in one of them.
        room: number of fingerprints for which each is created.
        capacity: number of fingerprints in all of them after which the next subfilter begins.
        error_rate: error rate for which they are created.
    """

    LETTER: ClassVar[str] = "f"

    chunks: int
    room: int
    capacity: int
    error_rate: float

    @classmethod
    def of(cls, capacity: int, error_rate: float) -> Filters:
        """Return a subfilter that keeps its error rate until it is full, with the least memory."""
        counts = {_filters_of(allocated, capacity, error_rate) for allocated in _ALLOCATED_TO_FILTERS}
        return min((cls._of(chunks, capacity, error_rate) for chunks in sorted(counts)), key=cls._allocated)

    @classmethod
    def _of(cls, chunks: int, capacity: int, error_rate: float) -> Filters:
        """Return a subfilter of `chunks` filters.

        The error rate of the filters is chosen so that the subfilter keeps the required one: the server rounds the
        number of hashes, which makes it slightly worse, and the spare room makes it better.
        """
        each = capacity / chunks
        room = capacity if chunks == 1 else ceil(each + _DEVIATIONS * sqrt(each))
        strict, lenient = _STRICTEST * error_rate, min(_MOST_LENIENT * error_rate, 0.5)
        for _ in range(_STEPS):
            middle = sqrt(strict * lenient)
            if cls(chunks, room, capacity, middle).rate(capacity) > error_rate:
                lenient = middle
            else:
                strict = middle
        return cls(chunks, room, capacity, _short(strict))

    @classmethod
    def read(cls, words: Sequence[str]) -> Filters:
        """Return a subfilter from the parts of its text."""
        chunks, room, capacity, error_rate = words
        return cls(int(chunks), int(room), int(capacity), float(error_rate))

    def text(self) -> str:
        """Return the subfilter as the scripts read it."""
        return f"{self.LETTER}{self.chunks}:{self.room}:{self.capacity}:{self.error_rate:.6g}"

    def rate(self, count: int) -> float:
        """Return the probability of a false positive with `count` fingerprints in it."""
        hashes = ceil(log(2) * _bits_per_fingerprint(self.error_rate))
        return _false_positives(hashes, 8 * self.chunks * self.chunk_bytes, count)

    def lookups(self, keys: Keys, level: int, digest: bytes) -> Sequence[Lookup]:
        """Return commands that all return 1 if a hash of 12 bytes is in this subfilter, whose number is `level`."""
        return [("BF.EXISTS", keys.seen(level, _HASH.unpack_from(digest)[0] % self.chunks), digest)]

    @property
    def chunk_bytes(self) -> int:
        """Length of a filter."""
        return ceil(self.room * _bits_per_fingerprint(self.error_rate) / _BLOCK_BITS) * _BLOCK_BITS // 8

    def _allocated(self) -> int:
        size = self.chunk_bytes
        each = next((allocated for allocated in _ALLOCATED_TO_FILTERS if allocated >= size), size)
        return self.chunks * (each + _KEY_BYTES)


Subfilter = Bits | Filters
"""A part of a Bloom filter."""


def _short(error_rate: float) -> float:
    """Return an error rate with the precision of a subfilter's text, rounded down."""
    return float(f"{error_rate * (1 - 1e-5):.6g}")


def _bits_per_fingerprint(error_rate: float) -> float:
    """Return RedisBloom's bits per fingerprint: -ln(f) / ln(2)^2. It uses ln(2) times as many hashes."""
    return -log(error_rate) / log(2) ** 2


def _filters_of(allocated: int, capacity: int, error_rate: float) -> int:
    """Return the number of filters of `allocated` bytes that a subfilter needs."""
    room = (8 * allocated - _BLOCK_BITS) / _bits_per_fingerprint(error_rate)
    return 1 if capacity <= room else ceil(capacity / (room - _DEVIATIONS * sqrt(room)))
