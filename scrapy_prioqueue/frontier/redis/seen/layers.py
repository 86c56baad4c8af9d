"""The two ways in which a layer of a Bloom filter is kept, and how big it is made; pure functions."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, exp, log, sqrt
from typing import ClassVar, Protocol

from scrapy_prioqueue.frontier.redis.keys import Keys

Lookup = tuple[str | bytes | int, ...]
"""A command whose answer is 1 or 0."""

_ALLOCATED = (*range(4096, 8192, 1024), *range(8192, 16384 + 1, 2048))
"""Sizes in which jemalloc gives memory out, for strings. Longer ones would save half a percent, and a call that begins
some hundred of them would hold the server up for milliseconds."""

_ALLOCATED_TO_FILTERS = tuple(quarters << power for power in range(14, 21) for quarters in (4, 5, 6, 7))[:-2]
"""Likewise, for filters, from 64 KiB to 5 MiB. Of short ones, chance would have more room left empty; longer ones would
hold the server up when they are dropped, or exported."""

_HEADER_BYTES = 8
"""What Redis adds to a string, with a byte or two to spare; and"""
_KEY_BYTES = 100
"""what a key costs."""

_DEVIATIONS = 6
"""How many standard deviations a filter may get more than its part of a layer; one in a billion gets more."""

_STRICTEST, _MOST_LENIENT, _STEPS = 0.5, 4.0, 16
"""Where an error rate for filters is looked for, as a part of the one that they are to keep, and in how many steps."""

_BLOCK_BITS = 64
"""RedisBloom makes filters of whole ones."""

FILTER_TYPE = "MBbloom--"
"""What RedisBloom calls its filters where a server tells the type of a key."""

_HASH = struct.Struct("<I")
_HASHES = struct.Struct(">II")


class Layer(Protocol):
    """A part of a Bloom filter."""

    @property
    def chunks(self) -> int:
        """Strings or filters that it is made of."""

    @property
    def capacity(self) -> int:
        """Fingerprints after which the next layer is begun."""

    def text(self) -> str:
        """Return the layer as the scripts read it."""

    def rate(self, count: int) -> float:
        """Return the chance of a false positive with so many fingerprints in it."""

    def lookups(self, keys: Keys, level: int, digest: bytes) -> Sequence[Lookup]:
        """Return commands that all answer 1 if a hash of 12 bytes is in this layer, whose number is `level`."""


def _false_positives(hashes: int, bits: int, count: int) -> float:
    """Return the chance that all bits of a new fingerprint are set: (1 - e^(-kn/m))^k.

    That is the usual approximation for k bits of m each (Mitzenmacher and Upfal, Probability and Computing, 5.5.3).
    """
    return (1 - exp(-hashes * count / bits)) ** hashes


@dataclass(frozen=True, slots=True)
class Bits:
    """A layer in strings of our own, as `lib/bits.lua` keeps it.

    Args:
        hashes: bits per fingerprint.
        chunks: strings; all bits of a fingerprint are in one of them.
        chunk_bytes: length of each.
        capacity: fingerprints after which the next layer is begun.
    """

    LETTER: ClassVar[str] = "b"

    hashes: int
    chunks: int
    chunk_bytes: int
    capacity: int

    @classmethod
    def of(cls, capacity: int, error_rate: float) -> Bits:
        """Return a layer that is as good as promised until it is full."""
        hashes = max(1, round(-log(error_rate) / log(2)))
        size = ceil(-hashes * capacity / log(1 - error_rate ** (1 / hashes)) / 8)
        if size < _ALLOCATED[0]:
            return cls(hashes, 1, size, capacity)
        choices = ((ceil(size / (allocated - _HEADER_BYTES)), allocated) for allocated in _ALLOCATED)
        chunks, _ = min(choices, key=lambda choice: choice[0] * (choice[1] + _KEY_BYTES))
        return cls(hashes, chunks, ceil(size / chunks), capacity)

    @classmethod
    def read(cls, words: Sequence[str]) -> Bits:
        """Return a layer from the parts of its text."""
        return cls(*map(int, words))

    def text(self) -> str:
        """Return the layer as the scripts read it."""
        return f"{self.LETTER}{self.hashes}:{self.chunks}:{self.chunk_bytes}:{self.capacity}"

    def rate(self, count: int) -> float:
        """Return the chance of a false positive with so many fingerprints in it."""
        return _false_positives(self.hashes, 8 * self.chunks * self.chunk_bytes, count)

    def lookups(self, keys: Keys, level: int, digest: bytes) -> Sequence[Lookup]:
        """Return commands that all answer 1 if a hash of 12 bytes is in this layer, whose number is `level`."""
        chunk, positions = self.positions(digest)
        return [("GETBIT", keys.seen(level, chunk), position) for position in positions]

    def positions(self, digest: bytes) -> tuple[int, Sequence[int]]:
        """Return the chunk and the positions in it of the bits of a hash of 12 bytes, as `lib/bits.lua` finds them.

        They are numbered from `a`, `b` apart, and `c` more apart each time. With two numbers only, as is usual, too few
        sets of positions would be possible for low error rates.
        """
        c, chunk = divmod(_HASH.unpack_from(digest)[0], self.chunks)
        a, b = _HASHES.unpack_from(digest, 4)
        bits = 8 * self.chunk_bytes
        return chunk, [(a + i * b + i * (i - 1) // 2 * c) % bits for i in range(self.hashes)]


@dataclass(frozen=True, slots=True)
class Filters:
    """A layer in filters of RedisBloom, as `lib/filters.lua` keeps it.

    Args:
        chunks: filters; a fingerprint is in one of them.
        room: fingerprints that each is made for.
        capacity: fingerprints in all of them after which the next layer is begun.
        error_rate: that they are made for.
    """

    LETTER: ClassVar[str] = "f"

    chunks: int
    room: int
    capacity: int
    error_rate: float

    @classmethod
    def of(cls, capacity: int, error_rate: float) -> Filters:
        """Return a layer that is as good as promised until it is full, in the least memory."""
        counts = {_filters_of(allocated, capacity, error_rate) for allocated in _ALLOCATED_TO_FILTERS}
        return min((cls._of(chunks, capacity, error_rate) for chunks in sorted(counts)), key=cls._allocated)

    @classmethod
    def _of(cls, chunks: int, capacity: int, error_rate: float) -> Filters:
        """Return a layer of so many filters.

        They are made for a rate at which they keep the promised one: the server makes a whole number of hashes of it,
        which is a bit worse, and that they have room for more is better.
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
        """Return a layer from the parts of its text."""
        chunks, room, capacity, error_rate = words
        return cls(int(chunks), int(room), int(capacity), float(error_rate))

    def text(self) -> str:
        """Return the layer as the scripts read it."""
        return f"{self.LETTER}{self.chunks}:{self.room}:{self.capacity}:{self.error_rate:.6g}"

    def rate(self, count: int) -> float:
        """Return the chance of a false positive with so many fingerprints in it."""
        hashes = ceil(log(2) * _bits_per_fingerprint(self.error_rate))
        return _false_positives(hashes, 8 * self.chunks * self.chunk_bytes, count)

    def lookups(self, keys: Keys, level: int, digest: bytes) -> Sequence[Lookup]:
        """Return commands that all answer 1 if a hash of 12 bytes is in this layer, whose number is `level`."""
        return [("BF.EXISTS", keys.seen(level, _HASH.unpack_from(digest)[0] % self.chunks), digest)]

    @property
    def chunk_bytes(self) -> int:
        """How long a filter is."""
        return ceil(self.room * _bits_per_fingerprint(self.error_rate) / _BLOCK_BITS) * _BLOCK_BITS // 8

    def _allocated(self) -> int:
        size = self.chunk_bytes
        each = next((allocated for allocated in _ALLOCATED_TO_FILTERS if allocated >= size), size)
        return self.chunks * (each + _KEY_BYTES)


def _short(error_rate: float) -> float:
    """Return it as the text of a layer says it, rounded down."""
    return float(f"{error_rate * (1 - 1e-5):.6g}")


def _bits_per_fingerprint(error_rate: float) -> float:
    """Return what RedisBloom reckons with: -ln(f) / ln(2)^2. It makes ln(2) times as many hashes of it."""
    return -log(error_rate) / log(2) ** 2


def _filters_of(allocated: int, capacity: int, error_rate: float) -> int:
    """Return how many filters of that many bytes a layer takes."""
    room = (8 * allocated - _BLOCK_BITS) / _bits_per_fingerprint(error_rate)
    return 1 if capacity <= room else ceil(capacity / (room - _DEVIATIONS * sqrt(room)))
