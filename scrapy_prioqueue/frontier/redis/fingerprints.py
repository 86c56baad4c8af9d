"""How a fingerprint becomes a bucket and a member of the seen sets; pure functions."""

from __future__ import annotations

import struct
from hashlib import blake2b

MEMBER_BYTES = 8
BUCKET_BYTES = 3

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
