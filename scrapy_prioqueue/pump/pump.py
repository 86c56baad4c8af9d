"""Requests in and out for the scheduler, which never waits for the exchange loop."""

from __future__ import annotations

from collections.abc import Callable, Collection, Coroutine, Sequence
from functools import partial
from itertools import islice
from time import monotonic
from typing import Any, Generic, TypeVar

from twisted.internet.defer import Deferred

from scrapy_prioqueue.frontier.base import Ack, Depth, Fail, Frontier, Joined, Lease, Push, Release
from scrapy_prioqueue.frontier.kept import MOST_PAGES, Kept
from scrapy_prioqueue.frontier.memory.direct import MustExchange
from scrapy_prioqueue.frontier.policy import Closing, Note
from scrapy_prioqueue.pump.agenda import Agenda
from scrapy_prioqueue.pump.backpressure import Backpressure, Rejections, StartGate
from scrapy_prioqueue.pump.closing import take_leave
from scrapy_prioqueue.pump.delegate import Delegate, PumpConfig
from scrapy_prioqueue.pump.demand import Prefetch, RoundTrips
from scrapy_prioqueue.pump.heartbeat import PagesAtWork
from scrapy_prioqueue.pump.inbox import Inbox
from scrapy_prioqueue.pump.leases import FoundOn, Leases, Renewals
from scrapy_prioqueue.pump.loop import ExchangeLoop
from scrapy_prioqueue.pump.outage import Failures, Outage
from scrapy_prioqueue.pump.outbox import BATCH_SIZE, HeldRequest, Outbox
from scrapy_prioqueue.runtime import Runner

Tag = TypeVar("Tag")
T = TypeVar("T")


class Pump(Generic[Tag]):
    """Keeps the inbox of leased requests filled and the outbox empty, one exchange at a time.

    For a frontier in process every call makes an exchange and the inbox stays empty, so the order is exact.
    Tags are objects that the delegate adds to an operation and gets back with its outcome.

    Args:
        runner: runs the frontier's coroutines.
        clock: monotonic, in seconds.
    """

    def __init__(
        self,
        frontier: Frontier,
        runner: Runner,
        delegate: Delegate[Tag],
        config: PumpConfig,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        policy = frontier.config.policy
        self.frontier = frontier
        self.runner = runner
        self._delegate = delegate
        self._slots = delegate.engine.slots
        self.outbox: Outbox[Tag] = Outbox()
        self.inbox = Inbox(
            clock,
            keeps_order=bool(policy.weights),
            places=delegate.free_places,
            reserve_s=lambda: self._prefetch.reserve_s(),
        )
        self._leases: Leases[Tag] = Leases(self.inbox, self.outbox, delegate)
        self.held = self._leases.held
        """Requests that were taken and are not finished, by the lease id at that time."""
        self._renewals = Renewals(frontier, self._leases, delegate, config.lease_ttl_s, config.slow_page_s, clock)
        failures = Failures(
            clock,
            goes_on=config.goes_on,
            lease_ttl_s=config.lease_ttl_s,
            grace_s=config.outage_grace_s,
            spider=delegate.spider,
        )
        self._outage: Outage[Tag] = Outage(frontier, failures, self._leases, delegate, config, clock)
        rejections = Rejections(frontier, delegate, self.outbox, clock)
        self._backpressure = Backpressure(self.outbox, rejections, failures, config, policy)
        self._prefetch = Prefetch(frontier, delegate, self._leases, self._backpressure, clock)
        self._agenda = Agenda(
            *(delegate, self._leases, self._renewals, rejections, self._prefetch, config.max_idle_s, clock),
            is_local=frontier.is_local,
        )
        self._loop: ExchangeLoop[Tag] = ExchangeLoop(
            *(frontier, runner, delegate, self._leases, self._renewals),
            *(self._outage, self._backpressure, self._prefetch, self._agenda, clock),
        )
        self._direct = self._loop.direct
        self._best: Lease | None = None
        """In process, the request that `take` returns next, since none is better."""

    def open(self) -> Deferred[Joined]:
        """Join the crawl."""
        return self.runner.start(self.frontier.join()).addCallback(self._note_joined)

    def _note_joined(self, joined: Joined) -> Joined:
        self._backpressure.pending = joined.depth.pending
        self._outage.repeats.note_joined(joined)
        return joined

    def start(self, pages_at_work: PagesAtWork = lambda _: ()) -> None:
        """Begin to exchange; call it after `open` has succeeded."""
        self._renewals.start(pages_at_work)
        self._loop.start()

    def consider(self) -> None:
        """Exchange if an exchange is due, otherwise set the timer; to be called after any relevant change."""
        self._loop.consider()

    @property
    def gate(self) -> StartGate:
        """Holds `start()` back if there is no room."""
        return self._loop.gate

    @property
    def has_ended(self) -> bool:
        """Whether the crawl has ended, by the last answer."""
        return self._loop.has_ended

    @property
    def depth(self) -> Depth:
        """The latest known counts of the crawl."""
        return self._loop.depth

    def refresh(self, max_age_s: float) -> bool:
        """Return whether `depth` is no older than that, or can't be asked for now; otherwise ask for it."""
        return self.is_away or self._loop.refresh(max_age_s)

    def push(self, operation: Push, tag: Tag, found_on: FoundOn = None) -> None:
        """Store a request; its outcome is passed to `Delegate.note_outcome`.

        Args:
            found_on: the page on which it was found. If None, it may be any held page, and none of these is acked
                before the request is stored.
        """
        if self._direct is not None and not self._loop.is_closed and self._direct.push(operation, tag):
            self._loop.has_ended = False
            self._keep_time()
            return
        self._agenda.note_push(operation)
        is_first = not self.outbox
        entry = self.outbox.push(operation, tag, self._leases.parents(found_on))
        if self._outage.failures.is_away:
            self._outage.note_found(entry)
        self._note_put(is_first)
        if self.frontier.is_local and self._loop.may_exchange():
            # So the delegate learns at once whether the request is a duplicate. Acks go with the next exchange.
            self._loop.exchange(limit=0)

    def note_duplicate(self, fingerprint: bytes, found_on: FoundOn = None) -> None:
        """Note that a request pushed here before was found again, on this page or on any held one."""
        if self.outbox.awaits(fingerprint):
            self.outbox.note_duplicate(fingerprint, self._leases.parents(found_on))

    def keep(self, found_on: FoundOn = None) -> Sequence[HeldRequest]:
        """Note that a request stays in this process; return the pages that aren't acked before it is done.

        Args:
            found_on: the page on which it was found. If None, it may be any held page.
        """
        if self.frontier.is_local:
            return ()
        parents = self._leases.parents(found_on)
        self.outbox.keep(parents)
        return parents

    def kept(self, requests: int) -> Kept:
        """Return the report for the frontier about requests that stay in this process."""
        lingering = self.outbox.lingering
        named = islice((held for held in lingering if held.is_leased), MOST_PAGES)
        by_lease = {held.lease.lease_id: held.kept for held in named}
        return Kept(requests, len(lingering), by_lease)

    def let_go(self, parents: Sequence[HeldRequest]) -> None:
        """Note that a kept request is done, given the pages that `keep` returned."""
        is_first = not self.outbox
        self.outbox.let_go(parents)
        if self.outbox:
            self._note_put(is_first)

    def finish(self, operation: Ack | Fail | Release) -> None:
        """End a lease that `take` returned; ignored if it is no longer held."""
        held = self.held.pop(operation.lease_id, None)
        if held is None:
            return
        if self._direct is not None and not self._loop.is_closed and self._direct.finish(operation):
            self._loop.has_ended = False
            if self._direct.may_be_the_end():
                self._loop.consider()
            return
        self._prefetch.pace.note_done(held.started_at, len(self.held))
        self._outage.repeats.note_page()
        is_first = not self.outbox
        self.outbox.settle(operation, held)
        self._note_put(is_first)

    def take(self) -> Lease | None:
        """Return the request to start now, or None."""
        if self._best is not None:
            best, self._best = self._best, None
            return best
        if self._loop.is_closed or self._delegate.engine.is_closing:
            return None
        if self._direct is not None:
            # If direct calls are possible, none of the conditions of `may_start` can apply.
            try:
                held = self._direct.take()
            except MustExchange:
                return self._take_leased()
            self._keep_time()
            return None if held is None else held.lease
        return self._take_leased()

    def _take_leased(self) -> Lease | None:
        if not self._backpressure.may_start(len(self.held)):
            return None
        self._renewals.drop_expired()
        if self.frontier.is_local:
            if not self.inbox:
                self._loop.exchange(limit=1)
        elif self.inbox.has_stale() and self._loop.may_exchange():
            self._loop.exchange()
        held = self._next_held()
        if held is not None:
            self.held[held.lease.lease_id] = held
            self._agenda.note_start()
            held.started_at = self._prefetch.pace.note_start(len(self.held))
            if self._outage.failures.is_away:
                self._outage.note_start(held.lease.slot)
        self._prefetch.is_starting = held is not None
        if self._agenda.is_low() or not self._loop.alarm.is_set:
            self._loop.consider()
        self._prefetch.is_starting = False
        return None if held is None else held.lease

    def _next_held(self) -> HeldRequest | None:
        """Remove and return a request that may start now, else one that may wait in the downloader."""
        return self._best_of(self._may_start, self._slots.may_start) or self._best_of(
            self._may_wait, self._slots.may_wait
        )

    def _best_of(self, suits_lease: Callable[[Lease], bool], suits: Callable[[str], bool]) -> HeldRequest | None:
        """Return the best of inbox and outage queue, as if they were one queue; at equal rank the inbox goes first."""
        queue = self._outage.queue
        leased, found = self.inbox.best_rank(), queue.best_rank() if queue.is_on else None
        if leased is None and found is None:
            return None
        if found is None:
            return self._take_suiting(suits_lease)
        takers = [partial(self._take_suiting, suits_lease), partial(queue.take, suits)]
        if leased is None or found < leased:
            takers.reverse()
        return takers[0]() or takers[1]()

    def _take_suiting(self, suits: Callable[[Lease], bool]) -> HeldRequest | None:
        lease = self.inbox.take(suits)
        return None if lease is None else HeldRequest(lease)

    def _may_start(self, lease: Lease) -> bool:
        # A request with a time must be sent at that time, and not later when robots.txt arrives.
        is_held_up = lease.late_ms is not None and lease.slot in self._delegate.held_up()
        return self._slots.may_start(lease.slot) and not is_held_up

    def _may_wait(self, lease: Lease) -> bool:
        return lease.late_ms is None and self._slots.may_wait(lease.slot)

    def take_other(self, other: Callable[[int | None], T | None]) -> T | None:
        """Return the result of `other` if there is one; it is started before the request that `take` would return.

        Args:
            other: called with the rank of that request as far as it is known here, None if there is none.
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
        """Ask for requests if that is due; return whether a pending answer may bring one to start now.

        The delegate is woken when the answer arrives or will not come.
        """
        loop, has_sent_all = self._loop, not self.outbox.pushes
        if self.frontier.is_local or self.is_away or loop.is_closed:
            return False
        has_none = has_sent_all and (loop.has_ended or self._agenda.polling.got_nothing)
        if has_none or self._backpressure.rejections.must_wait or self._delegate.engine.is_closing:
            return False
        return self._backpressure.may_start(len(self.held)) and loop.await_answer()

    def note_slow(self, lease_ids: Collection[int]) -> None:
        """Mark pages that may never end: if one loses its lease, it is given up here."""
        self._leases.note_slow(lease_ids)

    def take_blocked(self) -> bool:
        """Return, once, whether the loop was reported as blocked and isn't any more."""
        return self._renewals.take_blocked()

    def note(self, note: Note) -> None:
        """Send a note about a slot with the next exchange."""
        self._outage.note(note)
        if isinstance(note, Closing):
            self._leases.give_back(self.inbox.take_slot(note.slot))
        is_first = not self._prefetch.notes
        self._prefetch.notes.add(note)
        if is_first:
            self._loop.consider()

    def note_room(self) -> None:
        """Note that a slot may have room now."""
        self._agenda.polling.got_nothing = False
        self._delegate.engine.wake()
        self._loop.consider()

    @property
    def is_paused(self) -> bool:
        """Whether an operator has paused the crawl."""
        return self._backpressure.orders.is_paused

    def ask(self, call: Callable[[], Coroutine[Any, Any, T]], on_answer: Callable[[T], None]) -> bool:
        """Make another call of the frontier as soon as none is in progress; return False if that isn't possible.

        If it fails, `on_answer` isn't called; the caller has to ask again later.
        """
        return self._loop.ask(lambda: self._loop.calls.call(call(), on_answer))

    @property
    def is_away(self) -> bool:
        """Whether the server doesn't answer."""
        return self._outage.failures.is_on or self._loop.is_slow

    @property
    def is_full(self) -> bool:
        """Whether the server has no memory for new requests."""
        return self._backpressure.rejections.is_full

    # For metrics, in any thread.

    @property
    def round_trips(self) -> RoundTrips:
        """The durations of answered exchanges."""
        return self._prefetch.pace.round_trips

    @property
    def silence_s(self) -> float | None:
        """Seconds since the server last answered, None in process."""
        return None if self.frontier.is_local else self._loop.silence_s

    @property
    def loop_lag_s(self) -> float | None:
        """Seconds by which the event loop is late, None if it isn't watched, as in process."""
        return None if self.frontier.is_local else self._renewals.loop_lag_s

    @property
    def sees_work(self) -> bool:
        """Whether any request is left, here or elsewhere, by the last answer."""
        return bool(self.held or self.inbox or self.outbox or self.depth.unfinished)

    def __len__(self) -> int:
        return self.depth.pending + self.depth.delayed + len(self.inbox) + self.outbox.pushes

    def _note_put(self, is_first: bool) -> None:
        self._agenda.note_put(is_first=is_first)
        self._loop.has_ended = False
        if not self.frontier.is_local and (is_first or len(self.outbox) >= BATCH_SIZE or self._agenda.has_outranked()):
            self._loop.consider()

    def _keep_time(self) -> None:
        if not self._loop.alarm.is_set:
            self._loop.consider()

    # Closing

    def close(self, timeout_s: float) -> Deferred[Depth | None]:
        """Commit the outbox, release unfinished leases, and leave the crawl; return the last counts, if known.

        Operations that can't be sent within that time are logged; their requests will be fetched again.
        """
        self._loop.close()
        self._leases.give_all_back()
        leaving: Deferred[Depth | None] = take_leave(
            *(self.frontier, self.runner, self._delegate, self._leases),
            *(self._loop.calls.running, timeout_s, self._loop.ended_by),
        )
        return leaving.addCallback(self._note_last_depth)

    def _note_last_depth(self, depth: Depth | None) -> Depth | None:
        if depth is not None:
            depth = self._loop.last_depth = depth.after(self._loop.last_depth)
        return depth
