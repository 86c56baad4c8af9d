"""How a fingerprint becomes a bucket and a member of the seen sets; pure functions."""

from __future__ import annotations

import struct
from hashlib import blake2b

MEMBER_BYTES = 8
BUCKET_BYTES = 3

_BUCKETS, _GROWTH, _FILL = 64, 8, 384
"""Buckets of the first level, how many times more each next one has, and members per bucket of a full one."""

_MEMBER = struct.Struct(">q")


def bucket_and_member(fingerprint: bytes | None) -> tuple[str, str]:
    """Return the bucket number (24 bits) and the member (64 bits, signed) in decimal, both empty for None.

    The fingerprint is hashed once more, since a user's own fingerprinter may return bytes that spread unevenly.
    """
    if fingerprint is None:
        return "", ""
    digest = blake2b(fingerprint, digest_size=MEMBER_BYTES + BUCKET_BYTES).digest()
    (member,) = _MEMBER.unpack_from(digest)
    return str(int.from_bytes(digest[MEMBER_BYTES:], "big")), str(member)


def level_sizes(seen: int) -> list[int]:
    """Return the numbers of buckets of the levels in which so many fingerprints are, and of the next one."""
    sizes, capacity = [_BUCKETS], _BUCKETS * _FILL
    while capacity <= seen:
        sizes.append(sizes[-1] * _GROWTH)
        capacity += sizes[-1] * _FILL
    return [*sizes, sizes[-1] * _GROWTH]
