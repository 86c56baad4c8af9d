"""What the project adds to every request on its way out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shop.tiers import tier_in

if TYPE_CHECKING:
    from scrapy import Request, Spider
    from scrapy.crawler import Crawler
    from typing_extensions import Self


class SignRequests:
    """Tells the site who asks and in which tier, so that its access log can be the judge of the crawl.

    Args:
        worker: id of this worker.
    """

    def __init__(self, worker: str) -> None:
        self._worker = worker

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        return cls(crawler.settings["PRIOQUEUE_WORKER_ID"])

    def process_request(self, request: Request, spider: Spider | None = None) -> None:
        # Set anew each time: a retry carries the headers of the worker that asked before.
        request.headers["X-Worker"] = self._worker
        request.headers["X-Tier"] = tier_in(request.meta)
