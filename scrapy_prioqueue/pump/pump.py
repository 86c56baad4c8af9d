"""Requests in and out for the scheduler, without waiting for the exchange loop."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Coroutine, Sequence
from itertools import islice
from typing import Any, TypeVar

from twisted.internet.defer import Deferred

from scrapy_prioqueue.frontier.base import (
    Ack,
    Depth,
    Fail,
    Joined,
    Lease,
    Push,
    Release,
)
from scrapy_prioqueue.frontier.direct import MustExchange
from scrapy_prioqueue.frontier.kept import MOST_PAGES, Kept
from scrapy_prioqueue.frontier.policy import Closing, Note
from scrapy_prioqueue.pump.closing import take_leave
from scrapy_prioqueue.pump.heartbeat import PagesAtWork
from scrapy_prioqueue.pump.leases import FoundOn
from scrapy_prioqueue.pump.loop import ExchangeLoop
from scrapy_prioqueue.pump.outbox import BATCH_SIZE, Hold

logger = logging.getLogger(__name__)

Tag = TypeVar("Tag")
T = TypeVar("T")


class Pump(ExchangeLoop[Tag]):
    """Keeps an inbox of leased requests filled and an outbox empty, one exchange at a time.

    Over an in-process frontier an exchange is made for every call and the inbox stays empty, so that order is exact.
    Tags are whatever the host puts in with an operation and wants back with its outcome.
    """

    _best: Lease | None = None
    """In process, the request that `take` returns next, since no other is better."""

    def open(self) -> Deferred[Joined]:
        """Join the crawl."""
        return self.runner.start(self.frontier.join()).addCallback(self._note_joined)

    def _note_joined(self, joined: Joined) -> Joined:
        self._limits.pending = joined.depth.pending
        if joined.has_budgets:
            self._host.has_budgets()
        self._shares.note_joined(joined)
        return joined

    def start(self, pages_at_work: PagesAtWork = lambda _: ()) -> None:
        """Begin to exchange; after `open` has succeeded."""
        self._bell.listen()
        self._renewals.start(pages_at_work)
        self.consider()

    def push(self, operation: Push, tag: Tag, found_on: FoundOn = None) -> None:
        """Store a request; its outcome comes back through `Host.settled`.

        Args:
            found_on: the page on which it was found; None if that isn't known, then it may be any of those that are
                held, and none of them is acked before the request is stored.
        """
        if not self._is_closed and self._shortcut.push(operation, tag):
            self.has_ended = False
            self._keep_time()
            return
        self._agenda.note_push(operation)
        is_first = not self.outbox
        entry = self.outbox.push(operation, tag, self._possession.parents(found_on))
        self._standby.offer(entry)
        self._outage.note_found()
        self._note_put(is_first)
        if self.frontier.is_local and self._may_exchange():
            # Whoever stores a request hears at once whether it is a duplicate; acks go with the next exchange.
            self._exchange(limit=0)

    def note_duplicate(self, fingerprint: bytes, found_on: FoundOn = None) -> None:
        """Note that a request pushed here before was found again, on that page or any held one."""
        if self.outbox.awaits(fingerprint):
            self.outbox.note_duplicate(fingerprint, self._possession.parents(found_on))

    def keep(self, found_on: FoundOn = None) -> Sequence[Hold]:
        """Note that a request stays in this process, and return the pages that aren't acked before it is done.

        Args:
            found_on: the page on which it was found; None if that isn't known, then it may be any of those that are
                held.
        """
        if self.frontier.is_local:
            return ()
        parents = self._possession.parents(found_on)
        self.outbox.keep(parents)
        return parents

    def kept(self, requests: int, *, has_more_starts: bool = False, is_paused: bool = False) -> Kept:
        """Return the report to the frontier about requests that stay in this process, or are still to come."""
        lingering = self.outbox.lingering
        named = islice((hold for hold in lingering if hold.is_leased), MOST_PAGES)
        by_lease = {hold.lease.lease_id: hold.kept for hold in named}
        return Kept(requests, len(lingering), by_lease, has_more_starts, is_paused)

    def let_go(self, parents: Sequence[Hold]) -> None:
        """Note that a kept request is done, given the pages that `keep` returned."""
        is_first = not self.outbox
        self.outbox.let_go(parents)
        if self.outbox:
            self._note_put(is_first)

    def finish(self, operation: Ack | Fail | Release) -> None:
        """Settle a lease that `take` handed out; ignored if it is no longer held."""
        hold = self.held.pop(operation.lease_id, None)
        if hold is None:
            return
        if not self._is_closed and self._shortcut.finish(operation):
            self.has_ended = False
            if self._shortcut.may_be_the_end():
                self.consider()
            return
        self._pace.note_done(hold.started_at, len(self.held))
        self._shares.note_page()
        is_first = not self.outbox
        self.outbox.settle(operation, hold)
        self._note_put(is_first)

    def take(self) -> Lease | None:
        """Return the request to start now, or None."""
        if self._best is not None:
            best, self._best = self._best, None
            return best
        if self._is_closed or self._host.is_closing():
            return None
        if self.frontier.is_local:
            # Nothing of what `may_start` looks at is there where the shortcut is open.
            try:
                hold = self._shortcut.take()
            except MustExchange:
                return self._take_leased()
            self._keep_time()
            return None if hold is None else hold.lease
        return self._take_leased()

    def _take_leased(self) -> Lease | None:
        if not self._limits.may_start(len(self.held)):
            return None
        self._renewals.note_beats()
        if self._renewals.have_failed(self._clock()):
            # This process was stopped for so long that others have these requests by now.
            self.inbox.drop_older_than(self._config.lease_ttl_s)
        if self.frontier.is_local:
            if not self.inbox:
                self._exchange(limit=1)
        elif self.inbox.has_stale() and self._may_exchange():
            self._exchange()
        hold = self._choice.next_hold()
        if hold is not None:
            self._possession.held[hold.lease.lease_id] = hold
            self._agenda.note_start()
            self._rates.note_start(hold.lease.slot)
            hold.started_at = self._pace.note_start(len(self.held))
            self._outage.note_started()
        self._demands.is_starting = hold is not None
        if self._agenda.is_low() or not self._alarm.is_set:
            self.consider()
        self._demands.is_starting = False
        return None if hold is None else hold.lease

    def take_other(self, other: Callable[[int | None], T | None]) -> T | None:
        """Return what goes before the request that `take` would return, None if that is nothing.

        Args:
            other: called with the rank of that request as far as it is known here, None if there is none. What it
                returns is started instead.
        """
        if not self.frontier.is_local:
            return other(self.inbox.best_rank())
        self._best = best = self.take()
        found = other(None if best is None else best.rank)
        if found is not None and best is not None:
            self._best = None
            self.finish(Release(best.lease_id, best.attempt))
        return found

    def awaits_answer(self) -> bool:
        """Ask for requests if that is due; tell whether a pending answer may bring one to start now.

        The host is woken when it has come, or will not come.
        """
        is_told = not self.outbox.pushes
        if self.frontier.is_local or self._is_slow or self._outage.is_on or self._is_closed:
            return False
        if (is_told and (self.has_ended or self._hunger.is_dry)) or self._refusals.must_wait or self._host.is_closing():
            return False
        if not self._limits.may_start(len(self.held)):
            return False
        self.consider()
        self._is_awaited = self._line.is_busy or not is_told
        return self._is_awaited

    def note_slow(self, lease_ids: Collection[int]) -> None:
        """These pages may never end: where one loses its lease, it is given up here."""
        self._possession.note_slow(lease_ids)

    def take_blocked(self) -> bool:
        """Tell, once, whether the loop was reported as blocked and isn't any more."""
        return self._renewals.take_blocked()

    def note(self, note: Note) -> None:
        """Report what was learned about a slot, with the next exchange."""
        self._rates.note(note)
        if isinstance(note, Closing):
            self._possession.give_back(self.inbox.take_slot(note.slot))
        is_first = not self._notes
        self._notes.add(note)
        if is_first:
            self.consider()

    def note_room(self) -> None:
        """Note that a slot may have room now."""
        self._hunger.is_dry = False
        self._host.wake()
        self.consider()

    @property
    def is_paused(self) -> bool:
        """An operator has paused the crawl."""
        return self._limits.orders.is_paused

    def ask(self, call: Callable[[], Coroutine[Any, Any, T]], on_answer: Callable[[T], None]) -> bool:
        """Make another call of the frontier as soon as the line is free; return False if that can't be.

        Where it fails, nothing is said: whoever wants an answer asks again some time later.
        """
        if self._question is not None or self._outage.is_on or self._is_closed:
            return False
        self._question = lambda: self._line.call(call(), on_answer)
        self.consider()
        return True

    @property
    def is_away(self) -> bool:
        """The server doesn't answer."""
        return self._outage.is_on or self._is_slow

    @property
    def is_full(self) -> bool:
        """The server has no memory for what was found here."""
        return self._refusals.is_full

    @property
    def sees_work(self) -> bool:
        """Work is left, here or elsewhere, by the last answer."""
        return bool(self.held or self.inbox or self.outbox or self.depth.unfinished)

    def __len__(self) -> int:
        return self.depth.pending + self.depth.delayed + len(self.inbox) + self.outbox.pushes

    def _note_put(self, is_first: bool) -> None:
        self._agenda.note_put(is_first=is_first)
        self.has_ended = False
        if not self.frontier.is_local and (is_first or len(self.outbox) >= BATCH_SIZE or self._agenda.has_outranked()):
            self.consider()

    def _keep_time(self) -> None:
        if not self._alarm.is_set:
            self.consider()

    # The end

    def close(self, timeout_s: float) -> Deferred[Depth | None]:
        """Commit what is left, give back what was not started, leave the crawl; return the last counts, if known.

        What can't be told within that time is logged: those requests will be fetched again.
        """
        self._is_closed = True
        self._shortcut.tell()
        self._alarm.cancel()
        self._grace.cancel()
        self._returning.give_up()
        self._schedule.close()
        self._line.close()
        self._bell.close()
        self._renewals.close()
        self.gate.look()
        self._possession.give_all_back()
        leaving: Deferred[Depth | None] = take_leave(
            *(self.frontier, self.runner, self.outbox, self._host, self._line.running),
            *(timeout_s, self._possession, self._refused_by),
        )
        return leaving.addCallback(self._note_last_depth)

    def _note_last_depth(self, depth: Depth | None) -> Depth | None:
        self._depth = depth or self._depth
        return depth
