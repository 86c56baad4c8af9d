"""The short way past the exchange, for a frontier in process that needs none at the moment."""

from __future__ import annotations

from typing import Generic, TypeVar

from scrapy_prioqueue.frontier.base import Ack, Depth, Operation, Push
from scrapy_prioqueue.frontier.direct import Direct, MustExchange
from scrapy_prioqueue.pump.agenda import Agenda
from scrapy_prioqueue.pump.calls import Calls
from scrapy_prioqueue.pump.demand import Prefetch
from scrapy_prioqueue.pump.host import Host
from scrapy_prioqueue.pump.leases import Leases
from scrapy_prioqueue.pump.outbox import Hold, Settled

Tag = TypeVar("Tag")


class Shortcut(Generic[Tag]):
    """Does at once what an exchange would do, as long as nothing waits for one.

    What it doesn't do, because time or a policy is involved, it leaves to the exchange.
    """

    def __init__(
        self,
        direct: Direct,
        host: Host[Tag],
        calls: Calls,
        leases: Leases[Tag],
        agenda: Agenda,
        prefetch: Prefetch,
    ) -> None:
        self._direct = direct
        self._host = host
        self._slots = host.engine.slots
        self._calls = calls
        self._inbox, self._outbox = leases.inbox, leases.outbox
        self._held = leases.held
        self._agenda = agenda
        self._notes = prefetch.notes
        self._leases = 0

    @property
    def _is_clear(self) -> bool:
        """Nothing waits for an exchange."""
        return self._calls.running is None and not (self._outbox or self._inbox or self._notes)

    @property
    def depth(self) -> Depth | None:
        """The counts as they are now, None where only an answer has them."""
        return self._direct.depth() if self._direct.may_push else None

    def push(self, push: Push, tag: Tag) -> bool:
        """Store a request, and tell the host what has become of it; False if that is left to an exchange."""
        direct = self._direct
        if not (direct.may_push and self._is_clear):
            return False
        rejected = direct.push(push)
        self._agenda.note_done()
        self._host.settled(Settled(push, tag, rejected == "duplicates", rejected == "repeated_starts"))
        return True

    def take(self) -> Hold | None:
        """Return what may start now, None if nothing may.

        Raises:
            MustExchange: that is left to an exchange: something becomes due with time, or it may be the end.
        """
        direct = self._direct
        if not (self._held or direct.pending) or not (direct.may_take and self._is_clear):
            raise MustExchange
        lease = direct.take(self._slots.may_start) or direct.take(self._slots.may_wait)
        if lease is None:
            return None
        hold = self._held[lease.lease_id] = Hold(lease)
        self._agenda.note_done()
        self._leases += 1
        return hold

    def count(self) -> None:
        """Count what was leased here; not one at a time, which would take longer than the rest."""
        leases, self._leases = self._leases, 0
        self._host.count("prioqueue/lease/count", leases)

    def finish(self, operation: Operation) -> bool:
        """Settle a lease that isn't in `held` any more; False if that is left to an exchange."""
        direct = self._direct
        if type(operation) is not Ack or not (direct.may_take and self._is_clear):
            return False
        if not direct.acknowledge(operation):
            return False
        self._agenda.note_done()
        return True

    def may_be_the_end(self) -> bool:
        """Tell whether nothing is left, as far as can be seen here."""
        return not self._direct.pending and not self._held
