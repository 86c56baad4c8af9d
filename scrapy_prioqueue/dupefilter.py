"""Scrapy's DupeFilter interface, and the cache that answers most duplicates without asking the frontier."""

from __future__ import annotations

from scrapy import Request
from scrapy.dupefilters import BaseDupeFilter, RFPDupeFilter


class DupeFilter(RFPDupeFilter):
    """Filters duplicates across all workers of a frontier, under `scrapy_prioqueue.Scheduler`.

    The scheduler takes the fingerprint from here and lets the frontier look it up and mark it in one step with storing
    the request. Under any other scheduler this is Scrapy's own filter, for one process, with `JOBDIR` support.
    """

    def fingerprint(self, request: Request) -> bytes | None:
        """Return what identifies a request, or None for one that is never a duplicate.

        By default that is the fingerprint of `REQUEST_FINGERPRINTER_CLASS`; override it for identities of your own.
        """
        return self.fingerprinter.fingerprint(request)


def filters_by_frontier(dupefilter: BaseDupeFilter) -> bool:
    """Tell whether the frontier does the filtering; not where a subclass decides by itself in `request_seen`."""
    return isinstance(dupefilter, DupeFilter) and type(dupefilter).request_seen is RFPDupeFilter.request_seen


class SeenCache:
    """The newest fingerprints that this worker has come across.

    Args:
        limit: how many are kept; each takes about 150 bytes.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._fingerprints: dict[bytes, None] = {}

    def __contains__(self, fingerprint: bytes) -> bool:
        return fingerprint in self._fingerprints

    def __len__(self) -> int:
        return len(self._fingerprints)

    def add(self, fingerprint: bytes) -> None:
        """Remember a fingerprint; the oldest is forgotten for it."""
        if len(self._fingerprints) >= self._limit:
            del self._fingerprints[next(iter(self._fingerprints))]
        self._fingerprints[fingerprint] = None
