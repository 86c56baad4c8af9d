"""What keeps requests from being started here, and `start()` from being read."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from twisted.internet.defer import Deferred

from scrapy_prioqueue.frontier.base import Exchanged, Orders
from scrapy_prioqueue.frontier.policy import Policy
from scrapy_prioqueue.pump.host import PumpConfig
from scrapy_prioqueue.pump.outage import Outage
from scrapy_prioqueue.pump.outbox import Outbox
from scrapy_prioqueue.pump.refusals import Refusals

logger = logging.getLogger(__name__)


class StartGate:
    """Closed while too much waits.

    Args:
        has_room: asked whether the gate may open.
    """

    def __init__(self, has_room: Callable[[], bool]) -> None:
        self._has_room = has_room
        self._waiters: list[Deferred[None]] = []

    @property
    def is_open(self) -> bool:
        """There is room for more."""
        return self._has_room()

    def wait(self) -> Deferred[None] | None:
        """Return None if the gate is open, else a Deferred that fires when it opens."""
        if self._has_room():
            return None
        waiter: Deferred[None] = Deferred()
        self._waiters.append(waiter)
        return waiter

    def look(self) -> None:
        """Open the gate if it may be opened by now."""
        if self._waiters and self._has_room():
            waiters, self._waiters = self._waiters, []
            for waiter in waiters:
                waiter.callback(None)


OUTBOX_BYTES = 32 * 2**20
"""Payloads of so many bytes in all count as `PRIOQUEUE_OUTBOX_LIMIT` requests, however few they are."""


class Limits:
    """Knows how much may wait in the outbox while the server takes nothing.

    From the limit on, one request at a time is started, so that pages that lead nowhere make room on a full server;
    from twice the limit on none, so that memory stays bounded.

    Args:
        config: says how many requests may be in the outbox, and whether those of `start()` come there.
        policy: that of this worker.
    """

    def __init__(
        self, outbox: Outbox[Any], refusals: Refusals[Any], outage: Outage, config: PumpConfig, policy: Policy
    ) -> None:
        self._policy = policy
        self._counts_starts = config.counts_starts
        self._has_limits = self._has_budgets = False
        self._outbox = outbox
        self._refusals = refusals
        self._outage = outage
        self._limit = config.outbox_limit
        self._has_warned = False
        self.orders = Orders()
        self.pending = 0
        """Requests that wait in the frontier, as far as the last answer tells."""
        self._held_back = 0

    @property
    def is_full(self) -> bool:
        """The server has no memory left."""
        return self._refusals.is_full

    @property
    def must_ask(self) -> bool:
        """There are limits or budgets, so that requests are asked for ahead of their time."""
        return self._has_limits or self._policy.limits_slots or self._policy.budgets is not None

    @property
    def has_limits(self) -> bool:
        """Slots may have limits."""
        return self._has_limits or self._policy.limits_slots

    @property
    def has_budgets(self) -> bool:
        """Requests may have budgets."""
        return self._has_budgets or self._policy.budgets is not None

    def note_answer(self, answer: Exchanged) -> None:
        """Take note of what the frontier says, but for its orders."""
        self._has_limits, self._has_budgets = answer.must_ask, answer.has_budgets
        self.pending, self._held_back = answer.depth.pending, answer.held_back

    @property
    def is_stuck(self) -> bool:
        """The server takes no requests."""
        return self._refusals.is_full or self._outage.is_on

    def places(self, running: int) -> float:
        """Return how many more requests may be started, as far as this is about what waits.

        Args:
            running: how many are being worked on.
        """
        if not self.is_stuck or not self._is_full(1):
            self._has_warned = False
            return float("inf")
        self._warn()
        return 0 if self._is_full(2) else max(0, 1 - running)

    def _is_full(self, times: int) -> bool:
        """Tell whether so many times as much waits as may."""
        return self._outbox.pushes >= times * self._limit or self._outbox.pushed_bytes >= times * OUTBOX_BYTES

    def may_start(self, running: int) -> bool:
        """Tell whether anything may be started."""
        return not (self.orders.is_paused or self._outage.keeps_from_starting) and self.places(running) > 0

    def has_room_for_starts(self, *, has_work: bool, is_starving: bool = False) -> bool:
        """Tell whether `start()` may be read further.

        Args:
            has_work: there is something else to do, here or anywhere. Without it a flood, perhaps of the server's
                memory, would never end.
            is_starving: this worker has free places, and the frontier nothing for them.
        """
        if self.orders.is_paused or self._refusals.is_full or self._is_full(1):
            return False
        if not (self._counts_starts and has_work):
            return True
        return not self._is_at_limit() and (is_starving or not self._is_high())

    def _is_high(self) -> bool:
        high_water = self._policy.high_water
        servable = self.pending - self._held_back + self._outbox.pushes
        return self.orders.is_flooded or 0 < high_water <= servable

    def _is_at_limit(self) -> bool:
        return self.orders.is_at_limit or 0 < self._policy.pending_limit <= self.pending + self._outbox.pushes

    def _warn(self) -> None:
        if not self._has_warned:
            self._has_warned = True
            logger.warning(
                "%d requests of %d kB wait to be stored (PRIOQUEUE_OUTBOX_LIMIT): this worker starts one page at"
                " a time until the server takes them, and none at twice that limit",
                self._outbox.pushes,
                self._outbox.pushed_bytes // 1000,
            )
