"""Fingerprints in the form that the scripts take, where they are stored, and the chance of a false duplicate."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from math import inf

from scrapy_prioqueue.frontier.redis.keys import Keys
from scrapy_prioqueue.frontier.redis.scripts import Argument
from scrapy_prioqueue.frontier.redis.seen.shapes import Level, Shape
from scrapy_prioqueue.frontier.seen import NEVER_S

HASH_BYTES = 12
"""The first four bytes choose a bucket, lowest first; the last ones are stored in it."""

MEMBER_BYTES = 8

_NUMBER_BYTES = 4
_BUCKET = struct.Struct("<I")
_NO_RECORD = b"\x00\x00\x00\x00"


def hashed(fingerprint: bytes) -> bytes:
    """Return the hash of a fingerprint that is stored.

    The fingerprint itself may be unevenly spread, if it comes from a user's own fingerprinter.
    """
    digest = blake2b(fingerprint, digest_size=HASH_BYTES).digest()
    # A record of zeros stands for a forgotten one.
    return digest[:-1] + b"\x01" if digest.endswith(_NO_RECORD) else digest


def seen_argument(fingerprint: bytes | None, revisit_s: int | None = None) -> bytes:
    """Return a fingerprint as an argument of the scripts, empty for None.

    Args:
        revisit_s: seconds after which it is new again, None for the frontier's default.
    """
    if fingerprint is None:
        return b""
    return hashed(fingerprint) if revisit_s is None else b"%b%d" % (hashed(fingerprint), revisit_s)


def bucket_of(digest: bytes, bits: int) -> int:
    """Return the bucket of a hash among 2**bits buckets."""
    return int(_BUCKET.unpack_from(digest)[0]) % (1 << bits)


def timed_bucket_of(digest: bytes, level: Level, moved: int) -> int:
    """Return the bucket of a hash in a table with times, after `moved` splits; `lib/timed.lua` describes it."""
    first = 1 << level.bits
    in_record = int.from_bytes(record_of(digest, level.size)[:_NUMBER_BYTES], "big")
    number = bucket_of(digest, level.bits) + first * in_record
    half = first << ((first + moved) // first).bit_length() - 1
    bucket = number % (2 * half)
    return bucket if bucket < first + moved else bucket - half


def record_of(digest: bytes, size: int) -> bytes:
    """Return the record of a hash in a packed level."""
    return digest[HASH_BYTES - size :]


@dataclass(frozen=True, slots=True)
class Location:
    """Where a level stores a fingerprint.

    Args:
        number: of the set, or of the hash.
        field: of the hash, the first one if there are times; None for a set.
        record: the value stored there.
    """

    shape: Shape
    level: int
    number: int
    field: int | None
    record: bytes

    def command(self, home: Keys) -> tuple[Argument, ...]:
        """Return the command that reads the fingerprint there."""
        key = home.seen(self.level, self.number)
        if self.field is None:
            return ("SISMEMBER", key, int.from_bytes(self.record, "big", signed=True))
        if self.shape.has_times:
            return ("HGETALL", key)
        return ("HGET", key, self.field)

    def until(self, reply: Mapping[bytes, bytes] | bytes | int | None) -> float | None:
        """Return from a reply the Unix time in seconds at which the fingerprint is new again; None if it is missing."""
        if isinstance(reply, Mapping):
            pieces = (value for field, value in reply.items() if int(field) % self.shape.group == self.field)
            reply = b"".join(pieces)
        if not isinstance(reply, bytes):
            return inf if reply else None
        for record, second in records_of(self.shape, self.shape.levels[self.level], reply):
            if record == self.record:
                return inf if second is None or second == NEVER_S else float(second)
        return None


def locations_of(shape: Shape, digest: bytes, moved: int = 0) -> Sequence[Location]:
    """Return where a hash may be stored, level by level.

    Args:
        moved: `seen_moved` of the state.
    """
    found = []
    for index, level in enumerate(shape.levels):
        bucket = timed_bucket_of(digest, level, moved) if shape.has_times else bucket_of(digest, level.bits)
        if level.is_packed:
            number, field = divmod(bucket, shape.group)
            found.append(Location(shape, index, number, field, record_of(digest, level.size)))
        else:
            found.append(Location(shape, index, bucket, None, record_of(digest, MEMBER_BYTES)))
    return found


def records_of(shape: Shape, level: Level, value: bytes) -> Iterator[tuple[bytes, int | None]]:
    """Yield the records of a field with their expiry as Unix time in seconds, None without times."""
    width = shape.width(level)
    for at in range(0, len(value), width):
        record = value[at : at + level.size]
        if any(record):
            yield record, int.from_bytes(value[at + level.size : at + width], "big") if shape.has_times else None
