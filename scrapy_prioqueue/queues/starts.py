"""Start requests: how each is recognised, and how a worker does its own before shared ones."""

from __future__ import annotations

from array import array
from collections.abc import Callable

from scrapy import Request

from scrapy_prioqueue.engine import Engine
from scrapy_prioqueue.queues.kept import KeptQueue
from scrapy_prioqueue.queues.lineages import Lineages
from scrapy_prioqueue.queues.reports import Reports

MARK_BYTES = 16
"""How much of a fingerprint a start mark carries; its occurrence follows."""

_ONCE_LENGTH = MARK_BYTES + 5
"""Start marks are shorter."""

MOST_OCCURRENCES = 100_000
"""Unfiltered requests of `start()` whose occurrences are counted one by one."""

_SHARED_COUNTS = 2**16


def once_mark(fingerprint: bytes) -> bytes:
    """Return the mark of a request that is fetched once in a crawl and not recorded."""
    return fingerprint[:MARK_BYTES].ljust(_ONCE_LENGTH, b"r")


def is_once_mark(mark: bytes | None) -> bool:
    """Tell such a mark from that of a start request."""
    return mark is not None and len(mark) == _ONCE_LENGTH


class StartRequests:
    """Follows `start()`, and marks its unfiltered requests with fingerprint and occurrence.

    Filtered ones need no mark: their fingerprint is enough to store them once.

    `start()` may yield any number of them in the memory of some: after the first `MOST_OCCURRENCES` several requests
    share a count. Marks differ still, and are the same in each run as long as `start()` yields the same.

    Args:
        fingerprint_of: Scrapy's fingerprinter.
        are_marked: False where each request counts, whoever yields it.
    """

    def __init__(self, fingerprint_of: Callable[[Request], bytes], *, are_marked: bool = True) -> None:
        self._fingerprint_of = fingerprint_of
        self._are_marked = are_marked
        self._latest: object = None
        self._occurrences: dict[bytes, int] = {}
        self._shared = array("L")
        self.are_coming = True
        self.are_lasting = False
        """`start()` wasn't read to its end within a second, which is worth a note to the frontier."""
        self.are_missing = False

    def note(self, yielded: object) -> None:
        """Remember the request that `start()` has just yielded; it is scheduled next."""
        self._latest = yielded

    def is_latest(self, request: Request) -> bool:
        """Tell whether `start()` has just yielded this request."""
        return request is self._latest

    def end(self, *, is_used_up: bool) -> None:
        """Nothing more comes from `start()`; if it has raised, the rest of it is missing."""
        self.are_coming = False
        self.are_missing = self.are_missing or not is_used_up
        self._latest = None
        self._occurrences.clear()
        self._shared = array("L")

    def mark(self, request: Request, *, is_filtered: bool) -> bytes | None:
        """Return the mark of a start request, None for any other, for filtered ones, and where each counts."""
        if request is not self._latest:
            return None
        self._latest = None
        if is_filtered or not self._are_marked:
            return None
        key = self._fingerprint_of(request)[:MARK_BYTES]
        return key + self._occurrence(key).to_bytes(4, "big")

    def _occurrence(self, key: bytes) -> int:
        if key in self._occurrences or len(self._occurrences) < MOST_OCCURRENCES:
            occurrence = self._occurrences[key] = self._occurrences.get(key, 0) + 1
            return occurrence
        if not self._shared:
            self._shared.extend([0] * _SHARED_COUNTS)
        place = int.from_bytes(key[:4], "big") % _SHARED_COUNTS
        self._shared[place] += 1
        return self._shared[place]


OWN_META = "prioqueue_own"
"""Key in `meta`: while the worker keeps shared requests back, this one is its own."""


class Holding:
    """Tells a worker's own requests from shared ones while those are kept back (`PRIOQUEUE_HOLD_UNTIL_START`).

    Args:
        is_on: requests are kept back; until `look` finds that nothing of the worker's own is left.
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
        """Tell whether a request is this worker's own: not shared, not filtered.

        Args:
            page: whose callback has yielded it, None if that isn't known.
        """
        if not self.is_on:
            return False
        changes_something = request.dont_filter or request.method != "GET" or bool(request.meta.get(OWN_META))
        return self._starts.is_latest(request) or changes_something or self._lineages.is_own(request, page)

    def look(self) -> None:
        """End it if nothing of the worker's own is left.

        Where `start()` has raised, nobody knows whether all is done that was to be done first: the spider is closed.
        """
        if not self.is_on or self._starts.are_coming or self._kept.is_busy:
            return
        if not self._starts.are_missing:
            self.is_on = False
            self._reports.hold_has_ended()
        elif not self._engine.is_closing:
            self._reports.hold_has_failed()
            self._engine.close_spider("prioqueue_start_failed")
