"""How one demand is served where slots have limits, tiers weights, requests budgets, or there may be a flood."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from math import ceil
from types import MappingProxyType
from typing import NamedTuple

from scrapy_prioqueue.frontier.base import Demand, Lease
from scrapy_prioqueue.frontier.memory.lanes import Envelope, Lane, Order
from scrapy_prioqueue.frontier.memory.limits import SlotLimits
from scrapy_prioqueue.frontier.memory.pending import Pending
from scrapy_prioqueue.frontier.memory.store import MemoryStore

OVER_BUDGET_LIMIT = 100
"""Requests over budget that one exchange gives up at most: on a server more would hold up the other workers."""

ASIDE_MS = 1000
"""A request that is set aside for others comes back so soon."""

Grant = Callable[[str, Envelope], None]
GiveUp = Callable[[str, Envelope, str], None]


def openings_ms(pending: Pending, limits: SlotLimits, now_ms: int, horizon_ms: int) -> list[int]:
    """Return when to ask for slots again that have to wait, as of when they were settled.

    In the middle of the horizon, so that what opens next is known before it does.
    A suspect is only handed out when it may start.
    """
    times: list[float] = []
    if pending.waiting is not None and (first_ms := pending.waiting.first_opens_ms()) is not None:
        times.append(first_ms - horizon_ms / 2)
    suspect = pending.first_suspect()
    if suspect is not None and not limits.is_full(suspect[0]):
        times += [at for at in (limits.opens_ms(suspect[0]),) if at > now_ms]
    return [ceil(at) for at in times]


class Served(NamedTuple):
    """What a demand has come to; see `Exchanged`."""

    leases: Sequence[Lease] = ()
    over_budget: Mapping[str, int] = MappingProxyType({})
    must_ask_again: bool = False


class Choice(NamedTuple):
    """The request that is served next: the first of a slot in a lane."""

    order: Order
    slot: str
    is_later: bool
    tier: int


class Serving:
    """Serves one demand.

    Args:
        store: what is served from; its slots are settled.
        demand: what is asked for.
        limit: how many requests may start at once, at most.
        grant: leases a request.
        give_up: buries one that is over budget.
        worker: whose demand it is.
        living: names of all workers that live.
    """

    def __init__(
        self,
        store: MemoryStore,
        demand: Demand,
        limit: int,
        now_ms: int,
        *,
        grant: Grant,
        give_up: GiveUp,
        worker: str,
        living: Collection[str],
    ) -> None:
        self._now_ms, self._worker, self._living = now_ms, worker, living
        self._set_aside = 0
        self.over_budget: dict[str, int] = {}
        self._store = store
        self._demand = demand
        self._grant = grant
        self._give_up = give_up
        self._now_left, self._later_left = limit, demand.later_limit
        self._discovery_left = store.look_at_flood(now_ms)
        self._withheld = frozenset(store.policy.discovery if store.flood.is_on else ())
        self._room: dict[str, int] = {}
        self._aside: list[str] = []

    @property
    def has_given_up_most(self) -> bool:
        """So much was over budget, or set aside, that the rest of that has to wait for another exchange."""
        return sum(self.over_budget.values()) + self._set_aside >= OVER_BUDGET_LIMIT

    def serve(self, now_ms: int) -> None:
        """Serve as much as is asked for and may be had."""
        pending = self._store.pending
        choice = self._choose()
        room, held = self._demand.suspect_room, self._demand.suspects_held
        while room > 0 and self._now_left > 0 and self._is_suspect_next(choice, now_ms, held):
            slot, envelope = pending.take_suspect()
            room = min(room - 1, pending.group(envelope.attempts) - held - 1)
            if self._is_granted(slot, envelope):
                self._now_left, held = self._now_left - 1, held + 1
            else:
                room = 0
            choice = self._choose()
        while choice is not None:
            lane = pending.lanes[choice.tier]
            if self.has_given_up_most and self._may_be_unfit(lane.first_of(choice.slot)):
                # Other slots are served meanwhile.
                self._room[choice.slot] = 0
            elif self._is_granted(choice.slot, pending.serve(lane, choice.slot)):
                self._count(choice)
            choice = self._choose()
        for slot in self._aside:
            self._bring_back(slot)

    def _may_be_unfit(self, envelope: Envelope) -> bool:
        """Tell whether a request may be one that can't be handed out."""
        is_over = self._store.budgets.excess(envelope.payload) is not None
        return is_over or envelope.lease_id in self._store.refused_by

    def _is_granted(self, slot: str, envelope: Envelope) -> bool:
        """Grant a request, leave it to others if this worker can't read it, or give it up if it is over budget."""
        if self._store.is_for_others(envelope.lease_id, self._worker, self._living):
            self._store.delayed.put(self._now_ms + ASIDE_MS, slot, envelope)
            self._set_aside += 1
            return False
        excess = self._store.budgets.excess(envelope.payload)
        if excess is not None:
            key, detail = excess
            self._give_up(slot, envelope, detail)
            self.over_budget[key] = self.over_budget.get(key, 0) + 1
            return False
        self._grant(slot, envelope)
        self._room[slot] = self._room_of(slot) - 1
        if self._store.pending.waiting is not None:
            self._store.pending.waiting.place(slot)
        return True

    def _count(self, choice: Choice) -> None:
        if choice.is_later:
            self._later_left -= 1
        else:
            self._now_left -= 1
        if choice.tier in self._withheld:
            self._discovery_left -= 1
        if self._store.policy.weights:
            self._store.passes.step(choice.tier, self._store.policy.weights)

    def _is_suspect_next(self, rival: Choice | None, now_ms: int, held: int) -> bool:
        """Tell whether the first suspect may start and be held with others, and no request goes before it."""
        first, limits = self._store.pending.first_suspect(), self._store.limits
        if first is None or self._room_of(first[0]) <= 0 or held >= self._store.pending.next_group():
            return False
        if limits is not None and not limits.may_start(first[0], now_ms):
            return False
        return bool(self._store.policy.weights) or rival is None or rival.order[0] >= first[1].rank

    def _choose(self) -> Choice | None:
        """Return what is served next, None if nothing may be."""
        tiers = range(len(self._store.pending.lanes))
        choice = self._choose_of(tier for tier in tiers if tier not in self._withheld)
        if choice is None and self._discovery_left > 0:
            choice = self._choose_of(tier for tier in tiers if tier in self._withheld)
        return choice

    def _choose_of(self, tiers: Iterable[int]) -> Choice | None:
        choices = (choice for tier in tiers if (choice := self._first_of(tier)) is not None)
        if not self._store.policy.weights:
            return next(choices, None)
        by_tier = {choice.tier: choice for choice in choices}
        return by_tier[self._store.passes.next_of(by_tier)] if by_tier else None

    def _first_of(self, tier: int) -> Choice | None:
        """Return what is served next of a tier; slots without room for it are put aside."""
        lane = self._store.pending.lanes[tier]
        while True:
            ready = lane.ready.first() if self._now_left > 0 else None
            soon = lane.soon.first() if self._later_left > 0 else None
            first = ready if soon is None or (ready is not None and ready < soon) else soon
            if first is None or self._room_of(first[1]) > 0:
                return first and Choice(*first, is_later=first is soon, tier=tier)
            self._put_aside(lane, first[1])

    def _put_aside(self, lane: Lane, slot: str) -> None:
        lane.move(slot, "waiting")
        self._aside.append(slot)

    def _bring_back(self, slot: str) -> None:
        pending = self._store.pending
        if pending.waiting is not None:
            pending.waiting.place(slot)
            return
        for lane in pending.lanes:
            if slot in lane:
                lane.move(slot, "ready")

    def _room_of(self, slot: str) -> int:
        room = self._room.get(slot)
        return self._demand.slot_room.get(slot, self._demand.slot_limit) if room is None else room
