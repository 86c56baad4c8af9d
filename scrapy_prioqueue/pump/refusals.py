"""What it means when the frontier does not take a batch."""

from __future__ import annotations

import logging
from typing import Generic, TypeVar

from scrapy_prioqueue.errors import CrawlEnded, FrontierFull
from scrapy_prioqueue.pump.host import Host
from scrapy_prioqueue.pump.outbox import Outbox

logger = logging.getLogger(__name__)

Tag = TypeVar("Tag")


class Refusals(Generic[Tag]):
    """Follows the refusals: a full server is tried again, a crawl that is over is not.

    Args:
        host: where refused requests are counted.
        outbox: emptied when there is no crawl left to tell it to.
    """

    def __init__(self, host: Host[Tag], outbox: Outbox[Tag]) -> None:
        self._host = host
        self._outbox = outbox
        self.must_wait = False
        self._is_full = False

    def note(self, refusal: Exception | None) -> None:
        """Take note of the answer to the newest batches, None if all were applied."""
        is_full = isinstance(refusal, FrontierFull)
        if is_full and not self._is_full:
            logger.warning("%s; requests, and the acks behind them, wait here until there is room", refusal)
        elif self._is_full and not is_full:
            logger.info("The frontier takes requests again")
        self._is_full = is_full
        # Whatever the reason, asking again at once would get the same answer.
        self.must_wait = refusal is not None and not isinstance(refusal, CrawlEnded)
        if isinstance(refusal, CrawlEnded):
            self._abandon(refusal)
        elif refusal is not None and not is_full:
            logger.error("%s", refusal)

    def _abandon(self, refusal: CrawlEnded) -> None:
        lost = self._outbox.abandon()
        if lost:
            logger.warning("%d requests found here were not stored: %s", lost, refusal)
            self._host.count("prioqueue/refused", lost)
