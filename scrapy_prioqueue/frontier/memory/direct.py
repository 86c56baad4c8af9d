"""Direct calls of a frontier in process: single operations without an exchange."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from scrapy_prioqueue.frontier.base import Depth, Lease
from scrapy_prioqueue.frontier.memory.lanes import Envelope
from scrapy_prioqueue.frontier.memory.leases import Held
from scrapy_prioqueue.frontier.memory.store import Rejected
from scrapy_prioqueue.frontier.operations import Ack, Push

if TYPE_CHECKING:
    from scrapy_prioqueue.frontier.memory.frontier import MemoryFrontier


class MustExchange(Exception):
    """The operation needs an exchange."""


class Direct:
    """Operations that one worker may do without an exchange, while the result is the same.

    Only exchanges end the crawl, make delayed requests pending, and reap expired leases.
    """

    def __init__(self, frontier: MemoryFrontier) -> None:
        self._frontier = frontier
        self._store = frontier.store
        self._clock = frontier.clock
        self._ttl_ms = round(frontier.config.lease_ttl_s * 1000)
        self._order = frontier.config.order
        self._worker = frontier.config.worker

    @property
    def may_push(self) -> bool:
        """Whether this worker is in the crawl, and a push can't begin a flood."""
        return self._is_joined and not self._store.policy.has_marks

    @property
    def may_take(self) -> bool:
        """Whether requests may also be taken and acknowledged: they are served by rank, turn and budgets only."""
        return self._store.is_plain and self._is_joined

    @property
    def _is_joined(self) -> bool:
        store, frontier = self._store, self._frontier
        return frontier.joined is store.crawl and store.workers.get(self._worker) is frontier.session

    @property
    def pending(self) -> int:
        """Number of pending requests."""
        return len(self._store.pending)

    def depth(self) -> Depth:
        """Return the counts of the crawl."""
        return self._store.depth(self._clock() - self._ttl_ms)

    def push(self, push: Push) -> Rejected | None:
        """Store a request, or return why it was rejected."""
        crawl = self._store.crawl
        assert crawl is not None
        self._frontier.session.is_idle = False
        return self._store.push(crawl, push, self._order, self._clock())

    def take(self, may_start: Callable[[str], bool]) -> Lease | None:
        """Lease the best request that may start, None if none may.

        Args:
            may_start: returns whether a request of a slot may start.

        Raises:
            MustExchange: a request is delayed, a lease has expired, a suspect is pending, or the best is over budget.
        """
        store, now_ms = self._store, self._clock()
        leases, pending = store.leases, store.pending
        if store.delayed or pending.has_suspects or leases.have_expired(now_ms):
            raise MustExchange
        slot = pending.next_slot(may_start)
        if slot is None:
            return None
        lane, budgets = pending.lanes[0], store.budgets
        if budgets.is_on and budgets.excess(lane.first_of(slot).payload) is not None:
            raise MustExchange
        rank, lease_id, attempts, payload = pending.serve(lane, slot)
        attempts += 1
        self._frontier.session.is_idle = False
        leases.grant(Held(slot, Envelope(rank, lease_id, attempts, payload), self._worker), now_ms + self._ttl_ms)
        if budgets.is_on:
            budgets.charge(lease_id, payload)
        return Lease(lease_id, attempts, rank, slot, payload)

    def acknowledge(self, ack: Ack) -> bool:
        """End a lease; False if it is not held any more."""
        store, lease_id = self._store, ack.lease_id
        if store.crawl is None or not store.leases.is_held(lease_id, ack.attempt, by=self._worker):
            return False
        # The other steps of `store.end` are for limits; with limits this path is closed.
        store.leases.end(lease_id)
        if store.budgets.held:
            store.budgets.settle(lease_id, ack.spent)
        store.crawl.done += 1
        if store.lost_by:
            store.forget_losses(lease_id)
        return True
