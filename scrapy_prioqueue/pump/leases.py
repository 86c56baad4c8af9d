"""Leases of this worker: running, waiting to start, or finished and not confirmed; and which of them hold."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Generic, TypeVar

from scrapy_prioqueue.frontier.base import Lease, Release
from scrapy_prioqueue.pump.host import Host
from scrapy_prioqueue.pump.inbox import Inbox
from scrapy_prioqueue.pump.outbox import Hold, Outbox

Tag = TypeVar("Tag")

FoundOn = int | Sequence[Hold] | None
"""On which page a request was found: the id under which its lease was taken, or on which it may have been."""


class Possession(Generic[Tag]):
    """All leases of this worker, and what must be verified after trouble with the server.

    Args:
        host: says how a request is stored anew.
    """

    def __init__(self, inbox: Inbox, outbox: Outbox[Tag], host: Host[Tag]) -> None:
        self._inbox = inbox
        self._outbox = outbox
        self._host = host
        self.held: dict[int, Hold] = {}
        self.must_check = False
        """The server may have lost leases: renew them, and claim those that it doesn't know."""
        self.must_reconcile = False
        """An answer may have been lost, and with it leases: compare them with those of the server."""

    def parents(self, found_on: FoundOn) -> Sequence[Hold]:
        """Return the pages on one of which a request was found: all held pages if the page isn't known."""
        if isinstance(found_on, int) or found_on is None:
            return [self.held[found_on]] if found_on in self.held else list(self.held.values())
        return found_on

    def tokens(self) -> list[tuple[int, int]]:
        """Return the tokens of running and waiting leases; safe to call from any thread."""
        # Copies, each made in one step, in the direction in which leases move.
        waiting = [(lease.lease_id, lease.attempt) for lease in self._inbox]
        return [*waiting, *(hold.token for hold in self.held.copy().values() if hold.is_leased)]

    def untold_tokens(self) -> list[tuple[int, int]]:
        """Return the tokens of running, waiting and finished leases whose acks wait, long on a full server."""
        return [*self.tokens(), *(hold.token for hold in self._outbox.waiting_holds())]

    def all_tokens(self) -> list[tuple[int, int]]:
        """Return the tokens of running, waiting and unconfirmed leases."""
        return [*self.tokens(), *(hold.token for hold in self._outbox.settled_holds())]

    def accept(self, leases: Sequence[Lease], granted_at: float | None = None) -> bool:
        """Put new leases into the inbox; return whether one of them may start now.

        A request that runs here still, or is finished and not told, had lost its lease; this is its new one. One that
        may never end is begun anew.
        Another request under an id in use here, which a server can give after a loss of writes, is given back.

        Args:
            granted_at: monotonic time at which they were granted, as far as is known; None for now.
        """
        if not leases:
            return False
        known = {hold.lease.lease_id: hold for hold in (*self.held.values(), *self._outbox.uncut_settled_holds())}
        has_got_one = False
        for lease in leases:
            hold = known.get(lease.lease_id)
            if hold is not None and hold.is_slow:
                if self.lose((lease.lease_id,)):
                    self.give_back((lease,))
                    continue
                hold = None
            if hold is None and lease.lease_id not in self.held:
                self._inbox.add((lease,), granted_at)
                has_got_one = has_got_one or lease.start_in_ms == 0
            elif hold is not None and hold.lease.payload == lease.payload:
                hold.lease, hold.is_void = lease, False
            else:
                self.give_back((lease,))
        return has_got_one

    def note_slow(self, lease_ids: Collection[int]) -> None:
        """These pages may never end."""
        for lease_id in lease_ids:
            if lease_id in self.held:
                self.held[lease_id].is_slow = True

    def lose(self, lease_ids: Iterable[int]) -> bool:
        """Give up those of these pages that may never end: their leases are lost.

        Returns:
            whether others are to have them first.
        """
        must_leave = False
        for lease_id in lease_ids:
            hold = self.held.get(lease_id)
            if hold is not None and hold.is_slow:
                del self.held[lease_id]
                hold.is_void = True
                must_leave = self._host.lost(lease_id) or must_leave
        return must_leave

    def started_tokens(self) -> list[tuple[int, int]]:
        """Return the tokens of leases that run, or are finished and not confirmed; as thread-safe as `tokens`."""
        runs = [hold.token for hold in self.held.copy().values() if hold.is_leased]
        return [*runs, *(hold.token for hold in self._outbox.settled_holds())]

    def suspects(self, attempts: int) -> list[int]:
        """Return the losses of each request held here that was lost at least so often."""
        return [attempt - 1 for _, attempt in self.tokens() if attempt > attempts]

    def give_back(self, leases: Iterable[Lease]) -> None:
        """Release leases that were taken out of the inbox."""
        self._release(Hold(lease) for lease in leases)

    def give_back_worse(self, pushed: Sequence[tuple[int, str]]) -> int:
        """Release leases that have waited too long, or give way to better requests found here.

        Args:
            pushed: their ranks and slots.

        Returns:
            how many leases that were.
        """
        leases = [*self._inbox.take_stale(), *self._inbox.take_outranked(pushed)]
        self.give_back(leases)
        return len(leases)

    def give_all_back(self) -> None:
        """Release all leases that are not finished."""
        self.give_back(self._inbox.take_all())
        self._release(self.held.values())
        self.held.clear()
        self._host.count("prioqueue/lease/released", self._outbox.release_lingering())

    def _release(self, holds: Iterable[Hold]) -> None:
        for hold in holds:
            self._outbox.settle(Release(*hold.token), hold)
            self._host.count("prioqueue/lease/released")

    def note_reconciled(self, given_back: int) -> None:
        """Note that the server has taken back so many leases that this worker doesn't have."""
        self.must_reconcile = False
        self._host.count("prioqueue/lease/released", given_back)

    def claim_forgotten(self, lost: Sequence[int]) -> None:
        """Claim the leases with these ids, which the server has lost."""
        unknown = set(lost)
        for hold in self._holds_among(unknown):
            if hold.is_leased:
                self._outbox.claim(self._host.push_of(hold.lease), hold)

    def _holds_among(self, unknown: set[int]) -> Iterator[Hold]:
        for hold in [*self.held.values(), *self._outbox.settled_holds()]:
            if hold.lease.lease_id in unknown:
                yield hold
        for lease in [lease for lease in self._inbox if lease.lease_id in unknown]:
            hold = Hold(lease)
            yield hold
            self._outbox.settle(Release(lease.lease_id, lease.attempt), hold)
        self._inbox.discard(unknown)
