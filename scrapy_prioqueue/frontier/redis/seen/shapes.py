"""Shapes: how many buckets each level of the set of seen fingerprints has; pure functions.

A shape is computed once, when a frontier stores its first fingerprints. It is stored in the state and never changes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil, log2
from typing import NamedTuple

from scrapy_prioqueue.frontier.redis.seen import bloom
from scrapy_prioqueue.frontier.seen import Mode, SeenPolicy

DEFAULT_SHAPE = "exact 0 64 64 p18:8 s16:384 s19:384 s22:384"
"""Shape of a frontier whose state has none; the scripts have the same default."""

TIME_BYTES = 4
TIMES = 2
"""Marks a shape with times. 1 was used by an earlier version, which kept times in levels that were never swept."""

FIELD_BYTES = 64
"""Maximum length of a field of a packed level: what Redis keeps in a listpack by default."""

FIELDS_PER_HASH = 64
"""Fields per hash: fewer need more keys, more make each look-up slower."""

BITS = {"exact": 80, "compact": 52}
"""Minimum number of bits stored of a fingerprint, by mode."""

EXPECTED = {"exact": 1_000_000, "compact": 10_000_000}
"""Expected number of fingerprints if unknown, by mode."""

LEAST_RECORD_BYTES = 4
GROWTH_BITS = 3
MOST_BITS = 32
MOST_FIRST_BITS = 20
"""Limit for a table with times, whose other bits come from the records: bucket numbers must be exact in a double."""

FULLNESS = 0.6
"""Planned load of the first level's buckets; at a higher one they begin to overflow."""

SET_BITS, MEMBERS_PER_SET = 16, 384
FIRST_IN_SETS = 3_000_000
"""Expected number of fingerprints from which on sets of integers are used from the beginning; with fewer the sets would
be too small for the cost of a key."""


class EncodingLimits(NamedTuple):
    """Limits of a server up to which values have compact encodings.

    Args:
        fields: of a hash (`hash-max-listpack-entries`, `hash-max-ziplist-entries` before Redis 7).
        field_bytes: of a field (`hash-max-listpack-value`).
        integers: of a set (`set-max-intset-entries`).
    """

    fields: int = 512
    field_bytes: int = 64
    integers: int = 512


USUAL = EncodingLimits()


NAMES_OF_LIMITS = (
    ("hash-max-listpack-entries", "hash-max-ziplist-entries"),
    ("hash-max-listpack-value", "hash-max-ziplist-value"),
    ("set-max-intset-entries",),
)
"""Names of these settings on a server, the one before Redis 7 last."""


def limits_of(config: Mapping[str, str]) -> EncodingLimits:
    """Return the limits from a server's settings by name."""
    values = (
        next((int(config[name]) for name in names if name in config), usual)
        for names, usual in zip(NAMES_OF_LIMITS, USUAL, strict=True)
    )
    return EncodingLimits(*values)


@dataclass(frozen=True, slots=True)
class Level:
    """One level of the seen sets.

    Args:
        is_packed: fields of hashes hold records; otherwise there are sets of integers.
        bits: there are 2**bits buckets: fields, or sets; in a table with times that is the initial number.
        size: bytes stored of a fingerprint, or average number of members of a set.
    """

    is_packed: bool
    bits: int
    size: int

    def chunks(self, group: int, moved: int = 0) -> int:
        """Return the maximum number of keys, with `group` fields in each hash and `moved` additional buckets."""
        return -(-((1 << self.bits) + moved) // group) if self.is_packed else 1 << self.bits


@dataclass(frozen=True, slots=True)
class Shape:
    """How fingerprints are stored.

    Args:
        has_times: each has an expiry, and the only level is a table that grows and is swept.
        group: fields per hash.
        field_bytes: maximum length of a field.
        levels: in the order of their use; the last one takes all the rest.
    """

    mode: Mode
    has_times: bool
    group: int
    field_bytes: int
    levels: Sequence[Level]

    def width(self, level: Level) -> int:
        """Return the length of a record with its expiry."""
        return level.size + (TIME_BYTES if self.has_times else 0)

    def text(self) -> str:
        """Return the shape as the scripts read it."""
        packed = "t" if self.has_times else "p"
        levels = " ".join(f"{packed if level.is_packed else 's'}{level.bits}:{level.size}" for level in self.levels)
        return f"{self.mode} {TIMES if self.has_times else 0} {self.group} {self.field_bytes} {levels}"


def read_shape(text: str) -> Shape:
    """Return a shape from its text."""
    mode, has_times, group, field_bytes, *levels = text.split()
    found = [
        Level(is_packed=level[0] != "s", bits=int(level[1:].partition(":")[0]), size=int(level.partition(":")[2]))
        for level in levels
    ]
    return Shape(mode, has_times != "0", int(group), int(field_bytes), found)  # type: ignore[arg-type]


def chunks_of(text: str, moved: int = 0) -> Sequence[int]:
    """Return the maximum number of keys of each level of a shape, or of each subfilter of a Bloom filter.

    Args:
        moved: `seen_moved` of the state.
    """
    if bloom.is_bloom(text):
        return [subfilter.chunks for subfilter in bloom.read_subfilters(text)]
    shape = read_shape(text)
    return [level.chunks(shape.group, moved if shape.has_times else 0) for level in shape.levels]


def shape_text(policy: SeenPolicy, limits: EncodingLimits = USUAL, *, has_filters: bool = False) -> str:
    """Return the shape for a policy on a server with these limits, as the scripts read it.

    Args:
        has_filters: the server has commands for Bloom filters.
    """
    if policy.mode == "bloom":
        return bloom.text_for(policy, has_filters=has_filters)
    return shape_for(policy, limits).text()


def shape_for(policy: SeenPolicy, limits: EncodingLimits = USUAL) -> Shape:
    """Return the shape for a policy on a server with these limits."""
    mode: Mode = "compact" if policy.mode == "compact" else "exact"
    has_times = policy.revisit_s is not None
    expected = policy.expected or EXPECTED[mode]
    field_bytes = FIELD_BYTES if limits.field_bytes >= FIELD_BYTES else max(limits.field_bytes, FIELD_BYTES // 2)
    group = min(FIELDS_PER_HASH, 1 << max(0, limits.fields.bit_length() - 1))
    has_sets = mode == "exact" and limits.integers >= MEMBERS_PER_SET // 2
    members = min(MEMBERS_PER_SET, limits.integers * 3 // 4)
    if has_times:
        levels = [_timed(mode, expected, field_bytes)]
    elif has_sets and policy.expected and expected >= FIRST_IN_SETS:
        levels = _sets(max(SET_BITS, ceil(log2(expected / (FULLNESS * members)))), members)
    else:
        levels = _packed(mode, expected, field_bytes)
        if has_sets:
            first = next(index for index, level in enumerate(levels) if level.bits > SET_BITS)
            levels = [*levels[: first + 1], *_sets(SET_BITS, members)]
    return Shape(mode, has_times, group, field_bytes, levels)


def _packed(mode: Mode, expected: int, field_bytes: int) -> list[Level]:
    """Return packed levels, the first one for the expected number, with as many bits as the mode requires."""
    bits = _bits(mode, expected, field_bytes)
    steps = range(min(bits, MOST_BITS), MOST_BITS + 1, GROWTH_BITS)
    return [Level(is_packed=True, bits=step, size=_record_bytes(mode, step)) for step in steps]


def _timed(mode: Mode, expected: int, field_bytes: int) -> Level:
    """Return a table with times. It begins with the fewest buckets that the record size for that number allows."""
    size = _record_bytes(mode, min(MOST_FIRST_BITS, _bits(mode, expected, field_bytes, TIME_BYTES)))
    return Level(is_packed=True, bits=BITS[mode] - 8 * size, size=size)


def _bits(mode: Mode, expected: int, field_bytes: int, more_bytes: int = 0) -> int:
    """Return the number of buckets, as a power of two, for the expected number of fingerprints."""
    bits = 8
    while (size := _record_bytes(mode, bits)) and (1 << bits) * FULLNESS * (
        field_bytes // (size + more_bytes)
    ) < expected:
        bits += 1
    return bits


def _record_bytes(mode: Mode, bits: int) -> int:
    return max(LEAST_RECORD_BYTES, ceil((BITS[mode] - bits) / 8))


def _sets(bits: int, members: int) -> list[Level]:
    return [Level(is_packed=False, bits=step, size=members) for step in range(bits, MOST_BITS + 1, GROWTH_BITS)]
