"""Backpressure: starting, reading and sending less while the server, or the crawl, accepts no more requests."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

from twisted.internet.defer import Deferred

from scrapy_prioqueue.errors import CrawlEnded, FrontierFull, RequestTooLarge
from scrapy_prioqueue.frontier.base import Exchanged, Frontier, Orders, Push
from scrapy_prioqueue.frontier.operations import payload_size
from scrapy_prioqueue.frontier.policy import Policy
from scrapy_prioqueue.logs import CrawlLog, event
from scrapy_prioqueue.printable import counted
from scrapy_prioqueue.pump.delegate import Delegate, PumpConfig
from scrapy_prioqueue.pump.outage import Failures
from scrapy_prioqueue.pump.outbox import Entry, Outbox
from scrapy_prioqueue.pump.timing import FULL_RETRY_S
from scrapy_prioqueue.stats import EXCHANGE_FULL_STAT, REJECTED_STAT

logger = logging.getLogger(__name__)

Tag = TypeVar("Tag")


class Rejections(Generic[Tag]):
    """Handles rejected batches: repeats them if the server is full, drops them if the crawl has ended.

    Args:
        frontier: remembers which payload sizes are too large.
        delegate: counts rejected requests.
        outbox: emptied if the crawl has ended.
        clock: monotonic, in seconds.
    """

    def __init__(
        self, frontier: Frontier, delegate: Delegate[Tag], outbox: Outbox[Tag], clock: Callable[[], float]
    ) -> None:
        self._frontier = frontier
        self.log = CrawlLog(logger, delegate.spider)
        self._delegate = delegate
        self._outbox = outbox
        self._clock = clock
        self.is_full = False
        self._full_since = clock()
        self.must_wait = False
        self.retry_at = clock()
        self.must_look_up = False
        """Ask the full server next which of the waiting requests it has seen: it can accept those."""

    def may_send_requests(self) -> bool:
        """Return whether new requests may be sent now."""
        return not self.is_full or self.retry_at <= self._clock()

    def note(self, rejection: Exception | None, *, had_requests: bool) -> None:
        """Process the answer to the newest batches.

        Args:
            rejection: why a batch was not applied, None if all were applied.
            had_requests: whether they contained requests; only then would a full server have rejected them.
        """
        if isinstance(rejection, RequestTooLarge):
            self._note_too_large()
            return
        if isinstance(rejection, FrontierFull):
            self._note_full(rejection)
        elif self.is_full and had_requests:
            self._note_room()
        # Sending at once again would get the same rejection, whatever the reason.
        self.must_wait = self.is_full or (rejection is not None and not isinstance(rejection, CrawlEnded))
        if rejection is not None:
            self.retry_at = self._clock() + FULL_RETRY_S
        if isinstance(rejection, CrawlEnded):
            self._abandon(rejection)
        elif rejection is not None and not isinstance(rejection, FrontierFull):
            self.log.error("%s", rejection)

    def _note_too_large(self) -> None:
        for entry in take_too_large(self._frontier, self._outbox, self._delegate):
            assert isinstance(entry.operation, Push)
            self._delegate.too_large(entry.operation, entry.tag, entry.parents)

    def _note_full(self, rejection: FrontierFull) -> None:
        self._outbox.throttle()
        self.must_look_up = True
        self._delegate.count(EXCHANGE_FULL_STAT)
        if not self.is_full:
            self.is_full, self._full_since = True, self._clock()
            self._delegate.degraded("full", str(rejection))
            self.log.warning(
                "%s; new requests, and the acks of the pages on which they were found, wait in this worker until"
                " there is room. Meanwhile it crawls stored requests, which frees memory",
                rejection,
                extra=event("frontier_degraded", cause="full"),
            )

    def _note_room(self) -> None:
        if self._outbox.is_throttled and self._outbox.pushes:
            # The server has accepted some requests, so the next, larger batch is sent at once.
            self.retry_at = self._clock()
        else:
            after_s = self._end_full()
            extra = event("frontier_recovered", cause="full", after_s=after_s)
            self.log.info("The frontier stores requests again", extra=extra)

    def _end_full(self) -> float:
        """Note that the server isn't full any more; return for how long it was."""
        after_s = self._clock() - self._full_since
        self.is_full = False
        self._delegate.recovered("full", after_s)
        return after_s

    def _abandon(self, rejection: CrawlEnded) -> None:
        # No request waits any more. `start()` is still read to its end, although its requests are rejected.
        if self.is_full:
            self._end_full()
        self.must_wait = False
        lost = self._outbox.abandon()
        if lost:
            self.log.warning("Did not store %s: %s", counted(lost, "request"), rejection)
            self._delegate.count(REJECTED_STAT, lost)


def take_too_large(frontier: Frontier, outbox: Outbox[Tag], delegate: Delegate[Tag]) -> Sequence[Entry[Tag]]:
    """Remove requests that the frontier rejected as too large from the outbox, as far as they can be identified."""
    entries, claims = outbox.take_too_large(frontier.payload_limit)
    operations = [*(entry.operation for entry in entries), *(claim.operation for claim in claims)]
    for operation in operations:
        frontier.note_too_large(payload_size(operation))
    for claim in claims:
        delegate.note_outcome(claim)
    return entries


class StartGate:
    """Holds `start()` back while there is no room for its requests.

    Args:
        has_room: returns whether there is room.
    """

    def __init__(self, has_room: Callable[[], bool]) -> None:
        self._has_room = has_room
        self._waiters: list[Deferred[None]] = []

    @property
    def is_open(self) -> bool:
        """Whether there is room."""
        return self._has_room()

    def wait(self) -> Deferred[None] | None:
        """Return None if the gate is open, else a Deferred that fires when it opens."""
        if self._has_room():
            return None
        waiter: Deferred[None] = Deferred()
        self._waiters.append(waiter)
        return waiter

    def look(self) -> None:
        """Open the gate if there is room now."""
        if self._waiters and self._has_room():
            waiters, self._waiters = self._waiters, []
            for waiter in waiters:
                waiter.callback(None)


OUTBOX_BYTES = 32 * 2**20
"""Total size of payloads that counts as `PRIOQUEUE_OUTBOX_LIMIT` requests, however few they are."""


class Backpressure:
    """Limits the outbox while the server accepts no requests.

    From the limit on, requests are started one at a time, since pages without links make room on a full server.
    From twice the limit on, none is started, so memory stays bounded.

    Args:
        config: has the limit of the outbox, and whether start requests go into it.
        policy: of this worker.
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
        """There are limits or budgets, so requests are asked for ahead of their time."""
        self.orders = Orders()
        self.pending = 0
        """Number of pending requests in the frontier, from the last answer."""
        self._held_back = 0

    def note_answer(self, answer: Exchanged) -> None:
        """Process an answer, except for its orders."""
        self.must_ask = answer.must_ask or self._has_own_limits
        self.pending, self._held_back = answer.depth.pending, answer.held_back

    @property
    def is_stuck(self) -> bool:
        """Whether the server accepts no requests, because it is full or away."""
        return self.rejections.is_full or self._failures.is_on

    def places(self, running: int) -> float:
        """Return how many more requests the outbox allows to start.

        Args:
            running: number of running requests.
        """
        if not self.is_stuck or not self._is_full(1):
            self._has_warned = False
            return float("inf")
        self._warn()
        return 0 if self._is_full(2) else max(0, 1 - running)

    def _is_full(self, times: int) -> bool:
        """Return whether the outbox has reached this multiple of its limit."""
        return self._outbox.pushes >= times * self._limit or self._outbox.pushed_bytes >= times * OUTBOX_BYTES

    def may_start(self, running: int) -> bool:
        """Return whether a request may start."""
        return not (self.orders.is_paused or self._failures.keeps_from_starting) and self.places(running) > 0

    def has_room_for_starts(self, *, has_work: bool, is_starving: bool = False) -> bool:
        """Return whether `start()` may be read further.

        Args:
            has_work: whether any other request is left, here or elsewhere. Without one, a flood, for example of the
                server's memory, could never end, so `start()` is read all the same.
            is_starving: whether this worker has free places and the frontier has nothing for them.
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
            self.rejections.log.warning(
                "%s of %d kB waiting to be stored (PRIOQUEUE_OUTBOX_LIMIT): this worker starts one page at a time"
                " until the server has stored them, and none at twice that limit",
                counted(self._outbox.pushes, "request"),
                self._outbox.pushed_bytes // 1000,
            )
