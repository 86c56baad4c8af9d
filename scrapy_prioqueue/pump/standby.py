"""The in-process order of the requests that a worker finds in an outage."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from scrapy_prioqueue.frontier.base import Lease, Order, Push
from scrapy_prioqueue.frontier.memory.pending import Envelope, Pending, lease_id_of
from scrapy_prioqueue.pump.holds import Hold
from scrapy_prioqueue.pump.outbox import Entry, Outbox
from scrapy_prioqueue.pump.rates import OwnRates
from scrapy_prioqueue.pump.shares import Shares

Tag = TypeVar("Tag")


class Standby(Generic[Tag]):
    """Offers the requests that wait in the outbox, so that the crawl goes on with them.

    What is taken here is claimed when the server is back, and what is not is pushed as if nothing had happened.
    Leases from here have ids below zero, which no server gives.

    Args:
        outbox: where the requests wait.
        order: which of two requests of equal rank and slot goes first.
        shares: decides which of them are this worker's, and how many may be begun.
        rates: decides how many of a slot may be begun, and when.
    """

    def __init__(self, outbox: Outbox[Tag], order: Order, shares: Shares, rates: OwnRates) -> None:
        self._outbox = outbox
        self._order: Order = order
        self._shares = shares
        self._rates = rates
        self._arrivals = 0
        self._leases = 0
        self.is_on = False
        self._forget()

    def _forget(self) -> None:
        self._filtered, self._unfiltered = Pending(), Pending()
        self._entries: dict[int, Entry[Tag]] = {}
        self._fingerprints: set[bytes] = set()

    def begin(self) -> None:
        """Offer what no batch holds, and so the server can't know; said again when there is more of it."""
        self.is_on = True
        self._forget()
        taken = (push.fingerprint for push in self._outbox.taken_requests())
        self._fingerprints.update(fingerprint for fingerprint in taken if fingerprint is not None)
        for entry in self._outbox.uncut_pushes():
            self.offer(entry)

    def end(self) -> None:
        """Offer nothing any more: the server hands out requests again."""
        self.is_on = False
        self._forget()

    def offer(self, entry: Entry[Tag]) -> None:
        """Offer one more request of this worker's share, unless one with its fingerprint was; a delayed one waits."""
        push = entry.operation
        if not self.is_on or not isinstance(push, Push) or push.fingerprint in self._fingerprints or push.is_delayed:
            return
        if not self._shares.is_mine(push):
            return
        if push.fingerprint is not None:
            self._fingerprints.add(push.fingerprint)
        self._arrivals += 1
        place = lease_id_of(self._arrivals, order=self._order, is_start=push.is_start, is_lifo_start=push.is_lifo_start)
        self._entries[place] = entry
        pending = self._unfiltered if push.fingerprint is None else self._filtered
        pending.put(push.slot, Envelope(push.rank, place, 0, push.payload))

    def best_rank(self) -> int | None:
        """Return the rank of the best request here, None if there is none."""
        ranks = [pending.best_rank() for pending in self._offered()]
        return min((rank for rank in ranks if rank is not None), default=None)

    def _offered(self) -> list[Pending]:
        # What is never filtered is found by nobody else, and so costs no repeat.
        return [self._filtered, self._unfiltered] if self._shares.may_start() else [self._unfiltered]

    def take(self, may_start: Callable[[str], bool]) -> Hold | None:
        """Return the best request whose slot suits, as one that is worked on from now on."""
        for pending in sorted(self._offered(), key=lambda pending: pending.best_rank() or 0):
            taken = pending.take_one(lambda slot: may_start(slot) and self._rates.may_start(slot))
            if taken is not None:
                break
        else:
            return None
        if pending is self._filtered:
            self._shares.note_start()
        slot, envelope = taken
        self._leases += 1
        hold = Hold(Lease(-self._leases, 1, envelope.rank, slot, envelope.payload))
        self._outbox.begin(self._entries.pop(envelope.lease_id), hold)
        return hold
