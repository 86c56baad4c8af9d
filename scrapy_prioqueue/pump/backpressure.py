"""Backpressure: what this worker doesn't start, read or send while the server, or the crawl, takes no more."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

from twisted.internet.defer import Deferred

from scrapy_prioqueue.errors import CrawlEnded, FrontierFull, RequestTooLarge
from scrapy_prioqueue.frontier.base import Exchanged, Frontier, Orders, Push
from scrapy_prioqueue.frontier.operations import payload_size
from scrapy_prioqueue.frontier.policy import Policy
from scrapy_prioqueue.pump.host import Host, PumpConfig
from scrapy_prioqueue.pump.outage import Failures
from scrapy_prioqueue.pump.outbox import Entry, Outbox
from scrapy_prioqueue.pump.timing import FULL_RETRY_S

logger = logging.getLogger(__name__)

Tag = TypeVar("Tag")


class Rejections(Generic[Tag]):
    """Follows what the frontier rejects: a full server is tried again, a crawl that is over is not.

    Args:
        frontier: learns which payloads are too large for it.
        host: where rejected requests are counted.
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

    def note(self, rejection: Exception | None, *, had_requests: bool) -> None:
        """Take note of the answer to the newest batches.

        Args:
            rejection: why one was not applied, None if all were.
            had_requests: whether there were requests among them, so that a full server would have rejected.
        """
        if isinstance(rejection, RequestTooLarge):
            self._note_too_large()
            return
        if isinstance(rejection, FrontierFull):
            self._note_full(rejection)
        elif self.is_full and had_requests:
            self._note_room()
        # Whatever the reason, asking again at once would get the same answer.
        self.must_wait = self.is_full or (rejection is not None and not isinstance(rejection, CrawlEnded))
        if rejection is not None:
            self.retry_at = self._clock() + FULL_RETRY_S
        if isinstance(rejection, CrawlEnded):
            self._abandon(rejection)
        elif rejection is not None and not isinstance(rejection, FrontierFull):
            logger.error("%s", rejection)

    def _note_too_large(self) -> None:
        for entry in take_too_large(self._frontier, self._outbox, self._host):
            assert isinstance(entry.operation, Push)
            self._host.too_large(entry.operation, entry.tag, entry.parents)

    def _note_full(self, rejection: FrontierFull) -> None:
        self._outbox.throttle()
        self.must_look_up = True
        self._host.count("prioqueue/exchange/full")
        if not self.is_full:
            self.is_full = True
            logger.warning(
                "%s; new requests, and the acks of the pages on which they were found, wait in this worker until"
                " there is room. Meanwhile it crawls stored requests, which frees memory",
                rejection,
            )

    def _note_room(self) -> None:
        if self._outbox.is_throttled and self._outbox.pushes:
            # It has taken some, so more are sent at once.
            self.retry_at = self._clock()
        else:
            self.is_full = False
            logger.info("The frontier stores requests again")

    def _abandon(self, rejection: CrawlEnded) -> None:
        # Nothing waits for room any more; `start()` is read to its end, though nobody takes what comes.
        self.is_full = self.must_wait = False
        lost = self._outbox.abandon()
        if lost:
            logger.warning("%d requests were not stored: %s", lost, rejection)
            self._host.count("prioqueue/rejected", lost)


def take_too_large(frontier: Frontier, outbox: Outbox[Tag], host: Host[Tag]) -> Sequence[Entry[Tag]]:
    """Take the requests out of the outbox that the frontier has rejected for their size, as far as they are found."""
    entries, claims = outbox.take_too_large(frontier.payload_limit)
    operations = [*(entry.operation for entry in entries), *(claim.operation for claim in claims)]
    for operation in operations:
        frontier.note_too_large(payload_size(operation))
    for claim in claims:
        host.settled(claim)
    return entries


class StartGate:
    """Closed while too much waits.

    Args:
        has_room: asked whether the gate may open.
    """

    def __init__(self, has_room: Callable[[], bool]) -> None:
        self._has_room = has_room
        self._waiters: list[Deferred[None]] = []

    @property
    def is_open(self) -> bool:
        """There is room for more."""
        return self._has_room()

    def wait(self) -> Deferred[None] | None:
        """Return None if the gate is open, else a Deferred that fires when it opens."""
        if self._has_room():
            return None
        waiter: Deferred[None] = Deferred()
        self._waiters.append(waiter)
        return waiter

    def look(self) -> None:
        """Open the gate if it may be opened by now."""
        if self._waiters and self._has_room():
            waiters, self._waiters = self._waiters, []
            for waiter in waiters:
                waiter.callback(None)


OUTBOX_BYTES = 32 * 2**20
"""Payloads of so many bytes in all count as `PRIOQUEUE_OUTBOX_LIMIT` requests, however few they are."""


class Backpressure:
    """Knows how much may wait in the outbox while the server takes nothing.

    From the limit on, one request at a time is started, so that pages that lead nowhere make room on a full server;
    from twice the limit on none, so that memory stays bounded.

    Args:
        config: says how many requests may be in the outbox, and whether those of `start()` come there.
        policy: that of this worker.
    """

    def __init__(
        self, outbox: Outbox[Any], rejections: Rejections[Any], failures: Failures, config: PumpConfig, policy: Policy
    ) -> None:
        self._policy = policy
        self._counts_starts = config.counts_starts
        self._outbox = outbox
        self.rejections = rejections
        self._failures = failures
        self._limit = config.outbox_limit
        self._has_warned = False
        self.must_ask = self._has_own_limits = policy.limits_slots or policy.budgets is not None
        """There are limits or budgets, so that requests are asked for ahead of their time."""
        self.orders = Orders()
        self.pending = 0
        """Requests that wait in the frontier, as far as the last answer tells."""
        self._held_back = 0

    def note_answer(self, answer: Exchanged) -> None:
        """Take note of what the frontier says, but for its orders."""
        self.must_ask = answer.must_ask or self._has_own_limits
        self.pending, self._held_back = answer.depth.pending, answer.held_back

    @property
    def is_stuck(self) -> bool:
        """The server takes no requests."""
        return self.rejections.is_full or self._failures.is_on

    def places(self, running: int) -> float:
        """Return how many more requests may be started, as far as this is about what waits.

        Args:
            running: how many are being worked on.
        """
        if not self.is_stuck or not self._is_full(1):
            self._has_warned = False
            return float("inf")
        self._warn()
        return 0 if self._is_full(2) else max(0, 1 - running)

    def _is_full(self, times: int) -> bool:
        """Tell whether so many times as much waits as may."""
        return self._outbox.pushes >= times * self._limit or self._outbox.pushed_bytes >= times * OUTBOX_BYTES

    def may_start(self, running: int) -> bool:
        """Tell whether anything may be started."""
        return not (self.orders.is_paused or self._failures.keeps_from_starting) and self.places(running) > 0

    def has_room_for_starts(self, *, has_work: bool, is_starving: bool = False) -> bool:
        """Tell whether `start()` may be read further.

        Args:
            has_work: there is something else to do, here or anywhere. Without it a flood, perhaps of the server's
                memory, would never end.
            is_starving: this worker has free places, and the frontier nothing for them.
        """
        if self.orders.is_paused or self.rejections.is_full or self._is_full(1):
            return False
        if not (self._counts_starts and has_work):
            return True
        return not self._is_at_limit() and (is_starving or not self._is_high())

    def _is_high(self) -> bool:
        high_water = self._policy.high_water
        servable = self.pending - self._held_back + self._outbox.pushes
        return self.orders.is_flooded or 0 < high_water <= servable

    def _is_at_limit(self) -> bool:
        return self.orders.is_at_limit or 0 < self._policy.pending_limit <= self.pending + self._outbox.pushes

    def _warn(self) -> None:
        if not self._has_warned:
            self._has_warned = True
            logger.warning(
                "%d requests of %d kB wait to be stored (PRIOQUEUE_OUTBOX_LIMIT): this worker starts one page at"
                " a time until the server takes them, and none at twice that limit",
                self._outbox.pushes,
                self._outbox.pushed_bytes // 1000,
            )
