"""Direct calls of a frontier in process, and what an exchange does besides."""

from __future__ import annotations

from typing import Generic, TypeVar

from scrapy_prioqueue.frontier.base import Ack, Depth, Operation, Push
from scrapy_prioqueue.frontier.memory.direct import Direct, MustExchange
from scrapy_prioqueue.pump.agenda import Agenda
from scrapy_prioqueue.pump.calls import Calls
from scrapy_prioqueue.pump.delegate import Delegate
from scrapy_prioqueue.pump.demand import Prefetch
from scrapy_prioqueue.pump.leases import Leases
from scrapy_prioqueue.pump.outbox import HeldRequest, Outcome
from scrapy_prioqueue.stats import LEASES_STAT

Tag = TypeVar("Tag")


class DirectCalls(Generic[Tag]):
    """Does an exchange's work at once, while nothing is waiting for an exchange.

    It leaves everything that involves time or a policy to the exchange.
    """

    def __init__(
        self,
        direct: Direct,
        delegate: Delegate[Tag],
        calls: Calls,
        leases: Leases[Tag],
        agenda: Agenda,
        prefetch: Prefetch,
    ) -> None:
        self._direct = direct
        self._delegate = delegate
        self._slots = delegate.engine.slots
        self._calls = calls
        self._inbox, self._outbox = leases.inbox, leases.outbox
        self._held = leases.held
        self._agenda = agenda
        self._notes = prefetch.notes
        self._leases = 0

    @property
    def _is_clear(self) -> bool:
        """Whether nothing is waiting for an exchange."""
        return self._calls.running is None and not (self._outbox or self._inbox or self._notes)

    @property
    def depth(self) -> Depth | None:
        """The current counts, None if only an answer has them."""
        return self._direct.depth() if self._direct.may_push else None

    def push(self, push: Push, tag: Tag) -> bool:
        """Store a request and report its outcome to the delegate; False if an exchange must do it."""
        direct = self._direct
        if not (direct.may_push and self._is_clear):
            return False
        rejected = direct.push(push)
        self._agenda.note_done()
        self._delegate.note_outcome(Outcome(push, tag, rejected == "duplicates", rejected == "repeated_starts"))
        return True

    def take(self) -> HeldRequest | None:
        """Lease the next request that may start, None if none may.

        Raises:
            MustExchange: an exchange must do it, since a request becomes due with time, or the crawl may have ended.
        """
        direct = self._direct
        if not (self._held or direct.pending) or not (direct.may_take and self._is_clear):
            raise MustExchange
        lease = direct.take(self._slots.may_start) or direct.take(self._slots.may_wait)
        if lease is None:
            return None
        held = self._held[lease.lease_id] = HeldRequest(lease)
        self._agenda.note_done()
        self._leases += 1
        return held

    def count(self) -> None:
        """Add the leases taken here to the stats; not one by one, which would take longer than the rest."""
        leases, self._leases = self._leases, 0
        self._delegate.count(LEASES_STAT, leases)

    def finish(self, operation: Operation) -> bool:
        """End a lease that isn't in `held` any more; False if an exchange must do it."""
        direct = self._direct
        if type(operation) is not Ack or not (direct.may_take and self._is_clear):
            return False
        if not direct.acknowledge(operation):
            return False
        self._agenda.note_done()
        return True

    def may_be_the_end(self) -> bool:
        """Return whether nothing is left, as far as is known here."""
        return not self._direct.pending and not self._held
