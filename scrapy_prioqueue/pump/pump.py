"""The exchange loop: when to talk to the frontier, what to say, and what to do with the answer."""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine, Sequence
from time import monotonic
from typing import Any, Generic, TypeVar

from scrapy.utils.log import failure_to_exc_info
from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from scrapy_prioqueue.errors import FrontierUnavailable, NotPermitted
from scrapy_prioqueue.frontier.base import (
    Ack,
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
from scrapy_prioqueue.pump.bell import Bell
from scrapy_prioqueue.pump.farewell import take_leave
from scrapy_prioqueue.pump.gate import StartGate
from scrapy_prioqueue.pump.host import Host, PumpConfig
from scrapy_prioqueue.pump.inbox import Inbox, Pace
from scrapy_prioqueue.pump.outage import Outage
from scrapy_prioqueue.pump.outbox import BATCH_SIZE, Outbox
from scrapy_prioqueue.pump.refusals import Refusals
from scrapy_prioqueue.pump.timing import (
    DRY_FLUSH_S,
    FLUSH_S,
    FULL_RETRY_S,
    OUTRANKED_S,
    POLL_S,
    POLL_WITHOUT_BELL_S,
    RENEWALS_PER_TTL,
    TICK_S,
)
from scrapy_prioqueue.runtime import Runner, Timer, call_later

logger = logging.getLogger(__name__)

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
        self._starting = False
        self._level = 0
        self._said_idle = False
        self._best_push: int | None = None
        self.gate = StartGate(lambda: self._is_closed or self.outbox.pushes < config.outbox_limit)
        self._outage = Outage(clock)
        self._refusals = Refusals(host, self.outbox)
        self._bell = Bell(frontier, runner, self._on_bell)
        self._has_rung = False
        now = clock()
        self._outbox_since = self._last_exchange = self._last_renewal = self._last_activity = now
        self._poll_at = now

    def open(self) -> Deferred[Joined]:
        """Join the crawl."""
        return self.runner.start(self.frontier.join())

    def start(self) -> None:
        """Begin to exchange; after `open` has succeeded."""
        self._bell.listen()
        self.consider()

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
        if self._last_renewal + self._config.lease_ttl_s <= self._clock():
            # This process was stopped for so long that others have these requests by now.
            self.inbox.drop_older_than(self._config.lease_ttl_s)
        if self.frontier.is_local:
            if not self.inbox:
                self._exchange(limit=1)
        elif self.inbox.has_stale() and self._may_exchange():
            self._exchange()
        if not self.inbox:
            self.consider()
            return None
        active = self._host.active_by_slot()
        lease = self.inbox.take(lambda lease: self._host.may_start(lease.slot, active))
        if lease is not None:
            self.held[lease.lease_id] = lease
            self._last_activity = self._clock()
            self._pace.note_start()
        self._starting = lease is not None
        if len(self.inbox) <= self._level // 2 or self._timer is None:
            self.consider()
        self._starting = False
        return lease

    @property
    def sees_work(self) -> bool:
        """Something is to be done, here or anywhere, as far as the last answer tells."""
        return bool(self.held or self.inbox or self.outbox or self.depth.pending or self.depth.leased)

    def __len__(self) -> int:
        return self.depth.pending + len(self.inbox) + self.outbox.pushes

    def _put(self, operation: Push | Ack | Fail | Release, tag: Tag | None) -> None:
        is_first = not self.outbox
        self.outbox.put(operation, tag)
        self._last_activity = self._clock()
        self.has_ended = False
        self._outbox_since = self._last_activity if is_first else self._outbox_since
        if self.frontier.is_local:
            # Whoever stores a request hears at once whether it is a duplicate; acks go with the next exchange.
            if isinstance(operation, Push) and self._may_exchange():
                self._exchange(limit=0)
        elif is_first or len(self.outbox) >= BATCH_SIZE or self._has_outranked():
            self.consider()

    def _may_exchange(self) -> bool:
        return self._busy is None and not self._is_closed and self._outage.may_try()

    def consider(self) -> None:
        """Exchange now if it is due, else set the timer; whoever changes something of interest calls it."""
        if self._busy is not None or self._is_closed:
            return
        if self._host.is_closing():
            self._give_back(self.inbox.take_all())
        now = self._clock()
        due = max(self._due_at(now), self._outage.retry_at)
        if due > now:
            self._set_timer(min(due, now + TICK_S))
        elif self._last_renewal + self._config.lease_ttl_s / RENEWALS_PER_TTL <= now:
            self._renew()
        else:
            self._exchange(limit=0 if self.frontier.is_local else None)

    def _due_at(self, now: float) -> float:
        times = [self._last_renewal + self._config.lease_ttl_s / RENEWALS_PER_TTL]
        if self.outbox and not self._refusals.must_wait:
            is_long = len(self.outbox) >= BATCH_SIZE
            times.append(now if is_long else self._outbox_since + (DRY_FLUSH_S if self._is_dry else FLUSH_S))
        if self._is_quiet() and not self._said_idle:
            times.append(self._idle_at())
        if not self.frontier.is_local and not self._host.is_closing():
            if self._is_dry:
                times.append(self._poll_at)
            elif self._wanted() > 0 and len(self.inbox) <= self._level // 2:
                times.append(now)
            if self._has_outranked():
                times.append(self._last_exchange + OUTRANKED_S)
        if self._refusals.must_wait:
            times.append(self._last_exchange + FULL_RETRY_S)
        return min(times)

    def _wanted(self) -> int:
        return max(0, self._host.free_places() - self._starting + self._pace.ahead() - len(self.inbox))

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
        self.consider()

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
        self._run(self.frontier.exchange(batches, demand), lambda answer: self._on_exchanged(answer, demand, started))

    def _give_back_worse(self) -> None:
        if self._outage.is_on:
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
        has_suspect = any(attempt > self._config.suspect_attempts for _, attempt in self._leases_here())
        return Demand(wanted, slot_limit, room, is_idle=is_idle, may_take_suspect=not has_suspect)

    def _on_exchanged(self, answer: Exchanged, demand: Demand | None, started: float) -> None:
        now = self._clock()
        self._pace.note_round_trip(now - started)
        self._last_exchange = now
        self._outbox_since = now
        self._host.count("prioqueue/exchange/count")
        for outcome in self.outbox.confirm(answer.committed):
            self._host.settled(outcome)
        self._refusals.note(answer.refusal)
        self._note_losses(answer)
        self.gate.look()
        if demand is None:
            return
        self.depth = answer.depth
        self._host.count("prioqueue/lease/reaped", answer.reaped)
        self._host.count("prioqueue/lease/count", len(answer.leases))
        if self._is_closed:
            self._give_back(answer.leases)
            return
        self.inbox.add(answer.leases)
        self._level = len(self.inbox)
        self._is_dry = demand.limit > 0 and not answer.leases and not self._has_rung
        self._has_rung = False
        poll_s = POLL_S if self._bell.is_heard else POLL_WITHOUT_BELL_S
        self._poll_at = now + (
            poll_s if answer.next_expiry_s is None else min(poll_s, answer.next_expiry_s + DRY_FLUSH_S)
        )
        self.has_ended = answer.has_ended and not self.outbox
        if answer.leases or self.has_ended:
            self._host.wake()

    def _note_losses(self, answer: Exchanged) -> None:
        for letter in answer.buried:
            self._host.buried(letter)
        if answer.has_forgotten:
            self._host.forgotten()
            # What is not started goes back as if it were new; what runs is reported in vain, but it is done.
            for lease in self.inbox.take_all():
                self.outbox.put(Push(lease.rank, lease.slot, lease.payload))

    # Leases and the bell

    def _renew(self) -> None:
        self._last_renewal = self._clock()
        self._run(self.frontier.renew(self._leases_here()), self._on_renewed)

    def _on_renewed(self, lost: Sequence[int]) -> None:
        self.inbox.discard(lost)
        self._host.count("prioqueue/lease/lost", len(lost))
        if lost:
            logger.warning(
                "%d leases of this worker have expired and went to others: it was silent for longer than"
                " PRIOQUEUE_LEASE_TTL, because a callback held it up for example",
                len(lost),
            )

    def _on_bell(self) -> None:
        # An answer that is under way may have been given before the bell was rung.
        self._has_rung = self._busy is not None
        self._is_dry = False
        self.consider()

    # What runs, and what goes wrong

    def _run(self, coroutine: Coroutine[Any, Any, T], on_result: Callable[[T], None]) -> None:
        """Run a call of the frontier; one at a time."""
        running: Deferred[Any] = self.runner.start(coroutine)
        done: Deferred[None] = Deferred()
        self._busy = done
        running.addCallback(self._succeeded, on_result)
        running.addErrback(self._failed)
        running.addErrback(self._on_bug)
        running.addCallback(lambda _: self._ran(done))

    def _ran(self, done: Deferred[Any]) -> None:
        self._busy = None
        done.callback(None)
        self.consider()

    def _succeeded(self, result: T, on_result: Callable[[T], None]) -> Deferred[int] | None:
        was_away = self._outage.is_on
        self._outage.end(self.frontier.address)
        on_result(result)
        if not was_away:
            return None
        self._bell.listen()
        # An answer may have been lost, and with it leases that were granted to us.
        return self.runner.start(self.frontier.reconcile([*self._leases_here(), *self.outbox.leases()]))

    def _leases_here(self) -> list[tuple[int, int]]:
        return [(lease.lease_id, lease.attempt) for lease in (*self.held.values(), *self.inbox)]

    def _failed(self, failure: Failure) -> None:
        error = failure.value
        if isinstance(error, NotPermitted):
            self._is_closed = True
            self._host.stop(error)
            return
        if not isinstance(error, FrontierUnavailable):
            failure.raiseException()
        self._back_off(error)

    def _on_bug(self, failure: Failure) -> None:
        self._back_off(failure.value)
        logger.error("Unexpected error in the exchange with the frontier", exc_info=failure_to_exc_info(failure))

    def _back_off(self, error: BaseException | None) -> None:
        self._said_idle = False
        self._host.count("prioqueue/exchange/failed")
        if error is not None and not self._is_closed:
            self._outage.begin(error)

    # The end

    def close(self, timeout_s: float) -> Deferred[None]:
        """Commit what is left, give back what was not started, leave the crawl.

        What can't be told within that time is logged: those requests will be fetched again.
        """
        self._is_closed = True
        self._cancel_timer()
        self._bell.close()
        self.gate.look()
        self._give_back([*self.inbox.take_all(), *self.held.values()])
        self.held.clear()
        leaving: Deferred[Depth | None] = take_leave(
            self.frontier, self.runner, self.outbox, self._host, self._busy, timeout_s
        )
        return leaving.addCallback(self._note_last_depth)

    def _note_last_depth(self, depth: Depth | None) -> None:
        self.depth = depth or self.depth
