"""Scrapy's DupeFilter interface, and the cache that answers most duplicates without asking the frontier."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Mapping
from hashlib import blake2b, sha1
from struct import Struct

from scrapy import Request
from scrapy.dupefilters import BaseDupeFilter, RFPDupeFilter
from scrapy.utils.request import RequestFingerprinter, RequestFingerprinterProtocol
from w3lib.url import canonicalize_url

from scrapy_prioqueue.frontier.seen import IDENTITIES, NEVER_S

FINGERPRINT_BYTES = 20
"""Length of Scrapy's own fingerprints; others are hashed to this length."""

_SET_MEMBERS = 8
_TIME = Struct(">I")
_FOREVER = 2**32 - 1

_LABEL = r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?"
_WORD = r"[A-Za-z0-9_.~-]+"
_URL_AS_IT_IS = re.compile(
    rf"(?=[^/]*//[^/]*/)https?://(?P<host>{_LABEL}(?:\.{_LABEL})*)(?::(?:[1-5]\d{{0,4}}|[6-9]\d{{0,3}}))?(?:/[A-Za-z0-9_~-][A-Za-z0-9_.~-]*)*/?"
    rf"(?P<query>\?{_WORD}={_WORD}(?:&{_WORD}={_WORD})*)?"
)
_LONGEST_HOST = 200


class DupeFilter(RFPDupeFilter):
    """Filters duplicates across all workers of a frontier, under `scrapy_prioqueue.Scheduler`.

    The scheduler gets the fingerprint from here, and the frontier looks it up and marks it as it stores the request.
    Under any other scheduler this is Scrapy's own filter, for one process, with `JOBDIR` support.
    """

    _is_plain: bool | None = None

    def fingerprint(self, request: Request) -> bytes | None:
        """Return the fingerprint of a request, or None if the request is never a duplicate.

        By default `REQUEST_FINGERPRINTER_CLASS` computes it; override this method to identify requests differently.
        """
        if self._is_plain is None:
            self._is_plain = _is_scrapys(self.fingerprinter)
        # For Scrapy's own fingerprinter and most URLs, `fingerprint_of` returns the same in a tenth of the time.
        if self._is_plain and request.method == "GET" and not request.body:
            found = fingerprint_of(request.url)
            if found is not None:
                return found
        return self.fingerprinter.fingerprint(request)

    def identify_as(self, identity: str) -> None:
        """Compute fingerprints as other software does, one of `IDENTITIES`; for crawls that were begun with that."""
        self.fingerprinter = ForeignFingerprinter(identity)
        self._is_plain = False


class ForeignFingerprinter(RequestFingerprinterProtocol):
    """Computes the fingerprints of other software.

    Args:
        identity: "scrapy-redis" for those of scrapy-redis 0.8 and newer, "scrapy-2.6" for those of Scrapy before 2.7,
            which older releases of scrapy-redis use.
    """

    def __init__(self, identity: str) -> None:
        self._fingerprint = _FINGERPRINTS[identity]

    def fingerprint(self, request: Request) -> bytes:
        """Return the fingerprint."""
        return self._fingerprint(request)


def _of_scrapy_redis(request: Request) -> bytes:
    parts = {"method": request.method, "url": canonicalize_url(request.url), "body": request.body.hex()}
    return sha1(json.dumps(parts, sort_keys=True).encode()).digest()


def _of_scrapy_26(request: Request) -> bytes:
    return sha1(request.method.encode() + canonicalize_url(request.url).encode() + request.body).digest()


_FINGERPRINTS: Mapping[str, Callable[[Request], bytes]] = dict(
    zip(IDENTITIES, (_of_scrapy_redis, _of_scrapy_26), strict=True)
)


def _is_scrapys(fingerprinter: object) -> bool:
    """Return whether a fingerprinter is Scrapy's own and gives the fingerprints that `fingerprint_of` expects."""
    probe = Request("https://shop.example/p/1?page=2")
    return type(fingerprinter) is RequestFingerprinter and fingerprinter.fingerprint(probe) == fingerprint_of(probe.url)


def fingerprint_of(url: str) -> bytes | None:
    """Return Scrapy's fingerprint of a GET request for a URL that Scrapy doesn't change, None for any other URL."""
    return None if host_of_plain(url) is None else fingerprint_of_plain(url)


def host_of_plain(url: str) -> str | None:
    """Return the host of a URL that Scrapy doesn't change, None for any other URL."""
    match = _URL_AS_IT_IS.fullmatch(url)
    if match is None or not is_sorted(match["query"]) or len(match["host"]) > _LONGEST_HOST:
        return None
    return match["host"]


def is_sorted(query: str | None) -> bool:
    """Return whether the parameters of a query are sorted as in a canonical URL."""
    if query is None or "&" not in query:
        return True
    pairs = [tuple(pair.split("=")) for pair in query[1:].split("&")]
    return pairs == sorted(pairs)


def fingerprint_of_plain(url: str) -> bytes:
    """Return what `scrapy.utils.request.fingerprint` returns for a GET of a URL that Scrapy doesn't change."""
    text = f'{{"body": "", "headers": {{}}, "method": "GET", "url": "{url}"}}'
    return sha1(text.encode(), usedforsecurity=False).digest()


def filters_by_frontier(dupefilter: BaseDupeFilter) -> bool:
    """Return whether the frontier filters duplicates: not if a subclass overrides `request_seen`."""
    return isinstance(dupefilter, DupeFilter) and type(dupefilter).request_seen is RFPDupeFilter.request_seen


class SeenCache:
    """The latest fingerprints that this worker has seen, complete, in about 30 bytes each.

    The fingerprints are spread over sets of up to eight. Each set is one byte string in which a new fingerprint
    replaces the oldest, so the cache holds roughly the latest ones and never more than the limit.

    Args:
        limit: maximum number of fingerprints, 0 for none.
        revisit_s: default number of seconds after which a URL may be fetched again, None for never. The cache answers
            only for a tenth of that time, then the frontier is asked.
        clock: in seconds.
    """

    __slots__ = ("_bytes_per_set", "_clock", "_revisit_s", "_set_count", "_sets", "_width")

    def __init__(
        self, limit: int, revisit_s: int | None = None, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._revisit_s, self._clock = revisit_s, clock
        self._width = FINGERPRINT_BYTES + (0 if revisit_s is None else _TIME.size)
        members = min(_SET_MEMBERS, limit)
        self._set_count = limit // members if members else 1
        self._bytes_per_set = members * self._width
        self._sets = [b""] * self._set_count

    def __len__(self) -> int:
        """Return the number of fingerprints, including expired ones."""
        return sum(map(len, self._sets)) // self._width

    def clear(self) -> None:
        """Remove all, since the frontier may have forgotten some."""
        self._sets = [b""] * self._set_count

    def knows(self, fingerprint: bytes, revisit_s: int | None = None) -> bool:
        """Return whether a fingerprint is in the cache; add it if it isn't.

        Args:
            revisit_s: the request's own time, None for the default.
        """
        if len(fingerprint) != FINGERPRINT_BYTES:
            fingerprint = blake2b(fingerprint, digest_size=FINGERPRINT_BYTES).digest()
        index, width = hash(fingerprint) % self._set_count, self._width
        found = self._sets[index]
        at = found.find(fingerprint)
        while at > 0 and at % width:
            at = found.find(fingerprint, at + 1)
        if self._revisit_s is None:
            if at >= 0:
                return True
        else:
            now_s, revisit_s = int(self._clock()), self._revisit_s if revisit_s is None else revisit_s
            latest_s = _FOREVER if revisit_s >= NEVER_S else now_s + revisit_s // 10
            # An entry with a later expiry was stored for a longer revisit time, and may be too old for this one.
            if at >= 0 and now_s < _TIME.unpack_from(found, at + FINGERPRINT_BYTES)[0] <= latest_s:
                return True
            fingerprint += _TIME.pack(latest_s)
        self._sets[index] = (fingerprint + found)[: self._bytes_per_set]
        return False
