"""The exchange loop: when to exchange, what to send, and how to apply the answer."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from time import monotonic
from typing import Generic, TypeVar

from scrapy_prioqueue.errors import NotPermitted
from scrapy_prioqueue.frontier.base import (
    Demand,
    Depth,
    Exchanged,
    Frontier,
    Orders,
    Push,
)
from scrapy_prioqueue.pump.agenda import Agenda, Hunger
from scrapy_prioqueue.pump.bell import Bell
from scrapy_prioqueue.pump.calls import Line
from scrapy_prioqueue.pump.demand import Demands, Notes, Pace
from scrapy_prioqueue.pump.heartbeat import Renewals
from scrapy_prioqueue.pump.host import Host, PumpConfig
from scrapy_prioqueue.pump.inbox import Inbox
from scrapy_prioqueue.pump.leases import Possession
from scrapy_prioqueue.pump.limits import Limits, StartGate
from scrapy_prioqueue.pump.outage import Outage, Returning, Standby
from scrapy_prioqueue.pump.outbox import Entry, Hold, Outbox, Settled
from scrapy_prioqueue.pump.refusals import Refusals
from scrapy_prioqueue.pump.shares import OwnRates, Shares
from scrapy_prioqueue.pump.shortcut import Shortcut
from scrapy_prioqueue.pump.starts import Choice, Schedule
from scrapy_prioqueue.pump.timing import TICK_S
from scrapy_prioqueue.runtime import Alarm, Runner

logger = logging.getLogger(__name__)

Tag = TypeVar("Tag")


class ExchangeLoop(Generic[Tag]):
    """Makes one exchange at a time, with all that the parts of a pump send or ask."""

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
        self.inbox = Inbox(
            clock,
            keeps_order=bool(frontier.config.policy.weights),
            places=host.free_places,
            keep_s=lambda: self._demands.keep_s(),
        )
        self._depth, self.has_ended = Depth(), False
        self.gate = StartGate(lambda: self._is_closed or self._has_room_for_starts())
        self._host = host
        self._config = config
        self._clock = clock
        self._pace = Pace((lambda: 1) if frontier.is_local else host.concurrency, clock, host.concurrency)
        self._line = Line(runner, self, clock)
        self._alarm = Alarm(clock, self._on_alarm)
        self._is_closed = self._is_slow = self._is_awaited = False
        self._refused_by: Exception | None = None
        self._question: Callable[[], None] | None = None
        self._possession: Possession[Tag] = Possession(self.inbox, self.outbox, host)
        self._outage = Outage(
            clock, goes_on=config.goes_on, lease_ttl_s=config.lease_ttl_s, grace_s=config.outage_grace_s
        )
        self._grace = Alarm(clock, self._on_grace)
        self._shares = Shares(frontier.config.worker, clock)
        self._returning: Returning[Tag] = Returning(self.outbox, host, self._shares, config, clock)
        self._rates = OwnRates(frontier, self._shares, self._possession, clock, host.wake)
        self._standby: Standby[Tag] = Standby(self.outbox, frontier.config.order, self._shares, self._rates)
        self._choice = Choice(self.inbox, self._standby, host)
        self._refusals = Refusals(frontier, host, self.outbox, clock)
        self._limits = Limits(self.outbox, self._refusals, self._outage, config, frontier.config.policy)
        self._renewals = Renewals(
            frontier, self._possession, self.inbox, host, config.lease_ttl_s, config.slow_page_s, clock
        )
        self._notes = Notes(clock)
        common = (frontier, host, config, self.inbox, self.outbox, self._possession)
        self._demands = Demands(*common, self._pace, self._limits, self._notes)
        self._schedule = Schedule(self.inbox, self._possession, clock, self._on_turn)
        self._bell = Bell(frontier, runner, self._on_bell)
        self._hunger = Hunger(clock(), is_local=frontier.is_local)
        others = (self._refusals, self._renewals, self._hunger, self._demands, self._notes)
        self._agenda = Agenda(*common, *others, clock)
        self._shortcut: Shortcut[Tag] = Shortcut(
            *(frontier, host, self._line, self.inbox, self.outbox, self._agenda, self._notes, self.held)
        )

    @property
    def depth(self) -> Depth:
        """Counts, as far as is known here."""
        return self._shortcut.depth or self._depth

    @depth.setter
    def depth(self, depth: Depth) -> None:
        self._depth = depth

    @property
    def held(self) -> dict[int, Hold]:
        """What was taken and is not finished, by the id that it was taken under."""
        return self._possession.held

    def _has_room_for_starts(self) -> bool:
        has_work = bool(self.held or self.inbox or self.outbox or self._limits.pending or self.depth.leased)
        taken = len(self.held) + len(self.inbox) + self.outbox.pushes
        is_starving = self._hunger.is_dry and taken < self._host.concurrency()
        return self._limits.has_room_for_starts(has_work=has_work, is_starving=is_starving)

    def _may_exchange(self) -> bool:
        is_busy = self._line.is_busy or self._is_closed or self._possession.must_check
        return not is_busy and self._outage.may_try()

    # What to do now

    def consider(self) -> None:
        """Exchange now if that is due, else set the timer; call it after any change that matters."""
        if self._line.is_busy or self._is_closed:
            return
        self._shortcut.tell()
        if self._host.is_closing() or self._host.is_paused():
            self._possession.give_back(self.inbox.take_all())
        now = self._clock()
        due = self._outage.retry_at if self._outage.is_on else self._agenda.due_at(now)
        if self._returning.must_tell or self._returning.must_find:
            due = min(due, self._outage.retry_at)
        if self._question is not None and not (self._outage.is_on or self._possession.must_check):
            question, self._question = self._question, None
            question()
        elif due > now:
            self._alarm.set(min(due, now + TICK_S))
        else:
            self._call()

    def _call(self) -> None:
        if self._possession.must_check:
            self._renewals.note_begin()
            self._line.call(self.frontier.renew(self._possession.all_tokens()), self._on_checked)
        elif self._outage.is_on:
            self._exchange()
        elif self._possession.must_reconcile:
            self._line.call(self.frontier.reconcile(self._possession.all_tokens()), self._possession.note_reconciled)
        elif self._renewals.due_at <= self._clock():
            self._renewals.note_begin()
            self._line.call(self.frontier.renew(self._possession.untold_tokens()), self._renewals.note_end)
        elif not self._ask():
            self._exchange(limit=0 if self.frontier.is_local else None)

    def _ask(self) -> bool:
        """Make the calls that must come before the next exchange; False for none."""
        if self._refusals.must_look_up:
            self._look_up()
        elif self._returning.must_find:
            self._line.call(self.frontier.pending(*self._returning.next_piece()), self._returning.note_piece)
        elif self._shares.must_list and not self.frontier.is_local:
            self._line.call(self.frontier.workers(), self._shares.note_workers)
        elif self._config.goes_on and self._limits.has_limits and self._rates.must_look and not self.frontier.is_local:
            self._line.call(self.frontier.limits_in_force(), self._rates.note_in_force)
        else:
            return False
        return True

    def _look_up(self) -> None:
        entries = self.outbox.next_look_up()
        pushes = [entry.operation for entry in entries if isinstance(entry.operation, Push)]
        self._line.call(self.frontier.known(pushes), lambda known: self._on_known([entries[index] for index in known]))

    def _on_known(self, entries: Sequence[Entry[Tag]]) -> None:
        self._refusals.must_look_up = False
        self.outbox.put_forward(entries)

    def _on_alarm(self) -> None:
        if self.inbox or self._standby.is_on or self._agenda.awaits_time():
            # Leases whose slots were full when the engine last asked may start by now.
            self._host.wake()
        self.consider()

    def _on_turn(self) -> None:
        self._host.wake()
        self.consider()

    # The exchange

    def _exchange(self, limit: int | None = None) -> None:
        """Start an exchange that leases up to `limit` requests, None for as many as can be used."""
        if not self._outage.is_on:
            self._pace.note_given_back(self._possession.give_back_worse(self._agenda.pushed))
        is_idle = self._agenda.is_idle()
        may_send = self._refusals.may_send_requests()
        # While the server is away, what it may have got is sent again, and the rest is kept free to be worked on here.
        batches = self.outbox.batches(is_new=not self._outage.is_on, with_requests=may_send)
        had_requests = self.outbox.has_cut_requests()
        last = None if batches else Demand(0)  # something has to be said, or an answer would tell nothing of the server
        demand = last
        if not self._host.is_closing():
            kept = self._host.changed_kept()
            if kept is not None:
                self._notes.add(kept)
            demand = self._demands.demand(limit, is_idle=is_idle, with_later=self._agenda.asks_for_slots())
        away_ms = self._returning.away_ms()
        if demand is not None and away_ms:
            demand = replace(demand, away_ms=away_ms)
        self._agenda.has_said_idle = demand is not None and is_idle
        self._agenda.note_exchange()
        started = self._clock()

        self._line.call(
            self.frontier.exchange(batches, demand),
            lambda answer: self._on_exchanged(answer, demand, started, had_requests=had_requests),
        )

    def _on_exchanged(self, answer: Exchanged, demand: Demand | None, started: float, *, had_requests: bool) -> None:
        self._renewals.note_beats()
        now = self._clock()
        self._pace.note_round_trip(now - started)
        self._agenda.note_answer()
        self._host.count("prioqueue/exchange/count")
        for outcome in self.outbox.confirm(answer.committed):
            self._settled(outcome)
        self._refusals.note(answer.refusal, had_requests=had_requests)
        self._note_losses(answer)
        is_told = demand is not None and answer.recall is None
        if is_told:
            self._limits.note_answer(answer)
        self.gate.look()
        if demand is None or not is_told:
            return
        self._depth = answer.depth
        self._shares.note_alive(answer.depth.workers)
        self._demands.workers = answer.depth.workers
        self._returning.note_sent(demand.away_ms)
        self._notes.confirm(len(demand.notes))
        self._host.count("prioqueue/lease/reaped", answer.reaped)
        self._host.count("prioqueue/lease/count", len(answer.leases))
        # After a stop of this process, or of its loop, others have these requests by now.
        self._obey(answer.orders)
        if self._is_closed or self._renewals.may_be_elsewhere(now, since=started):
            self._possession.give_back(answer.leases)
            return
        has_food = self._possession.accept(answer.leases, (started + now) / 2)
        if any(lease.start_in_ms or lease.late_ms is not None for lease in answer.leases):
            self._schedule.look()
        # Where nothing was demanded, because of claims for example, and something is wanted by now, it is due.
        self._agenda.note_leases(is_complete=demand.limit > 0 or not self._demands.wanted())
        self._hunger.note_answer(answer, demand, now, has_food=has_food, hears_bell=self._bell.is_heard)
        self.has_ended = answer.has_ended and not self.outbox
        self.gate.look()
        if answer.leases or self.has_ended:
            self._host.wake()

    def _settled(self, outcome: Settled[Tag]) -> None:
        if isinstance(outcome.operation, Push):
            self._shares.note_pushed(outcome.operation, was_known=outcome.is_duplicate)
        self._host.settled(outcome)

    def _obey(self, orders: Orders) -> None:
        if orders.is_flooded and not self._limits.orders.is_flooded:
            # What came before the flood would be discovered all the same; what comes with this answer may be.
            self._possession.give_back(self.inbox.take_tiers(self.frontier.config.policy.discovery))
        if orders != self._limits.orders:
            self._limits.orders = orders
            self._host.ordered(orders)
        self.gate.look()
        if orders.is_paused:
            self._possession.give_back(self.inbox.take_all())

    def _note_losses(self, answer: Exchanged) -> None:
        for letter in answer.buried:
            self._host.buried(letter)
        if answer.over_budget:
            self._host.over_budget(answer.over_budget)
        if answer.letters_dropped:
            self._host.letters_dropped(answer.letters_dropped)
        for warning in answer.warnings:
            self._host.warn(warning)
        if answer.has_budgets:
            self._host.has_budgets()
        if answer.lost:
            self._host.lost_kept(answer.lost)
        if answer.has_forgotten:
            self._host.forgotten()
        if answer.recall is not None:
            self._agenda.has_said_idle = False
            self.outbox.put_back(certainly=True)
            self._possession.must_check = self._possession.must_reconcile = True
            self._host.recalled(answer.recall)

    def _on_checked(self, lost: Sequence[int]) -> None:
        self._renewals.note_end(())
        self._possession.must_check = False
        self._possession.claim_forgotten(lost)

    def _on_bell(self) -> None:
        self._hunger.note_ring(is_asking=self._line.is_busy)
        self.consider()

    # What the line tells

    def line_answers(self) -> None:
        self._is_slow = False
        if self._standby.is_on:
            self._standby.end()
        self._rates.end()
        self._grace.cancel()
        if self._outage.end(self.frontier.address):
            self._bell.listen()

    def line_is_slow(self) -> None:
        self._is_slow = True
        if self._is_awaited:
            self._host.wake()
        if self._config.goes_on and not self._is_closed:
            self._outage.note_slow(self.frontier.address)
            self._returning.note_outage(self._outage.since)
            if self._limits.has_limits:
                self._rates.begin()
            self._offer_found()
            self._host.wake()

    @property
    def _only_leased(self) -> bool:
        """In an outage nothing is started but what the frontier has handed out."""
        return self._limits.has_budgets or (self._limits.has_limits and not self._rates.are_known)

    def _offer_found(self) -> None:
        if self._only_leased:
            return
        if self._clock() < self._outage.found_from:
            self._grace.set(self._outage.found_from)
        else:
            self._standby.begin()

    def _on_grace(self) -> None:
        self._offer_found()
        self._host.wake()

    def line_failed(self, error: BaseException | None, *, was_sent: bool) -> None:
        self._agenda.has_said_idle = False
        self._host.count("prioqueue/exchange/failed")
        self.outbox.note_failure(was_sent=was_sent)
        # An answer may have been lost, and with it leases that were granted to us.
        self._possession.must_reconcile = self._possession.must_reconcile or was_sent
        if error is not None and not self._is_closed:
            self._host.count("prioqueue/outage/count", not self._outage.is_on)
            self._outage.begin(
                error,
                only_leased=self._only_leased,
                has_limits=self._limits.has_limits,
                workers=self._depth.workers,
            )
            self._returning.note_outage(self._outage.since)
            self.line_is_slow()

    def line_refused(self, why: NotPermitted) -> None:
        self._is_closed, self._refused_by = True, why
        self._host.stop(why)

    def line_is_free(self) -> None:
        must_check = self._possession.must_check or self._possession.must_reconcile
        is_renewed = self._renewals.due_at > self._clock()
        if self._returning.look(is_back=is_renewed and not (self._outage.is_on or must_check)):
            self._shares.note_settled()
        self.consider()
        if self._is_awaited:
            self._is_awaited = False
            self._host.wake()
