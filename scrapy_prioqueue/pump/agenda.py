"""Decides when the next exchange is due, and how long to wait after an answer without work."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from scrapy_prioqueue.frontier.base import Demand, Exchanged, Push
from scrapy_prioqueue.pump.backpressure import Rejections
from scrapy_prioqueue.pump.delegate import Delegate
from scrapy_prioqueue.pump.demand import Prefetch
from scrapy_prioqueue.pump.leases import Leases, Renewals
from scrapy_prioqueue.pump.outbox import BATCH_SIZE
from scrapy_prioqueue.pump.timing import (
    EMPTY_FLUSH_S,
    FLUSH_S,
    LAST_SLOT_POLL_S,
    OUTRANKED_S,
    POLL_S,
    POLL_WITHOUT_BELL_S,
    SLOT_POLL_S,
)


class Polling:
    """Decides when a worker without work polls again, from answers and the bell.

    Args:
        now: monotonic time in seconds.
        is_local: whether the frontier is in process; it is then asked for each request when that is due.
    """

    def __init__(self, now: float, *, is_local: bool = False) -> None:
        self.got_nothing = False
        self.poll_at = now
        self.awaits_slot = False
        """There are limits or budgets, and the frontier has said when to poll again."""
        self.awaits_time = False
        """The frontier has requests that become due with time alone."""
        self._is_local = is_local
        self._longest_pause_s = SLOT_POLL_S if is_local else LAST_SLOT_POLL_S
        self._pause_s = SLOT_POLL_S
        self._asked_at = now
        self._has_rung = False
        self._has_later = False

    @property
    def flush_s(self) -> float:
        """Seconds after which a non-empty outbox makes an exchange due."""
        return EMPTY_FLUSH_S if self.got_nothing and not self._has_later else FLUSH_S

    def note_ring(self, *, is_asking: bool) -> None:
        """Note that the bell has rung; an answer still under way may be older than the ring."""
        self._has_rung = is_asking
        self.got_nothing = False

    def note_answer(self, answer: Exchanged, demand: Demand, now: float, *, has_due: bool, hears_bell: bool) -> None:
        """Set the next poll.

        Args:
            demand: the one that was answered.
            has_due: whether the answer has a lease that may start now.
            hears_bell: whether the bell shortens the wait.
        """
        self.got_nothing = demand.limit > 0 and not has_due and not self._has_rung
        self._has_rung = False
        self._has_later = bool(answer.leases) and not has_due
        self.awaits_slot = answer.must_ask and answer.next_due_s is not None
        self.awaits_time = answer.depth.delayed > 0 or (self.awaits_slot and answer.depth.pending > 0)
        wait_s = POLL_S if hears_bell else POLL_WITHOUT_BELL_S
        if answer.next_due_s is not None:
            wait_s = min(wait_s, answer.next_due_s + EMPTY_FLUSH_S)
        self.poll_at = now + wait_s
        if answer.over_budget and answer.next_due_s == 0:
            # One call gives up a limited number of requests; behind them there may be one that can be served.
            self.poll_at = now + (EMPTY_FLUSH_S if self._is_local else 0)
        elif answer.must_ask:
            self._note_asked(answer, demand, now)
            self.poll_at = max(self.poll_at, self._asked_at + self._pause_s)

    def _note_asked(self, answer: Exchanged, demand: Demand, now: float) -> None:
        if demand.limit or demand.later_limit:
            self._asked_at = now
            self._pause_s = SLOT_POLL_S if answer.leases else min(2 * self._pause_s, self._longest_pause_s)


_MOST_NOTED = 1000
"""Maximum number of pushes to remember since the last exchange; only the best matter, as the inbox is short."""


class Agenda:
    """Finds the earliest reason to call the frontier.

    Args:
        max_idle_s: seconds without activity after which this worker reports that it is idle.
        clock: monotonic, in seconds.
        is_local: whether the frontier is in process.
    """

    def __init__(
        self,
        delegate: Delegate[Any],
        leases: Leases[Any],
        renewals: Renewals,
        rejections: Rejections[Any],
        prefetch: Prefetch,
        max_idle_s: float,
        clock: Callable[[], float],
        *,
        is_local: bool,
    ) -> None:
        self._is_local = is_local
        self._delegate = delegate
        self._max_idle_s = max_idle_s
        self._inbox, self._outbox = leases.inbox, leases.outbox
        self._leases = leases
        self._rejections = rejections
        self._renewals = renewals
        self._prefetch = prefetch
        self._clock = clock
        self.polling = Polling(clock(), is_local=is_local)
        self._level = 0
        self._outbox_since = self._last_exchange = self._last_activity = clock()
        self.best_push: int | None = None
        """Rank of the best request pushed here since the last exchange."""
        self.pushed: list[tuple[int, str]] = []
        """Rank and slot of each of those requests; if there are many, of the best."""
        self.must_ask_depth = False
        """Make an exchange, since the counts of the crawl are wanted."""
        self.has_reported_idle = False
        """Whether the last answered demand has reported this worker as idle."""

    def note_push(self, push: Push) -> None:
        """Note a request that was found here."""
        if push.is_delayed:
            return
        self.best_push = push.rank if self.best_push is None else min(self.best_push, push.rank)
        self.pushed.append((push.rank, push.slot))
        if len(self.pushed) >= 2 * _MOST_NOTED:
            self.pushed = sorted(self.pushed)[:_MOST_NOTED]

    def note_exchange(self) -> None:
        """Forget the pushes until now: the exchange sends them, or repeats them later."""
        self.best_push, self.pushed = None, []

    def note_put(self, *, is_first: bool) -> None:
        """Note an operation in the outbox; `is_first` if the outbox was empty before."""
        self._last_activity = self._clock()
        if is_first:
            self._outbox_since = self._last_activity

    def note_start(self) -> None:
        """Note the start of a request."""
        self._last_activity = self._clock()

    def note_done(self) -> None:
        """Note an operation without an exchange."""
        self._last_activity = self._clock()
        self.has_reported_idle = False

    def note_answer(self) -> None:
        """Note the answer of an exchange."""
        self.must_ask_depth = False
        self._last_exchange = self._outbox_since = self._clock()

    def note_leases(self, *, is_complete: bool) -> None:
        """Note new leases; the next exchange is due when half of the inbox is used, or at once unless `is_complete`.

        Args:
            is_complete: whether the demand has asked for all requests that are wanted now.
        """
        self._level = self._inbox.due() * (1 if is_complete else 2)

    # When the next exchange is due

    def is_quiet(self) -> bool:
        """Return whether nothing is running, waiting or expected here."""
        return not (self._leases.held or self._inbox or self._outbox or self._delegate.has_own_work())

    def is_idle(self) -> bool:
        """Return whether that has been so for `max_idle_s`."""
        return self.is_quiet() and self._idle_at() <= self._clock()

    def _idle_at(self) -> float:
        return self._last_activity + self._max_idle_s

    def awaits_time(self) -> bool:
        """Return whether to poll because requests become due with time; only for a frontier in process."""
        return self._is_local and self.polling.awaits_time and not self._delegate.engine.is_closing

    def has_outranked(self) -> bool:
        """Return whether a better request than one in the inbox was found here."""
        return self.best_push is not None and self._inbox.has_outranked(self.best_push)

    def is_low(self) -> bool:
        """Return whether half of the inbox has been used."""
        return self._inbox.due() <= self._level // 2

    def asks_for_slots(self) -> bool:
        """Return whether to ask now for requests of slots that open soon."""
        return self.polling.awaits_slot and self.polling.poll_at <= self._clock()

    def due_at(self, now: float) -> float:
        """Return when the next call of the frontier is due."""
        if self._leases.must_check or self._leases.must_reconcile or self._rejections.must_look_up:
            return now
        return min(self._times(now))

    def _times(self, now: float) -> Iterator[float]:
        yield self._renewals.due_at
        if self.must_ask_depth:
            yield now
        must_wait = self._rejections.must_wait
        if must_wait:
            yield self._rejections.retry_at
        if self._outbox.has_free_entries() if must_wait else self._outbox:
            is_long = len(self._outbox) >= BATCH_SIZE and not must_wait
            yield now if is_long else self._outbox_since + self.polling.flush_s
        if self.is_quiet() and not self.has_reported_idle:
            yield self._idle_at()
        if self.awaits_time():
            yield self.polling.poll_at
        if not self._delegate.engine.is_closing:
            if self._prefetch.notes:
                yield self._prefetch.notes.since + FLUSH_S
            if not self._is_local:
                yield from self._asks_at(now)

    def _asks_at(self, now: float) -> Iterator[float]:
        if self.polling.got_nothing or (self.polling.awaits_slot and self._prefetch.later() > 0):
            yield self.polling.poll_at
        if not self.polling.got_nothing and self.is_low() and self._prefetch.wanted() > 0:
            yield now
        if self.has_outranked():
            yield self._last_exchange + OUTRANKED_S
