"""The hold: a worker takes no shared requests until its own start requests, and those they lead to, are done."""

from __future__ import annotations

from scrapy import Request

from scrapy_prioqueue.engine import Engine
from scrapy_prioqueue.queues.lineages import Lineages
from scrapy_prioqueue.queues.own import OwnQueue
from scrapy_prioqueue.queues.reports import Reports
from scrapy_prioqueue.queues.starts import StartRequests

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
        own: OwnQueue,
        lineages: Lineages,
        engine: Engine,
        reports: Reports,
        *,
        is_on: bool,
    ) -> None:
        self._starts = starts
        self._own = own
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
        if not self.is_on or self._starts.are_coming or self._own.is_busy:
            return
        if not self._starts.are_missing:
            self.is_on = False
            self._reports.hold_has_ended()
        elif not self._engine.is_closing:
            self._reports.hold_has_failed()
            self._engine.close_spider("prioqueue_start_failed")
