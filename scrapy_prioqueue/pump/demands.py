"""How much a worker asks the frontier for."""

from __future__ import annotations

from math import isinf
from typing import Any

from scrapy_prioqueue.frontier.base import ANY_NUMBER, Demand, Frontier
from scrapy_prioqueue.pump.host import Host, PumpConfig
from scrapy_prioqueue.pump.inbox import Inbox
from scrapy_prioqueue.pump.limits import Limits
from scrapy_prioqueue.pump.notes import Notes
from scrapy_prioqueue.pump.outbox import Outbox
from scrapy_prioqueue.pump.pace import Pace
from scrapy_prioqueue.pump.possession import Possession
from scrapy_prioqueue.pump.timing import HORIZON_S


class Demands:
    """Makes the demands of a worker's exchanges.

    Args:
        notes: what is told with them.
    """

    def __init__(
        self,
        frontier: Frontier,
        host: Host[Any],
        config: PumpConfig,
        inbox: Inbox,
        outbox: Outbox[Any],
        possession: Possession[Any],
        pace: Pace,
        limits: Limits,
        notes: Notes,
    ) -> None:
        self._frontier_config = frontier.config
        self._horizon_ms = 0 if frontier.is_local else round(HORIZON_S * 1000)
        self._host = host
        self._config = config
        self._inbox = inbox
        self._outbox = outbox
        self._possession = possession
        self._pace = pace
        self._limits = limits
        self._notes = notes
        self.workers = 1
        """How many live, as far as the last answer tells."""
        self.is_starting = False
        """A request was handed out, and the engine doesn't count it yet."""

    def wanted(self) -> int:
        """Return how many more requests could start now, or soon without waiting for the frontier."""
        # What is to be claimed would be handed out as something new; but a full server must be drained.
        if self._host.is_paused() or (self._outbox.claims_forgotten and not self._limits.is_full):
            return 0
        wanted = self._host.free_places() - self.is_starting + self._pace.ahead()
        return int(max(0, min(wanted, self._places()) - self._inbox.due() - self._inbox.kept()))

    def keep_s(self) -> float:
        """Return for how many seconds a place is kept for what is better than what could have it at once."""
        return self._pace.free_within(self.workers) if self._limits.must_ask else 0.0

    def later(self) -> int:
        """Return how many more requests could be held, started or not, within `HORIZON_S`.

        Only places count that are very likely to become free until then: who has none misses its turn.
        """
        is_full = self._outbox.claims_forgotten or not isinf(self._places())
        if not self._limits.must_ask or self._host.is_paused() or is_full:
            return 0
        free = self._host.free_places() - self.is_starting + self._pace.surely_free_within(HORIZON_S)
        starting = free - self._inbox.due()
        return max(0, min(starting, self._host.concurrency()) - self._inbox.later()) if self._horizon_ms else 0

    def _places(self) -> float:
        return self._limits.places(len(self._possession.held))

    def demand(self, limit: int | None, *, is_idle: bool, with_later: bool) -> Demand:
        """Return what to ask for.

        Args:
            limit: of requests that may start now, None for as many as are wanted.
            with_later: whether those are asked for, too, that may start soon, though nothing else is wanted.
        """
        wanted = self.wanted() if limit is None else limit
        later = self.later() if wanted or with_later else 0
        # Whoever tells when the next slot opens has to know how early it is asked for.
        horizon_ms = self._horizon_ms if self._limits.must_ask else 0
        notes = self._notes.told()
        if not wanted and not later:
            return Demand(0, is_idle=is_idle, horizon_ms=horizon_ms, notes=notes)
        ahead = self._pace.ahead()
        slot_limit, room = self._host.slot_room(self._inbox.by_slot(), ahead)
        if self._limits.must_ask:
            room.update(dict.fromkeys(self._host.held_up(), 0))
        suspects = self._possession.suspects(self._frontier_config.suspect_attempts)
        free, keep_ms = self._host.free_places() - self.is_starting, round(self.keep_s() * 1000)
        if free <= self._inbox.kept():
            # What may be had beside free places is for what starts at once.
            keep_ms = 0
        group = min(map(self._frontier_config.group, suspects), default=ANY_NUMBER)
        return Demand(
            *(wanted, slot_limit, room),
            is_idle=is_idle,
            suspect_room=max(0, group - len(suspects)),
            suspects_held=len(suspects),
            later_limit=later,
            horizon_ms=horizon_ms,
            keep_ms=keep_ms,
            kept_of=0 if self._horizon_ms else free,
            notes=notes,
        )
