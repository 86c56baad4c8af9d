"""What it means when the frontier does not take a batch."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from scrapy_prioqueue.errors import CrawlEnded, FrontierFull, RequestTooLarge
from scrapy_prioqueue.frontier.base import Frontier, Push
from scrapy_prioqueue.frontier.operations import payload_size
from scrapy_prioqueue.pump.host import Host
from scrapy_prioqueue.pump.outbox import Entry, Outbox
from scrapy_prioqueue.pump.timing import FULL_RETRY_S

logger = logging.getLogger(__name__)

Tag = TypeVar("Tag")


class Refusals(Generic[Tag]):
    """Follows the refusals: a full server is tried again, a crawl that is over is not.

    Args:
        frontier: learns which payloads are too large for it.
        host: where refused requests are counted.
        outbox: emptied when there is no crawl left to tell it to.
        clock: monotonic, in seconds.
    """

    def __init__(self, frontier: Frontier, host: Host[Tag], outbox: Outbox[Tag], clock: Callable[[], float]) -> None:
        self._frontier = frontier
        self._host = host
        self._outbox = outbox
        self._clock = clock
        self.is_full = False
        self.must_wait = False
        self.retry_at = clock()
        self.must_look_up = False
        """A full server is to be asked which of the requests that wait it has seen, so that it takes those."""

    def may_send_requests(self) -> bool:
        """Tell whether the frontier may take requests now."""
        return not self.is_full or self.retry_at <= self._clock()

    def note(self, refusal: Exception | None, *, had_requests: bool) -> None:
        """Take note of the answer to the newest batches.

        Args:
            refusal: why one was not applied, None if all were.
            had_requests: whether there were requests among them, so that a full server would have refused.
        """
        if isinstance(refusal, RequestTooLarge):
            self._note_too_large()
            return
        if isinstance(refusal, FrontierFull):
            self._note_full(refusal)
        elif self.is_full and had_requests:
            self._note_room()
        # Whatever the reason, asking again at once would get the same answer.
        self.must_wait = self.is_full or (refusal is not None and not isinstance(refusal, CrawlEnded))
        if refusal is not None:
            self.retry_at = self._clock() + FULL_RETRY_S
        if isinstance(refusal, CrawlEnded):
            self._abandon(refusal)
        elif refusal is not None and not isinstance(refusal, FrontierFull):
            logger.error("%s", refusal)

    def _note_too_large(self) -> None:
        for entry in take_too_large(self._frontier, self._outbox, self._host):
            assert isinstance(entry.operation, Push)
            self._host.too_large(entry.operation, entry.tag, entry.parents)

    def _note_full(self, refusal: FrontierFull) -> None:
        self._outbox.throttle()
        self.must_look_up = True
        self._host.count("prioqueue/exchange/full")
        if not self.is_full:
            self.is_full = True
            logger.warning(
                "%s; new requests, and the acks of the pages on which they were found, wait in this worker until"
                " there is room. Meanwhile it crawls stored requests, which frees memory",
                refusal,
            )

    def _note_room(self) -> None:
        if self._outbox.is_throttled and self._outbox.pushes:
            # It has taken some, so more are sent at once.
            self.retry_at = self._clock()
        else:
            self.is_full = False
            logger.info("The frontier stores requests again")

    def _abandon(self, refusal: CrawlEnded) -> None:
        # Nothing waits for room any more; `start()` is read to its end, though nobody takes what comes.
        self.is_full = self.must_wait = False
        lost = self._outbox.abandon()
        if lost:
            logger.warning("%d requests were not stored: %s", lost, refusal)
            self._host.count("prioqueue/refused", lost)


def take_too_large(frontier: Frontier, outbox: Outbox[Tag], host: Host[Tag]) -> Sequence[Entry[Tag]]:
    """Take the requests out of the outbox that the frontier has refused for their size, as far as they are found."""
    entries, claims = outbox.take_too_large(frontier.payload_limit)
    operations = [*(entry.operation for entry in entries), *(claim.operation for claim in claims)]
    for operation in operations:
        frontier.note_too_large(payload_size(operation))
    for claim in claims:
        host.settled(claim)
    return entries
