"""The exchange loop: when to exchange, what to send, and how to apply the answer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import isinf
from typing import Generic, TypeVar

from twisted.internet.defer import CancelledError, Deferred
from twisted.python.failure import Failure

from scrapy_prioqueue.errors import NotPermitted
from scrapy_prioqueue.frontier.base import Demand, Depth, Exchanged, Frontier, Orders, Push
from scrapy_prioqueue.frontier.memory import MemoryFrontier
from scrapy_prioqueue.pump.agenda import Agenda
from scrapy_prioqueue.pump.backpressure import Backpressure, StartGate
from scrapy_prioqueue.pump.calls import Bell, Calls
from scrapy_prioqueue.pump.delegate import Delegate
from scrapy_prioqueue.pump.demand import Prefetch
from scrapy_prioqueue.pump.direct import DirectCalls
from scrapy_prioqueue.pump.leases import Leases, Renewals
from scrapy_prioqueue.pump.outage import Outage
from scrapy_prioqueue.pump.outbox import Entry, Outcome
from scrapy_prioqueue.pump.timing import TICK_S
from scrapy_prioqueue.runtime import Alarm, Runner
from scrapy_prioqueue.stats import EXCHANGE_FAILED_STAT, EXCHANGES_STAT, LEASE_REAPED_STAT, LEASES_STAT

Tag = TypeVar("Tag")


class ExchangeLoop(Generic[Tag]):
    """Calls the frontier when that is due: an exchange, or a call that must come before the next one.

    Args:
        clock: monotonic, in seconds.
    """

    def __init__(
        self,
        frontier: Frontier,
        runner: Runner,
        delegate: Delegate[Tag],
        leases: Leases[Tag],
        renewals: Renewals,
        outage: Outage[Tag],
        backpressure: Backpressure,
        prefetch: Prefetch,
        agenda: Agenda,
        clock: Callable[[], float],
    ) -> None:
        self._frontier = frontier
        self._delegate = delegate
        self._leases, self._inbox, self._outbox = leases, leases.inbox, leases.outbox
        self._renewals = renewals
        self._outage, self._failures = outage, outage.failures
        self._backpressure = backpressure
        self._prefetch = prefetch
        self._agenda = agenda
        self._clock = clock
        self.calls = Calls(runner, self, clock, delegate.spider)
        self._bell = Bell(frontier, runner, self._on_bell, delegate.spider)
        self._runner = runner
        self._following: Deferred[None] | None = None
        self.alarm = Alarm(clock, self._on_alarm)
        """Set to when the loop looks again by itself."""
        self._turn = Alarm(clock, self._on_turn)
        self.gate = StartGate(lambda: self.is_closed or self._has_room_for_starts())
        self.direct: DirectCalls[Tag] | None = None
        if isinstance(frontier, MemoryFrontier):
            self.direct = DirectCalls(frontier.direct, delegate, self.calls, leases, agenda, prefetch)
        self.last_depth, self._depth_at = Depth(), clock()
        self._answered_at = clock()
        self.has_ended = self.is_closed = self.is_slow = self._is_awaited = False
        self.ended_by: Exception | None = None
        self._question: Callable[[], None] | None = None

    @property
    def depth(self) -> Depth:
        """The latest known counts of the crawl."""
        now = None if self.direct is None else self.direct.depth
        return self.last_depth if now is None else now

    @property
    def silence_s(self) -> float:
        """Seconds since the server last answered the loop, or the thread that renews leases."""
        return self._clock() - max(self._answered_at, self._renewals.latest)

    def refresh(self, max_age_s: float) -> bool:
        """Return whether `depth` is no older than that; otherwise make an exchange."""
        is_current = self.direct is not None and self.direct.depth is not None
        if is_current or self._clock() - self._depth_at <= max_age_s:
            return True
        self._agenda.must_ask_depth = True
        self.consider()
        return False

    def start(self) -> None:
        """Begin to exchange."""
        self._bell.listen()
        self._following = self._runner.start(self._frontier.follow(self._runner.on_scrapy_loop(self._on_move)))
        self._following.addErrback(_end_quietly)
        self.consider()

    def close(self) -> None:
        """Stop exchanging; a call in progress continues."""
        self.is_closed = True
        if self.direct is not None:
            self.direct.count()
        self.alarm.cancel()
        self._turn.cancel()
        self._outage.close()
        self.calls.close()
        self._bell.close()
        if self._following is not None:
            self._following.cancel()
        self._renewals.close()
        self.gate.look()

    def _has_room_for_starts(self) -> bool:
        held, pending = len(self._leases.held), self._backpressure.pending
        has_work = bool(held or self._inbox or self._outbox or pending or self.depth.leased)
        taken = held + len(self._inbox) + self._outbox.pushes
        is_starving = self._agenda.polling.got_nothing and taken < self._delegate.engine.concurrency
        return self._backpressure.has_room_for_starts(has_work=has_work, is_starving=is_starving)

    def may_exchange(self) -> bool:
        """Return whether an exchange may be made at once."""
        is_busy = self.calls.running is not None or self.is_closed or self._leases.must_check
        return not is_busy and self._failures.may_try()

    # The next call

    def consider(self) -> None:
        """Exchange if an exchange is due, otherwise set the timer; to be called after any relevant change."""
        if self.calls.is_busy or self.is_closed:
            return
        if self.direct is not None:
            self.direct.count()
        if self._delegate.engine.is_closing or self._delegate.engine.is_paused:
            self._leases.give_back(self._inbox.take_all())
        now = self._clock()
        due = self._failures.retry_at if self._failures.is_on else self._agenda.due_at(now)
        if self._outage.claims.must_report or self._outage.claims.must_find:
            due = min(due, self._failures.retry_at)
        if self._question is not None and not (self._failures.is_on or self._leases.must_check):
            question, self._question = self._question, None
            question()
        elif due > now:
            self.alarm.set(min(due, now + TICK_S))
        else:
            self._call()

    def _call(self) -> None:
        if self._leases.must_check:
            self._renewals.note_begin()
            self.calls.call(self._frontier.renew(self._leases.all_tokens()), self._on_checked)
        elif self._failures.is_on:
            self.exchange()
        elif self._leases.must_reconcile:
            self.calls.call(self._frontier.reconcile(self._leases.all_tokens()), self._leases.note_reconciled)
        elif self._renewals.due_at <= self._clock():
            self._renewals.note_begin()
            self.calls.call(self._frontier.renew(self._leases.unsent_tokens()), self._renewals.note_end)
        elif not self._ask():
            self.exchange(limit=0 if self._frontier.is_local else None)

    def _ask(self) -> bool:
        """Make a call that must come before the next exchange; False if there is none."""
        if self._backpressure.rejections.must_look_up:
            self._look_up()
        elif (call := self._outage.next_call()) is not None:
            self.calls.call(*call)
        else:
            return False
        return True

    def _look_up(self) -> None:
        entries = self._outbox.next_look_up()
        pushes = [entry.operation for entry in entries if isinstance(entry.operation, Push)]
        self.calls.call(self._frontier.known(pushes), lambda known: self._on_known([entries[index] for index in known]))

    def _on_known(self, entries: Sequence[Entry[Tag]]) -> None:
        self._backpressure.rejections.must_look_up = False
        self._outbox.put_forward(entries)

    def _on_alarm(self) -> None:
        if self._inbox or self._outage.queue.is_on or self._agenda.awaits_time():
            # Slots of leases that were full when the engine last asked may have room now.
            self._delegate.engine.wake()
        self.consider()

    def _look_at_times(self) -> None:
        """Release leases past their deadlines, and set the timer for the next start."""
        self._leases.give_back(self._inbox.take_late())
        at = self._inbox.next_turn()
        if not isinf(at):
            self._turn.set(at)

    def _on_turn(self) -> None:
        self._look_at_times()
        self._delegate.engine.wake()
        self.consider()

    # The exchange

    def exchange(self, limit: int | None = None) -> None:
        """Start an exchange that leases up to `limit` requests, None for as many as can be used."""
        if not self._failures.is_on:
            self._prefetch.pace.note_given_back(self._leases.give_back_worse(self._agenda.pushed))
        is_idle = self._agenda.is_idle()
        may_send = self._backpressure.rejections.may_send_requests()
        # In an outage only batches that were already sent are repeated; other requests stay free to be started here.
        batches = self._outbox.batches(is_new=not self._failures.is_on, with_requests=may_send)
        had_requests = self._outbox.has_cut_requests()
        # Without operations the worker must ask, or it would learn nothing about the server.
        last = None if batches else Demand(0)
        demand = last
        if not self._delegate.engine.is_closing:
            kept = self._delegate.changed_kept()
            if kept is not None:
                self._prefetch.notes.add(kept)
            demand = self._prefetch.demand(limit, is_idle=is_idle, with_later=self._agenda.asks_for_slots())
        away_ms = self._outage.claims.away_ms()
        if demand is not None and away_ms:
            demand = replace(demand, away_ms=away_ms)
        self._agenda.has_reported_idle = demand is not None and is_idle
        self._agenda.note_exchange()
        started = self._clock()

        self.calls.call(
            self._frontier.exchange(batches, demand),
            lambda answer: self._on_exchanged(answer, demand, started, had_requests=had_requests),
        )

    def _on_exchanged(self, answer: Exchanged, demand: Demand | None, started: float, *, had_requests: bool) -> None:
        self._renewals.note_beats()
        now = self._clock()
        self._prefetch.pace.note_round_trip(now - started)
        self._agenda.note_answer()
        self._delegate.count(EXCHANGES_STAT)
        for outcome in self._outbox.confirm(answer.committed):
            self._note_outcome(outcome)
        self._backpressure.rejections.note(answer.rejection, had_requests=had_requests)
        self._note_losses(answer)
        is_complete = demand is not None and answer.recall is None
        if is_complete:
            self._backpressure.note_answer(answer)
        self.gate.look()
        if demand is None or not is_complete:
            return
        self.last_depth, self._depth_at = answer.depth.after(self.last_depth), now
        self._outage.note_answer(answer, demand.away_ms)
        self._prefetch.workers = answer.depth.workers
        self._prefetch.notes.confirm(len(demand.notes))
        self._delegate.count(LEASE_REAPED_STAT, answer.reaped)
        self._delegate.count(LEASES_STAT, len(answer.leases))
        # After a stop of this process or its loop, these leases may have expired and belong to other workers.
        self._obey(answer.orders)
        if self.is_closed or self._renewals.may_be_elsewhere(now, since=started):
            self._leases.give_back(answer.leases)
            return
        has_due = self._leases.accept(answer.leases, (started + now) / 2)
        if any(lease.start_in_ms or lease.late_ms is not None for lease in answer.leases):
            self._look_at_times()
        # If nothing was demanded, for example because of claims, and something is wanted now, the next one is due.
        self._agenda.note_leases(is_complete=demand.limit > 0 or not self._prefetch.wanted())
        self._agenda.polling.note_answer(answer, demand, now, has_due=has_due, hears_bell=self._bell.is_heard)
        self.has_ended = answer.has_ended and not self._outbox
        self.gate.look()
        if answer.leases or self.has_ended:
            self._delegate.engine.wake()

    def _note_outcome(self, outcome: Outcome[Tag]) -> None:
        if isinstance(outcome.operation, Push):
            self._outage.repeats.note_pushed(outcome.operation, was_known=outcome.is_duplicate)
        self._delegate.note_outcome(outcome)

    def _obey(self, orders: Orders) -> None:
        if orders.is_flooded and not self._backpressure.orders.is_flooded:
            # Only unstarted leases from before the flood: the frontier has granted those of this answer in spite of it.
            self._leases.give_back(self._inbox.take_tiers(self._frontier.config.policy.discovery))
        if orders != self._backpressure.orders:
            self._backpressure.orders = orders
            self._delegate.ordered(orders)
        self.gate.look()
        if orders.is_paused:
            self._leases.give_back(self._inbox.take_all())

    def _note_losses(self, answer: Exchanged) -> None:
        self._delegate.note_answer(answer)
        if answer.recall is not None:
            self._agenda.has_reported_idle = False
            self._outbox.put_back(certainly=True)
            self._leases.must_check = self._leases.must_reconcile = True
            self._delegate.recalled(answer.recall)

    def _on_checked(self, lost: Sequence[int]) -> None:
        self._renewals.note_end(())
        self._leases.must_check = False
        self._leases.claim_forgotten(lost)

    def _on_bell(self) -> None:
        self._agenda.polling.note_ring(is_asking=self.calls.is_busy)
        self.consider()

    def _on_move(self) -> None:
        self._failures.retry_soon(self.last_depth.workers)
        self.consider()

    def ask(self, question: Callable[[], None]) -> bool:
        """Make another call before the next exchange; return False if that isn't possible."""
        if self._question is not None or self._failures.is_on or self.is_closed:
            return False
        self._question = question
        self.consider()
        return True

    def await_answer(self) -> bool:
        """Exchange if that is due; return whether a pending answer may bring a request to start now.

        The delegate is woken when the answer arrives or will not come.
        """
        self.consider()
        self._is_awaited = self.calls.is_busy or self._outbox.pushes > 0
        return self._is_awaited

    # Events of calls

    def on_answer(self) -> None:
        self.is_slow = False
        self._answered_at = self._clock()
        if self._outage.end():
            self._bell.listen()

    def on_slow(self) -> None:
        self.is_slow = True
        if self._is_awaited:
            self._delegate.engine.wake()
        if not self.is_closed:
            self._outage.begin()

    def on_failure(self, error: BaseException | None, *, was_sent: bool) -> None:
        self._agenda.has_reported_idle = False
        self._delegate.count(EXCHANGE_FAILED_STAT)
        self._outbox.note_failure(was_sent=was_sent)
        # The answer may have been lost, and with it leases granted to this worker.
        self._leases.must_reconcile = self._leases.must_reconcile or was_sent
        if error is not None and not self.is_closed:
            self._outage.fail(error, self.last_depth.workers)
            self.on_slow()

    def on_not_permitted(self, why: NotPermitted) -> None:
        self.is_closed, self.ended_by = True, why
        self._delegate.stop(why)

    def on_free(self) -> None:
        must_check = self._leases.must_check or self._leases.must_reconcile
        is_renewed = self._renewals.due_at > self._clock()
        self._outage.look(is_back=is_renewed and not (self._failures.is_on or must_check))
        self.consider()
        if self._is_awaited:
            self._is_awaited = False
            self._delegate.engine.wake()


def _end_quietly(failure: Failure) -> None:
    failure.trap(CancelledError)  # type: ignore[no-untyped-call]
