"""Leases of this worker: running, waiting to start, or ended without confirmation; and their renewals."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from math import inf
from typing import Any, Generic, TypeVar

from scrapy_prioqueue.frontier.base import Frontier, Lease, Release
from scrapy_prioqueue.logs import CrawlLog, event
from scrapy_prioqueue.printable import counted
from scrapy_prioqueue.pump.delegate import Delegate
from scrapy_prioqueue.pump.heartbeat import Heartbeat, PagesAtWork
from scrapy_prioqueue.pump.inbox import Inbox
from scrapy_prioqueue.pump.outbox import HeldRequest, Outbox
from scrapy_prioqueue.pump.timing import RENEWALS_PER_TTL
from scrapy_prioqueue.stats import HEARTBEAT_RENEWED_STAT, LEASE_LOST_STAT, LEASE_RELEASED_STAT, SLOW_STAT

logger = logging.getLogger(__name__)

Tag = TypeVar("Tag")

FoundOn = int | Sequence[HeldRequest] | None
"""The page on which a request was found: its lease id at that time, or the pages that it may be; None if unknown."""


class Leases(Generic[Tag]):
    """All leases of this worker, and what to check after problems with the server.

    Args:
        delegate: makes pushes of leased requests.
    """

    def __init__(self, inbox: Inbox, outbox: Outbox[Tag], delegate: Delegate[Tag]) -> None:
        self.inbox = inbox
        self.outbox = outbox
        self._delegate = delegate
        self.held: dict[int, HeldRequest] = {}
        self.must_check = False
        """The server may have lost leases: renew them, and claim those that it doesn't know."""
        self.must_reconcile = False
        """An answer with leases may have been lost: compare this worker's leases with those of the server."""

    def parents(self, found_on: FoundOn) -> Sequence[HeldRequest]:
        """Return the pages on which a request may have been found: all held pages if that is unknown."""
        if isinstance(found_on, int) or found_on is None:
            return [self.held[found_on]] if found_on in self.held else list(self.held.values())
        return found_on

    def tokens(self) -> list[tuple[int, int]]:
        """Return the tokens of running and waiting leases; safe to call from any thread."""
        # Each copy is made in one step, in the order in which leases move, so that none is missed.
        waiting = [(lease.lease_id, lease.attempt) for lease in self.inbox]
        return [*waiting, *(held.token for held in self.held.copy().values() if held.is_leased)]

    def unsent_tokens(self) -> list[tuple[int, int]]:
        """Return the tokens of running, waiting, and finished but unsent leases; acks wait long on a full server."""
        return [*self.tokens(), *(held.token for held in self.outbox.waiting_settled())]

    def all_tokens(self) -> list[tuple[int, int]]:
        """Return the tokens of running, waiting and unconfirmed leases."""
        return [*self.tokens(), *(held.token for held in self.outbox.all_settled())]

    def accept(self, leases: Sequence[Lease], granted_at: float | None = None) -> bool:
        """Put new leases into the inbox; return whether one of them may start now.

        If the request is still running here, or finished without confirmation, its old lease was lost and this is its
        new one. A page that may never end is started again instead.
        If another request has the id, which may happen after the server has lost writes, the lease is released.

        Args:
            granted_at: estimated monotonic time at which they were granted; None for now.
        """
        if not leases:
            return False
        known = {held.lease.lease_id: held for held in (*self.held.values(), *self.outbox.uncut_settled())}
        has_got_one = False
        for lease in leases:
            held = known.get(lease.lease_id)
            if held is not None and held.is_slow:
                if self.lose((lease.lease_id,)):
                    self.give_back((lease,))
                    continue
                held = None
            if held is None and lease.lease_id not in self.held:
                self.inbox.add((lease,), granted_at)
                has_got_one = has_got_one or lease.start_in_ms == 0
            elif held is not None and held.lease.payload == lease.payload:
                held.lease, held.is_void = lease, False
            else:
                self.give_back((lease,))
        return has_got_one

    def note_slow(self, lease_ids: Collection[int]) -> None:
        """Mark pages that may never end."""
        for lease_id in lease_ids:
            if lease_id in self.held:
                self.held[lease_id].is_slow = True

    def lose(self, lease_ids: Iterable[int]) -> bool:
        """Give up pages with lost leases, if they may never end.

        Returns:
            whether other workers should get them first.
        """
        must_leave = False
        for lease_id in lease_ids:
            held = self.held.get(lease_id)
            if held is not None and held.is_slow:
                del self.held[lease_id]
                held.is_void = True
                must_leave = self._delegate.lost(lease_id) or must_leave
        return must_leave

    def report_lost(self, lost: set[int]) -> None:
        """Report the leases with these ids to the delegate, which this worker has lost."""
        started = [held.lease for held in (*self.held.values(), *self.outbox.waiting_settled())]
        for leases, are_started in ((started, True), (self.inbox, False)):
            found = [lease for lease in leases if lease.lease_id in lost]
            if found:
                self._delegate.lost_leases(found, are_started=are_started)

    def started_tokens(self) -> list[tuple[int, int]]:
        """Return the tokens of leases that are running, or finished and not confirmed; as thread-safe as `tokens`."""
        runs = [held.token for held in self.held.copy().values() if held.is_leased]
        return [*runs, *(held.token for held in self.outbox.all_settled())]

    def suspects(self, attempts: int) -> list[int]:
        """Return the number of losses of each request held here that was lost at least `attempts` times."""
        return [attempt - 1 for _, attempt in self.tokens() if attempt > attempts]

    def give_back(self, leases: Iterable[Lease]) -> None:
        """Release leases that were removed from the inbox."""
        self._release(HeldRequest(lease) for lease in leases)

    def give_back_worse(self, pushed: Sequence[tuple[int, str]]) -> int:
        """Release leases that have waited too long, or give way to better requests found here.

        Args:
            pushed: ranks and slots of the better requests.

        Returns:
            number of released leases.
        """
        leases = [*self.inbox.take_stale(), *self.inbox.take_outranked(pushed)]
        self.give_back(leases)
        return len(leases)

    def give_all_back(self) -> None:
        """Release all leases that are not finished."""
        self.give_back(self.inbox.take_all())
        self._release(self.held.values())
        self.held.clear()
        self._delegate.count(LEASE_RELEASED_STAT, self.outbox.release_lingering())

    def _release(self, requests: Iterable[HeldRequest]) -> None:
        for held in requests:
            self.outbox.settle(Release(*held.token), held)
            self._delegate.count(LEASE_RELEASED_STAT)

    def note_reconciled(self, given_back: int) -> None:
        """Note how many leases unknown to this worker the server has released."""
        self.must_reconcile = False
        self._delegate.count(LEASE_RELEASED_STAT, given_back)

    def claim_forgotten(self, lost: Sequence[int]) -> None:
        """Claim the leases with these ids, which the server has lost."""
        unknown = set(lost)
        for held in self._held_among(unknown):
            if held.is_leased:
                self.outbox.claim(self._delegate.push_of(held.lease), held)

    def _held_among(self, unknown: set[int]) -> Iterator[HeldRequest]:
        for held in [*self.held.values(), *self.outbox.all_settled()]:
            if held.lease.lease_id in unknown:
                yield held
        for lease in [lease for lease in self.inbox if lease.lease_id in unknown]:
            held = HeldRequest(lease)
            yield held
            self.outbox.settle(Release(lease.lease_id, lease.attempt), held)
        self.inbox.discard(unknown)


class Renewals:
    """Tracks renewals of leases, by the loop and by the heartbeat's thread.

    Args:
        ttl_s: lifetime of a lease without renewal, in seconds.
        slow_s: seconds after which a loop that doesn't run counts as blocked.
        clock: monotonic, in seconds.
    """

    def __init__(
        self,
        frontier: Frontier,
        leases: Leases[Any],
        delegate: Delegate[Any],
        ttl_s: float,
        slow_s: float,
        clock: Callable[[], float],
    ) -> None:
        self._log = CrawlLog(logger, delegate.spider)
        self._leases = leases
        self._delegate = delegate
        self._ttl_s = ttl_s
        self._clock = clock
        self._heartbeat = Heartbeat(
            frontier, leases.tokens, ttl_s, slow_s, leases.started_tokens, delegate.has_own_work, delegate.spider
        )
        self._latest = self._sent = clock()
        self._gave_back_at = -inf

    def start(self, pages_at_work: PagesAtWork) -> None:
        """Begin to watch the loop."""
        self._heartbeat.start(pages_at_work)

    def close(self) -> None:
        """Stop watching the loop."""
        self._heartbeat.close()

    def take_blocked(self) -> bool:
        """Return, once, whether the frontier has a report about the loop being blocked, which it isn't any more."""
        was_blocked, self._heartbeat.has_noted = self._heartbeat.has_noted, False
        return was_blocked

    @property
    def latest(self) -> float:
        """When the latest renewal that was answered was sent, also by the thread; may be read in any thread."""
        return max(self._latest, self._heartbeat.renewed_at)

    @property
    def loop_lag_s(self) -> float:
        """Seconds by which the event loop is late; may be read in any thread."""
        return self._heartbeat.lag_s

    @property
    def due_at(self) -> float:
        """When the loop's next renewal is due."""
        return max(self._latest, self._sent) + self._ttl_s / RENEWALS_PER_TTL

    def drop_expired(self) -> None:
        """Drop unstarted leases that have expired while this process was stopped."""
        self.note_beats()
        if self._have_failed(self._clock()):
            self._leases.inbox.drop_older_than(self._ttl_s)

    def _have_failed(self, now: float, since: float = 0.0) -> bool:
        """Return whether leases granted at `since` have expired, given the latest renewal."""
        return max(since, self._latest) + self._ttl_s <= now

    def may_be_elsewhere(self, now: float, since: float) -> bool:
        """Return whether other workers may have leases that were granted at `since` and arrive only now."""
        return self._have_failed(now, since) or since <= self._gave_back_at

    def note_begin(self) -> None:
        """Note that the loop sends a renewal."""
        self._sent = self._clock()

    def note_end(self, lost: Sequence[int]) -> None:
        """Note its answer: the ids of leases that this worker has lost."""
        self._latest = max(self._latest, self._sent)
        self._heartbeat.note_renewal(self._latest)
        self._note_lost(lost)

    def note_beats(self) -> None:
        """Process the actions of the thread."""
        while self._heartbeat.beats:
            beat = self._heartbeat.beats.popleft()
            if not (beat.gives_back or beat.is_warning):
                self._latest = max(self._latest, beat.at)
            self._delegate.count(HEARTBEAT_RENEWED_STAT, beat.renewed)
            self._delegate.count(SLOW_STAT, int(beat.is_warning))
            if beat.gives_back:
                self._gave_back_at = beat.at
                self._leases.give_back(self._leases.inbox.take_all())
            # Leases whose acks were on their way are not lost.
            here = {lease_id for lease_id, _ in self._leases.tokens()}
            self._note_lost([lease_id for lease_id in beat.lost if lease_id in here])

    def _note_lost(self, lost: Sequence[int]) -> None:
        if lost:
            self._leases.report_lost(set(lost))
        self._leases.inbox.discard(lost)
        self._leases.lose(lost)
        self._delegate.count(LEASE_LOST_STAT, len(lost))
        if lost:
            self._log.warning(
                "%s of this worker went to others: taken by an operator, or expired because this worker had no contact"
                " with the server for longer than PRIOQUEUE_LEASE_TTL, for example because its process was stopped or"
                " code held the GIL",
                counted(len(lost), "lease"),
                extra=event("lease_lost", leases=len(lost)),
            )
