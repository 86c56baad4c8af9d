"""Start requests: their marks, and the hold, during which a worker processes only its own requests."""

from __future__ import annotations

from array import array
from collections.abc import Callable

from scrapy import Request

from scrapy_prioqueue.engine import Engine
from scrapy_prioqueue.queues.kept import KeptQueue
from scrapy_prioqueue.queues.lineages import Lineages
from scrapy_prioqueue.queues.reports import Reports

MARK_BYTES = 16
"""Number of bytes of the fingerprint in a start mark; the occurrence follows."""

_ONCE_LENGTH = MARK_BYTES + 5
"""Longer than a start mark, to distinguish the two."""

MOST_OCCURRENCES = 100_000
"""Number of unfiltered start requests whose occurrences are counted exactly."""

_SHARED_COUNTS = 2**16


def start_mark(fingerprint: bytes, occurrence: int = 1) -> bytes:
    """Return the mark of an unfiltered request of `start()`, the n-th with this fingerprint."""
    return fingerprint[:MARK_BYTES] + occurrence.to_bytes(4, "big")


def once_mark(fingerprint: bytes) -> bytes:
    """Return the mark of a request that is fetched once per crawl and not marked as seen."""
    return fingerprint[:MARK_BYTES].ljust(_ONCE_LENGTH, b"r")


def is_once_mark(mark: bytes | None) -> bool:
    """Return whether a mark is one of `once_mark`, not that of a start request."""
    return mark is not None and len(mark) == _ONCE_LENGTH


class StartRequests:
    """Follows `start()`, and marks its unfiltered requests with fingerprint and occurrence.

    Filtered requests need no mark, since their fingerprints are enough to store them once.

    Memory is bounded: after the first `MOST_OCCURRENCES` requests, several share a counter. Their marks still differ,
    and are the same in each run if `start()` yields the same requests.

    Args:
        fingerprint_of: Scrapy's fingerprinter.
        are_marked: False to store each request, whichever worker yields it.
    """

    def __init__(self, fingerprint_of: Callable[[Request], bytes], *, are_marked: bool = True) -> None:
        self._fingerprint_of = fingerprint_of
        self._are_marked = are_marked
        self._latest: object = None
        self._occurrences: dict[bytes, int] = {}
        self._shared = array("L")
        self.are_coming = True
        self.are_lasting = False
        """`start()` has lasted longer than a second, so this is reported to the frontier: more requests may come."""
        self.are_missing = False

    def note(self, yielded: object) -> None:
        """Note the request that `start()` has just yielded; it is scheduled next."""
        self._latest = yielded

    def is_latest(self, request: Request) -> bool:
        """Return whether `start()` has just yielded this request."""
        return request is self._latest

    def end(self, *, is_used_up: bool) -> None:
        """Note that `start()` has ended; if it has raised, its remaining requests are missing."""
        self.are_coming = False
        self.are_missing = self.are_missing or not is_used_up
        self._latest = None
        self._occurrences.clear()
        self._shared = array("L")

    def mark(self, request: Request, *, is_filtered: bool) -> bytes | None:
        """Return the mark of a start request; None for other and for filtered requests, and if marks are off."""
        if request is not self._latest:
            return None
        self._latest = None
        if is_filtered or not self._are_marked:
            return None
        key = self._fingerprint_of(request)[:MARK_BYTES]
        return start_mark(key, self._occurrence(key))

    def _occurrence(self, key: bytes) -> int:
        if key in self._occurrences or len(self._occurrences) < MOST_OCCURRENCES:
            occurrence = self._occurrences[key] = self._occurrences.get(key, 0) + 1
            return occurrence
        if not self._shared:
            self._shared.extend([0] * _SHARED_COUNTS)
        index = int.from_bytes(key[:4], "big") % _SHARED_COUNTS
        self._shared[index] += 1
        return self._shared[index]


OWN_META = "prioqueue_own"
"""Key in `meta`: during a hold this request is the worker's own."""


class Holding:
    """Distinguishes a worker's own requests from shared ones during its hold (`PRIOQUEUE_HOLD_UNTIL_START`).

    Args:
        is_on: whether the hold has not ended yet.
    """

    def __init__(
        self,
        starts: StartRequests,
        kept: KeptQueue,
        lineages: Lineages,
        engine: Engine,
        reports: Reports,
        *,
        is_on: bool,
    ) -> None:
        self._starts = starts
        self._kept = kept
        self._lineages = lineages
        self._engine = engine
        self._reports = reports
        self.is_on = is_on

    def takes(self, request: Request, page: Request | None) -> bool:
        """Return whether a request is this worker's own, so that it is neither shared nor filtered.

        Args:
            page: page whose callback has yielded it; None if unknown.
        """
        changes_something = request.dont_filter or request.method != "GET" or bool(request.meta.get(OWN_META))
        return self._starts.is_latest(request) or changes_something or self._lineages.is_own(request, page)

    def look(self) -> None:
        """End the hold if none of the worker's own requests is left.

        If `start()` has raised, its own requests may be incomplete, so the spider is closed instead.
        """
        if not self.is_on or self._starts.are_coming or self._kept.unfinished:
            return
        if not self._starts.are_missing:
            self.is_on = False
            self._reports.hold_has_ended()
        elif not self._engine.is_closing:
            self._reports.hold_has_failed()
            self._engine.close_spider("prioqueue_start_failed")
