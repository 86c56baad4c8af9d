"""Lineages: where requests came from. They are stored with requests, and set in `meta` for the engine."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from time import time
from weakref import WeakKeyDictionary

from scrapy import Request

from scrapy_prioqueue.codec.lineage import NOT_KNOWN, Found, Lineage
from scrapy_prioqueue.frontier.base import Lease
from scrapy_prioqueue.pump.leases import FoundOn
from scrapy_prioqueue.pump.outbox import HeldRequest
from scrapy_prioqueue.tiers import TierPolicy


def is_redirect_to_itself(
    request: Request, in_progress: Iterable[Request], fingerprint: Callable[[Request], bytes | None]
) -> bool:
    """Return whether a page redirects to itself, for example after setting a cookie.

    Such a redirect is still the same request, and no duplicate. A child that copies `meta` has as many redirects as its
    page; a redirect has one more.
    """
    redirects, urls = request.meta.get("redirect_times"), request.meta.get("redirect_urls")
    if not redirects or not urls:
        return False
    return any(
        original.url == urls[-1]
        and original.meta.get("redirect_times", 0) + 1 == redirects
        and fingerprint(original) == fingerprint(request)
        for original in in_progress
    )


LINEAGE_META = "prioqueue"
"""Key in `meta` of a request in progress and of its response: where it came from. Read-only, never stored."""


CONFIDENCE_META = "prioqueue_confidence"
"""Key in `meta` with the confidence in the data of the page, from 0 to 100."""

DONT_RECORD_META = "prioqueue_dont_record"
"""Key in `meta`: fetch the request once per crawl, without marking it as seen."""


class Lineages:
    """Tracks how this worker's requests were found.

    Args:
        worker: id of this worker.
    """

    def __init__(self, tiers: TierPolicy, worker: str) -> None:
        self._tiers = tiers
        self._worker = worker
        self._kept: WeakKeyDictionary[Request, Found] = WeakKeyDictionary()

    def found(self, request: Request, page: Request | None) -> Found:
        """Return the lineage of a request, to store it with the request.

        Args:
            page: page whose callback has yielded it; None if unknown.
        """
        lineage = _inherited(request, page)
        if lineage is not None:
            return Found(lineage["source"], lineage["discovered_at"])
        return Found(None if page is None else page.url, int(time()))

    def is_unrecorded(self, request: Request, page: Request | None) -> bool:
        """Return whether a request must not be marked as seen, because of its own or an inherited `meta`."""
        lineage = _inherited(request, page)
        if lineage is not None and lineage.is_unrecorded:
            request.meta.setdefault(DONT_RECORD_META, True)
        return bool(request.meta.get(DONT_RECORD_META))

    def is_own(self, request: Request, page: Request | None) -> bool:
        """Return whether a request is a redirect or retry of one of the worker's own requests."""
        lineage = _inherited(request, page)
        return lineage is not None and lineage.is_own

    def kept(self, request: Request) -> Found:
        """Return the lineage of a request that stays in this process, as noted by `keep`."""
        return self._kept.get(request, NOT_KNOWN)

    def keep(self, request: Request, page: Request | None) -> None:
        """Note the lineage of a request that stays in this process."""
        self._kept[request] = self.found(request, page)

    def mark(self, request: Request, lease: Lease, found: Found) -> None:
        """Set the lineage in `meta` of a leased request."""
        self._put(request, lease.lease_id, lease.rank, lease.attempt, found)

    def mark_kept(self, request: Request, roots: Sequence[HeldRequest] | None = None, *, is_own: bool) -> None:
        """Set the lineage in `meta` of a request that has stayed in this process."""
        lineage = self._put(request, None, self._tiers.rank(request), 1, self.kept(request))
        lineage.is_own, lineage.roots = is_own, roots

    def origin(self, request: Request) -> FoundOn:
        """Return the lease id or roots of the request that a redirect or retry comes from; None if unknown."""
        lineage = _inherited(request, None)
        return None if lineage is None else lineage["id"] if lineage.roots is None else lineage.roots

    def _put(self, request: Request, lease_id: int | None, rank: int, attempt: int, found: Found) -> Lineage:
        meta = request.meta
        meta[LINEAGE_META] = lineage = Lineage(
            id=lease_id,
            tier=self._tiers.name_of(rank),
            attempt=attempt,
            discovered_at=found.at_s,
            source=found.source,
            leased_at=time(),
            worker=self._worker,
        )
        # Children that copy `meta` must be marked as seen.
        if meta.pop(DONT_RECORD_META, False):
            lineage.is_unrecorded = True
        return lineage


def is_again(request: Request, page: Request) -> bool:
    """Return whether a request found on a page is that page again, as in a retry by a callback."""
    return (request.url, request.method, request.body) == (page.url, page.method, page.body)


def _inherited(request: Request, page: Request | None) -> Lineage | None:
    """Return the lineage that a redirect or retry has copied from its original, None for any other request."""
    lineage = request.meta.get(LINEAGE_META)
    if lineage is None:
        return None
    # Middlewares copy `meta`, and so do callbacks that retry the same request.
    is_same = page is None or is_again(request, page)
    return lineage if is_same and isinstance(lineage, Lineage) else None
