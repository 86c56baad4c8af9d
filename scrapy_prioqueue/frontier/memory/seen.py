"""The set of seen fingerprints in process: records of fixed size in buckets that are split one at a time."""

from __future__ import annotations

from hashlib import blake2b
from math import ceil
from struct import Struct

RECORD_BYTES = 10
"""80 bits of a hash of the fingerprint: with n fingerprints a look-up is wrong with a probability of n / 2**80."""

_FILL = 12
"""Average records per bucket: few enough for a quick search, enough to spread a bucket's own cost of 41 bytes."""

_FIRST_BUCKETS = 8
_LATEST_S = 2**32 - 1

_TIMED = Struct(f">{RECORD_BYTES}sI")
_SWEEP_BYTES = 4 * _TIMED.size
_MOST_SWEPT = 4
"""Maximum number of buckets that are swept in turn with each added record."""

# A user's own fingerprinter may return unevenly spread bytes. Copying a hasher takes half as long as creating one.
_new_hasher = blake2b(digest_size=RECORD_BYTES).copy
# Python's hash of bytes is seeded in each process, so sites can't choose the bucket of a record.
_bucket_bits = hash


class _Buckets:
    """Buckets of records, grown by linear hashing: one bucket is split whenever there are too many records.

    Args:
        width: bytes per record; the first `RECORD_BYTES` are the digest.
    """

    __slots__ = ("_buckets", "_count", "_mask", "_room", "_width")

    def __init__(self, width: int) -> None:
        self._width = width
        self.clear()

    def clear(self) -> None:
        """Remove all records."""
        self._buckets = [b""] * _FIRST_BUCKETS
        self._mask = 2 * _FIRST_BUCKETS - 1
        self._count, self._room = 0, _FIRST_BUCKETS * _FILL

    def __len__(self) -> int:
        return self._count

    def _split(self) -> None:
        """Split the next bucket in two, by one more bit of the hash."""
        buckets, width, half = self._buckets, self._width, (self._mask + 1) // 2
        index = len(buckets) - half
        stay: list[bytes] = []
        move: list[bytes] = []
        bucket = buckets[index]
        for at in range(0, len(bucket), width):
            record = bucket[at : at + width]
            (move if _bucket_bits(record[:RECORD_BYTES]) & half else stay).append(record)
        buckets[index] = b"".join(stay)
        buckets.append(b"".join(move))
        if len(buckets) > self._mask:
            self._mask = 2 * self._mask + 1
        self._room += _FILL


class _Lasting(_Buckets):
    """Records that never expire."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__(RECORD_BYTES)

    def holds(self, digest: bytes) -> bool:
        """Return whether there is a record of a digest."""
        return not self.add(digest, is_kept=False)

    def add(self, digest: bytes, *, is_kept: bool = True) -> bool:
        """Return whether a digest is new, and add a record of it if `is_kept`."""
        buckets, index = self._buckets, _bucket_bits(digest) & self._mask
        if index >= len(buckets):
            index &= self._mask >> 1
        bucket = buckets[index]
        at = bucket.find(digest)
        while at > 0 and at % RECORD_BYTES:
            at = bucket.find(digest, at + 1)
        if at >= 0:
            return False
        if is_kept:
            buckets[index] = bucket + digest
            self._count += 1
            if self._count > self._room:
                self._split()
        return True


class _Timed(_Buckets):
    """Records with the second at which they expire; each is removed some time after that.

    A bucket is swept at every fourth record that is added to it, so it holds only a few expired ones. If fewer records
    are added than before, all buckets are also swept in turn, once per lifetime of a record.
    """

    __slots__ = ("_swept", "_swept_s")

    def __init__(self) -> None:
        super().__init__(_TIMED.size)
        self._swept, self._swept_s = 0, 0.0

    def add(self, digest: bytes, now_s: int, expires_s: int) -> bool:
        """Return whether a digest is new or expired, and add a record unless that would expire at once."""
        buckets, index = self._buckets, _bucket_bits(digest) & self._mask
        if index >= len(buckets):
            index &= self._mask >> 1
        bucket = buckets[index]
        at = bucket.find(digest)
        while at > 0 and at % _TIMED.size:
            at = bucket.find(digest, at + 1)
        if at >= 0 and _TIMED.unpack_from(bucket, at)[1] > now_s:
            return False
        if at >= 0 or not len(bucket) % _SWEEP_BYTES:
            bucket = self._alive(bucket, now_s)
        if expires_s > now_s:
            bucket += _TIMED.pack(digest, min(expires_s, _LATEST_S))
            self._count += 1
        buckets[index] = bucket
        if expires_s > now_s:
            self._sweep_on(now_s, expires_s - now_s)
        if self._count > self._room:
            self._split()
        return True

    def _sweep_on(self, now_s: int, lifetime_s: int) -> None:
        """Sweep a few of the buckets that are due."""
        buckets = self._buckets
        self._swept_s = max(self._swept_s, now_s - lifetime_s)
        due = min(_MOST_SWEPT, int((now_s - self._swept_s) * len(buckets) / lifetime_s))
        for _ in range(due):
            self._swept %= len(buckets)
            buckets[self._swept] = self._alive(buckets[self._swept], now_s)
            self._swept += 1
        self._swept_s += due * lifetime_s / len(buckets)

    def _alive(self, bucket: bytes, now_s: int) -> bytes:
        kept = [_TIMED.pack(digest, expires_s) for digest, expires_s in _TIMED.iter_unpack(bucket) if expires_s > now_s]
        self._count -= len(bucket) // _TIMED.size - len(kept)
        return b"".join(kept)


class SeenSet:
    """Fingerprints in about 17 bytes each, about 21 with an expiry.

    Of each fingerprint a hash of 80 bits is stored. No single call becomes slow as the set grows.
    """

    __slots__ = ("_lasting", "_timed")

    def __init__(self) -> None:
        self._lasting, self._timed = _Lasting(), _Timed()

    def __len__(self) -> int:
        """Return the number of fingerprints, including some expired ones."""
        return len(self._lasting) + len(self._timed)

    def knows(self, fingerprint: bytes, now_ms: int) -> bool:
        """Return whether a fingerprint was seen and has not expired."""
        return not self.add(fingerprint, now_ms, revisit_s=0)

    def clear(self) -> None:
        """Remove all fingerprints."""
        self._lasting.clear()
        self._timed.clear()

    def add(self, fingerprint: bytes, now_ms: int = 0, revisit_s: int | None = None) -> bool:
        """Mark a fingerprint as seen; return whether it is new.

        Args:
            now_ms: milliseconds since the epoch, on the frontier's clock.
            revisit_s: seconds until it expires, if it is new now; 0 for at once, None for never.
        """
        hasher = _new_hasher()
        hasher.update(fingerprint)
        digest = hasher.digest()
        if revisit_s is None:
            is_unknown = not len(self._timed) or self._timed.add(digest, now_ms // 1000, 0)
            return is_unknown and self._lasting.add(digest)
        if self._lasting.holds(digest):
            return False
        return self._timed.add(digest, now_ms // 1000, ceil(now_ms / 1000) + revisit_s if revisit_s else 0)
