"""The exchange loop: when to talk to the frontier, what to say, and what to do with the answer."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Coroutine, Sequence
from time import monotonic
from typing import Any, Generic, TypeVar

from scrapy.utils.log import failure_to_exc_info
from twisted.internet.defer import CancelledError, Deferred, inlineCallbacks
from twisted.python.failure import Failure

from scrapy_prioqueue.errors import CrawlEnded, FrontierFull, FrontierUnavailable, NotPermitted
from scrapy_prioqueue.frontier.base import (
    Ack,
    Batch,
    Demand,
    Depth,
    Exchanged,
    Fail,
    Frontier,
    Joined,
    Lease,
    Push,
    Release,
)
from scrapy_prioqueue.pump.host import Host, PumpConfig
from scrapy_prioqueue.pump.inbox import Inbox, Pace
from scrapy_prioqueue.pump.outbox import BATCH_SIZE, Outbox
from scrapy_prioqueue.runtime import Runner, Timer, call_later

logger = logging.getLogger(__name__)

FLUSH_S = 0.05
"""Longest time that something waits in the outbox before an exchange is due for it alone."""

OUTRANKED_S = 0.025
"""Shortest time between two exchanges made because something better than the inbox was pushed here."""

POLL_S = 1.0
"""Time between two questions for work where the frontier had none; its bell shortens it."""

POLL_WITHOUT_BELL_S = 0.4
"""The same where the server lets us hear no bell."""

TICK_S = 0.25
"""Longest time until the pump looks around, for example whether the spider is being closed."""

FULL_RETRY_S = 1.0
"""Time between two tries to push to a server that has no memory left."""

FIRST_RETRY_S, LAST_RETRY_S = 0.1, 5.0
"""Time between two tries to reach a server that is away, doubled from the first to the last, with jitter."""

RENEWALS_PER_TTL = 3

Tag = TypeVar("Tag")
T = TypeVar("T")


class Pump(Generic[Tag]):
    """Keeps an inbox of leased requests filled and an outbox empty, one exchange at a time.

    Over an in-process frontier an exchange is made for every call and the inbox stays empty, so that order is exact.
    Tags are whatever the host puts in with an operation and wants back with its outcome.
    """

    def __init__(
        self,
        frontier: Frontier,
        runner: Runner,
        host: Host[Tag],
        config: PumpConfig,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self.frontier = frontier
        self.runner = runner
        self.outbox: Outbox[Tag] = Outbox()
        self.inbox = Inbox(clock)
        self.held: dict[int, Lease] = {}
        self.depth = Depth()
        self.has_ended = False
        self._host = host
        self._config = config
        self._clock = clock
        self._pace = Pace(1 if frontier.is_local else config.concurrency, clock)
        self._busy: Deferred[Any] | None = None
        self._timer: Timer | None = None
        self._timer_at = 0.0
        self._is_closed = False
        self._is_dry = False
        self._level = 0
        self._said_idle = False
        self._best_push: int | None = None
        self._start_waiters: list[Deferred[None]] = []
        self._failures = 0
        self._is_full = False
        self._hears_bell = False
        self._bell: Deferred[Any] | None = None
        now = clock()
        self._outbox_since = self._last_exchange = self._last_renewal = self._last_activity = now
        self._retry_at = now

    # What the scheduler calls

    def open(self) -> Deferred[Joined]:
        """Join the crawl."""
        return self.runner.start(self.frontier.join())

    def start(self) -> None:
        """Begin to exchange; after `open` has succeeded."""
        self._listen()
        self._consider()

    def push(self, operation: Push, tag: Tag) -> None:
        """Store a request; its outcome comes back through `Host.settled`."""
        self._best_push = operation.rank if self._best_push is None else min(self._best_push, operation.rank)
        self._put(operation, tag)

    def finish(self, operation: Ack | Fail | Release) -> None:
        """Settle a lease that `take` has handed out; nothing happens if it isn't held here any more."""
        if self.held.pop(operation.lease_id, None) is not None:
            self._put(operation, None)

    def take(self) -> Lease | None:
        """Return the request to start now, or None."""
        if self._is_closed or self._host.is_closing():
            return None
        if self.frontier.is_local:
            if not self.inbox:
                self._exchange(limit=1)
        elif self.inbox.has_stale() and self._may_exchange():
            self._exchange()
        if not self.inbox:
            self._consider()
            return None
        active = self._host.active_by_slot()
        lease = self.inbox.take(lambda lease: self._host.may_start(lease.slot, active))
        if lease is not None:
            self.held[lease.lease_id] = lease
            self._last_activity = self._clock()
            self._pace.note_start()
        self._consider()
        return lease

    def best_rank(self) -> int | None:
        """Return the rank of the best request in the inbox."""
        return next(iter(self.inbox)).rank if self.inbox else None

    def room_for_start(self) -> Deferred[None] | None:
        """Return None if `start()` may go on, else a Deferred that fires when it may."""
        if self._is_closed or self.outbox.pushes < self._config.outbox_limit:
            return None
        waiter: Deferred[None] = Deferred()
        self._start_waiters.append(waiter)
        return waiter

    def look_again(self) -> None:
        """Something has changed outside: `start()` is used up, a place is free."""
        self._consider()

    def __len__(self) -> int:
        return self.depth.pending + len(self.inbox) + self.outbox.pushes

    # When to exchange

    def _put(self, operation: Push | Ack | Fail | Release, tag: Tag | None) -> None:
        if not self.outbox:
            self._outbox_since = self._clock()
        self.outbox.put(operation, tag)
        self._last_activity = self._clock()
        self.has_ended = False
        if self.frontier.is_local and self._may_exchange():
            self._exchange(limit=0)
        else:
            self._consider()

    def _may_exchange(self) -> bool:
        return self._busy is None and not self._is_closed and self._retry_at <= self._clock()

    def _consider(self) -> None:
        """Exchange now if it is due, else set the timer."""
        if self._busy is not None or self._is_closed:
            return
        if self._host.is_closing():
            self._give_back(self.inbox.take_all())
        now = self._clock()
        due = max(self._due_at(now), self._retry_at)
        if due > now:
            self._set_timer(min(due, now + TICK_S))
        elif self._last_renewal + self._config.lease_ttl_s / RENEWALS_PER_TTL <= now:
            self._renew()
        else:
            self._exchange(limit=0 if self.frontier.is_local else None)

    def _due_at(self, now: float) -> float:
        times = [self._last_renewal + self._config.lease_ttl_s / RENEWALS_PER_TTL]
        if self.outbox and not self._is_full:
            is_urgent = self._is_dry or len(self.outbox) >= BATCH_SIZE
            times.append(now if is_urgent else self._outbox_since + FLUSH_S)
        if self._is_quiet() and not self._said_idle:
            times.append(self._idle_at())
        poll_s = POLL_S if self._hears_bell else POLL_WITHOUT_BELL_S
        if not self.frontier.is_local and not self._host.is_closing():
            if self._is_dry:
                times.append(self._last_exchange + poll_s)
            elif self._wanted() > 0 and len(self.inbox) <= self._level // 2:
                times.append(now)
            if self._has_outranked():
                times.append(self._last_exchange + OUTRANKED_S)
        if self._is_full:
            times.append(self._last_exchange + FULL_RETRY_S)
        return min(times)

    def _wanted(self) -> int:
        return max(0, self._host.free_places() + self._pace.ahead() - len(self.inbox))

    def _has_outranked(self) -> bool:
        best = self._best_push
        return best is not None and any(lease.rank > best for lease in self.inbox)

    def _is_quiet(self) -> bool:
        """Nothing runs, waits or is to come here."""
        return not (self.held or self.inbox or self.outbox or self._host.has_own_work())

    def _idle_at(self) -> float:
        return self._last_activity + self._config.max_idle_s

    def _set_timer(self, at: float) -> None:
        if self._timer is not None and self._timer_at <= at:
            return
        self._cancel_timer()
        self._timer_at = at
        self._timer = call_later(max(0, at - self._clock()), self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        if self.inbox:
            # Leases whose slots were full when the engine last asked may start by now.
            self._host.wake()
        self._consider()

    def _cancel_timer(self) -> None:
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()

    # The exchange

    def _exchange(self, limit: int | None = None) -> None:
        """Start an exchange that leases up to `limit` requests, None for as many as can be used."""
        self._give_back_worse()
        is_idle = self._is_quiet() and self._idle_at() <= self._clock()
        batches = self.outbox.batches()
        demand = None if self._host.is_closing() else self._demand(limit, is_idle=is_idle)
        self._said_idle = demand is not None and is_idle
        self._best_push = None
        started = self._clock()
        self._run(
            self.frontier.exchange(batches, demand), lambda answer: self._on_exchanged(answer, demand, started, batches)
        )

    def _give_back_worse(self) -> None:
        if self._failures:
            return
        self._give_back(self.inbox.take_stale())
        if self._best_push is not None:
            self._give_back(self.inbox.take_outranked(self._best_push))

    def _give_back(self, leases: Sequence[Lease]) -> None:
        for lease in leases:
            self.outbox.put(Release(lease.lease_id, lease.attempt))
        if leases:
            self._host.count("prioqueue/lease/released", len(leases))

    def _demand(self, limit: int | None, *, is_idle: bool) -> Demand:
        wanted = self._wanted() if limit is None else limit
        if not wanted:
            return Demand(0, is_idle=is_idle)
        ahead = self._pace.ahead()
        slot_limit, room = self._host.slot_room(self._host.active_by_slot(), self.inbox.by_slot(), ahead)
        return Demand(wanted, slot_limit, room, is_idle=is_idle)

    def _on_exchanged(self, answer: Exchanged, demand: Demand | None, started: float, batches: Sequence[Batch]) -> None:
        now = self._clock()
        self._pace.note_round_trip(now - started)
        self._last_exchange = now
        self._outbox_since = now
        self._host.count("prioqueue/exchange/count")
        for outcome in self.outbox.confirm(answer.committed):
            self._host.settled(outcome)
        self._note_refusal(answer.refusal)
        self._release_start()
        if demand is None:
            return
        self.depth = answer.depth
        self._host.count("prioqueue/lease/reaped", answer.reaped)
        self._host.count("prioqueue/lease/count", len(answer.leases))
        self.inbox.add(answer.leases)
        self._level = len(self.inbox)
        self._is_dry = demand.limit > 0 and not answer.leases
        self.has_ended = answer.has_ended and not self.outbox
        if answer.leases or self.has_ended:
            self._host.wake()

    def _note_refusal(self, refusal: Exception | None) -> None:
        is_full = isinstance(refusal, FrontierFull)
        if is_full and not self._is_full:
            logger.warning("%s; requests wait here until there is room", refusal)
        elif self._is_full and not is_full:
            logger.info("The frontier takes requests again")
        self._is_full = is_full
        if isinstance(refusal, CrawlEnded):
            lost = self.outbox.abandon()
            if lost:
                logger.error("%d requests were not stored: %s", lost, refusal)
                self._host.count("prioqueue/refused", lost)
        elif refusal is not None and not is_full:
            logger.error("%s", refusal)

    def _release_start(self) -> None:
        if self._start_waiters and self.outbox.pushes < self._config.outbox_limit:
            waiters, self._start_waiters = self._start_waiters, []
            for waiter in waiters:
                waiter.callback(None)

    # Leases and the bell

    def _renew(self) -> None:
        self._last_renewal = self._clock()
        leases = [(lease.lease_id, lease.attempt) for lease in (*self.held.values(), *self.inbox)]
        self._run(self.frontier.renew(leases), self._on_renewed)

    def _on_renewed(self, lost: Sequence[int]) -> None:
        self.inbox.discard(lost)
        self._host.count("prioqueue/lease/lost", len(lost))

    def _listen(self) -> None:
        listen = getattr(self.frontier, "listen", None)
        if listen is None or self._bell is not None:
            return
        self._hears_bell = True
        self._bell = self.runner.start(listen(self.runner.on_scrapy_loop(self._on_bell)))
        self._bell.addErrback(self._on_bell_lost)

    def _on_bell(self) -> None:
        self._is_dry = False
        self._consider()

    def _on_bell_lost(self, failure: Failure) -> None:
        self._hears_bell, self._bell = False, None
        if not self._is_closed:
            logger.debug("No bell from the frontier, polling instead: %s", failure.value)

    # What runs, and what goes wrong

    def _run(self, coroutine: Coroutine[Any, Any, T], on_result: Callable[[T], None]) -> None:
        """Run a call of the frontier; one at a time."""
        running = self.runner.start(coroutine)
        done: Deferred[None] = Deferred()
        self._busy = done
        running.addCallback(self._succeeded)
        running.addCallbacks(on_result, self._failed)
        running.addErrback(self._on_bug)
        running.addCallback(lambda _: self._ran(done))

    def _ran(self, done: Deferred[Any]) -> None:
        self._busy = None
        done.callback(None)
        self._consider()

    def _succeeded(self, result: T) -> T | Deferred[T]:
        if not self._failures:
            return result
        logger.info("The frontier at %s answers again", self.frontier.address)
        self._failures = 0
        self._listen()
        held = [(lease.lease_id, lease.attempt) for lease in (*self.held.values(), *self.inbox)]
        granted = result.leases if isinstance(result, Exchanged) else ()
        held += [(lease.lease_id, lease.attempt) for lease in granted]
        # An answer may have been lost, and with it leases that were granted to us.
        reconciled: Deferred[Any] = self.runner.start(self.frontier.reconcile(held))
        return reconciled.addCallback(lambda _: result)

    def _failed(self, failure: Failure) -> None:
        error = failure.value
        if isinstance(error, NotPermitted):
            self._is_closed = True
            self._host.stop(error)
            return
        if not isinstance(error, FrontierUnavailable):
            failure.raiseException()
        self._back_off()
        if self._failures == 1 and not self._is_closed:
            logger.warning("%s; the crawl goes on with the requests that are here, and tries again", error)

    def _on_bug(self, failure: Failure) -> None:
        self._back_off()
        logger.error("Unexpected error in the exchange with the frontier", exc_info=failure_to_exc_info(failure))

    def _back_off(self) -> None:
        self._failures += 1
        self._said_idle = False
        self._host.count("prioqueue/exchange/failed")
        longest = min(LAST_RETRY_S, FIRST_RETRY_S * 2 ** min(self._failures - 1, 10))
        self._retry_at = self._clock() + longest * random.uniform(0.5, 1)

    # The end

    @inlineCallbacks
    def close(self, timeout_s: float) -> Any:
        """Commit what is left, give back what was not started, leave the crawl.

        What can't be told within that time is logged: those requests will be fetched again.
        """
        self._is_closed = True
        self._cancel_timer()
        if self._bell is not None:
            self._bell.cancel()
        for waiter in self._start_waiters:
            waiter.cancel()
        self._give_back([*self.inbox.take_all(), *self.held.values()])
        self.held.clear()
        leaving: Deferred[None] = self._leave()
        timer = call_later(timeout_s, leaving.cancel)
        try:
            yield leaving
        except Exception as error:
            logger.warning(
                "Closed without telling the frontier at %s everything (%s): %d acks and requests were not sent."
                " Its leases expire, and those pages are fetched again.",
                self.frontier.address,
                "no answer in time" if isinstance(error, CancelledError) else error,
                len(self.outbox),
            )
        else:
            timer.cancel()
        yield self.runner.start(self.frontier.close())
        self.runner.close()

    @inlineCallbacks
    def _leave(self) -> Any:
        if self._busy is not None:
            yield self._busy
        while self.outbox:
            answer: Exchanged = yield self.runner.start(self.frontier.exchange(self.outbox.batches(), None))
            for outcome in self.outbox.confirm(answer.committed):
                self._host.settled(outcome)
            if answer.refusal is not None:
                raise answer.refusal
        yield self.runner.start(self.frontier.leave())
