"""Where requests came from: noted when they are stored, told to the spider when they are handed out."""

from __future__ import annotations

from time import time
from weakref import WeakKeyDictionary

from scrapy import Request

from scrapy_prioqueue.codec.lineage import NOT_KNOWN, Found, Lineage
from scrapy_prioqueue.frontier.base import Lease
from scrapy_prioqueue.tiers import TierPolicy

LINEAGE_META = "prioqueue"
"""Key in `meta` of a request that was handed out, and of its response: where it came from, read-only; never stored."""


class Lineages:
    """Knows how this worker's requests were found.

    Args:
        worker: id of this worker.
    """

    def __init__(self, tiers: TierPolicy, worker: str) -> None:
        self._tiers = tiers
        self._worker = worker
        self._kept: WeakKeyDictionary[Request, Found] = WeakKeyDictionary()

    def found(self, request: Request, page: Request | None) -> Found:
        """Return how a request that is to be stored was found.

        Args:
            page: whose callback has yielded it, None if that isn't known.
        """
        lineage = request.meta.get(LINEAGE_META)
        # A redirect, a retry: middlewares copy `meta`, and callbacks that retry do so with the same URL.
        is_same = page is None or page.url == request.url
        if is_same and isinstance(lineage, Lineage):
            return Found(lineage["source"], lineage["discovered_at"])
        return Found(None if page is None else page.url, int(time()))

    def keep(self, request: Request, page: Request | None) -> None:
        """Note how a request was found that stays in this process."""
        self._kept[request] = self.found(request, page)

    def tell(self, request: Request, lease: Lease, found: Found) -> None:
        """Put into the `meta` of a request that is handed out where it came from."""
        self._put(request, lease.lease_id, lease.rank, lease.attempt, found)

    def tell_kept(self, request: Request) -> None:
        """Do the same for a request that was kept in this process."""
        self._put(request, None, self._tiers.rank(request), 1, self._kept.get(request, NOT_KNOWN))

    def _put(self, request: Request, lease_id: int | None, rank: int, attempt: int, found: Found) -> None:
        request.meta[LINEAGE_META] = Lineage(
            id=lease_id,
            tier=self._tiers.name_of(rank),
            attempt=attempt,
            discovered_at=found.at_s,
            source=found.source,
            leased_at=time(),
            worker=self._worker,
        )
