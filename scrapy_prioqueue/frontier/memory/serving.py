"""Serves one demand where there are limits, weights, budgets or water marks."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from math import ceil
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from scrapy_prioqueue.frontier.base import Demand, Lease
from scrapy_prioqueue.frontier.memory.heapmap import HeapMap
from scrapy_prioqueue.frontier.memory.lanes import Envelope, Lane, Position
from scrapy_prioqueue.frontier.memory.limits import SlotLimits
from scrapy_prioqueue.frontier.memory.pending import Pending
from scrapy_prioqueue.rank import tier_of

if TYPE_CHECKING:
    from scrapy_prioqueue.frontier.memory.store import MemoryStore

OVER_BUDGET_LIMIT = 100
"""Maximum number of requests over budget that one exchange gives up; on a server more would delay other workers."""

_MOST_RESERVED = 5
"""Maximum number of places that are reserved for one slot, if nothing is leased ahead of its time."""

ASIDE_MS = 1000
"""Delay of a request that is set aside for other workers."""

Grant = Callable[[str, Envelope], None]
GiveUp = Callable[[str, Envelope, str], None]


def openings_ms(pending: Pending, limits: SlotLimits, now_ms: int, horizon_ms: int) -> list[int]:
    """Return when the worker should ask again for slots that wait, as of the last `update_all`.

    That is half a horizon before a slot opens, so the worker has the request in time. A suspect is only leased when it
    may start.
    """
    times: list[float] = []
    last_ms = now_ms + horizon_ms
    if pending.waiting is not None and (first_ms := pending.waiting.first_opens_ms(last_ms)) is not None:
        times.append(first_ms - horizon_ms / 2)
    suspect = pending.first_suspect()
    if suspect is not None and not limits.is_full(suspect[0]):
        times += [at for at in (limits.opens_ms(suspect[0]),) if at > now_ms]
    return [ceil(at) for at in times]


class Passes:
    """The virtual times of tiers: the tier with the lowest pass is served, and its pass grows by 1/weight.

    A tier that had nothing to serve doesn't catch up: it continues at the pass of the others.

    Args:
        passes: by tier.
        at: pass of the tier that was served last.
    """

    def __init__(self, passes: Mapping[int, float] = MappingProxyType({}), at: float = 0.0) -> None:
        self._passes, self._at = dict(passes), at

    def next_of(self, tiers: Iterable[int]) -> int:
        """Return the tier that is served next."""
        return min(tiers, key=lambda tier: (max(self._passes.get(tier, 0.0), self._at), tier))

    def step(self, tier: int, weights: Sequence[int]) -> None:
        """Advance a tier that was served."""
        self._at = max(self._passes.get(tier, 0.0), self._at)
        self._passes[tier] = self._at + 1 / weights[tier]


class Served(NamedTuple):
    """The result of serving a demand; see `Exchanged`."""

    leases: Sequence[Lease] = ()
    over_budget: Mapping[str, int] = MappingProxyType({})
    must_ask_again: bool = False


class Choice(NamedTuple):
    """The request that is served next: the first of a slot in a lane."""

    position: Position
    slot: str
    is_later: bool
    tier: int


class Front(NamedTuple):
    """The best request of a lane.

    Args:
        is_ready: whether some request of the lane could start now.
        is_reserving: whether the first one may only be leased to reserve a place for it, which another request could
            take now.
    """

    first: Choice | None
    is_ready: bool
    is_reserving: bool = False


class Serving:
    """Serves one demand.

    Args:
        store: the requests; the positions of their slots are up to date.
        demand: the demand.
        limit: maximum number of requests that may start at once.
        grant: leases a request.
        give_up: makes a request over budget a dead letter.
        worker: the demanding worker.
        living: names of all living workers.
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
        self._places = max(demand.limit, demand.later_limit)
        self._discovery_left = store.look_at_flood(now_ms)
        self._withheld = frozenset(store.policy.discovery if store.flood.is_on else ())
        self._room: dict[str, int] = {}
        self._aside: list[str] = []

    @property
    def has_given_up_most(self) -> bool:
        """Whether a limit of requests over budget, or set aside, was reached; the rest waits for another exchange."""
        return sum(self.over_budget.values()) + self._set_aside >= OVER_BUDGET_LIMIT

    def serve(self) -> None:
        """Lease requests until the demand is met or no other may be served."""
        pending = self._store.pending
        choice = self._choose()
        room, held = self._demand.suspect_room, self._demand.suspects_held
        while room > 0 and self._now_left > 0 and self._is_suspect_next(choice, held):
            slot, envelope = pending.take_suspect()
            room = min(room - 1, pending.group(envelope.attempts) - held - 1)
            if self._is_granted(slot, envelope):
                self._take_place(is_later=False)
                held += 1
            else:
                room = 0
            choice = self._choose()
        while choice is not None:
            lane = pending.lanes[choice.tier]
            if self.has_given_up_most and self._may_be_unfit(lane.first_of(choice.slot)):
                # The slot is skipped, so that others are served.
                self._room[choice.slot] = 0
            elif self._is_granted(choice.slot, pending.serve(lane, choice.slot)):
                self._count(choice)
            choice = self._choose()
        for slot in self._aside:
            self._bring_back(slot)

    def _may_be_unfit(self, envelope: Envelope) -> bool:
        """Return whether a request is over budget or has been refused by a worker."""
        is_over = self._store.budgets.excess(envelope.payload) is not None
        return is_over or envelope.lease_id in self._store.refused_by

    def _is_granted(self, slot: str, envelope: Envelope) -> bool:
        """Lease a request, delay it for others if this worker has refused it, or give it up if it is over budget."""
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
            self._store.pending.waiting.update(slot)
        return True

    def _count(self, choice: Choice) -> None:
        self._take_place(is_later=choice.is_later)
        if choice.tier in self._withheld:
            self._discovery_left -= 1
        if self._store.policy.weights:
            self._store.passes.step(choice.tier, self._store.policy.weights)

    def _take_place(self, *, is_later: bool) -> None:
        """Count a place as taken; requests that start now and those that start soon share the places."""
        self._places -= 1
        if is_later:
            self._later_left -= 1
        else:
            self._now_left -= 1
        self._now_left = min(self._now_left, self._places)
        self._later_left = max(0, min(self._later_left, self._places))

    def _is_suspect_next(self, rival: Choice | None, held: int) -> bool:
        """Return whether the first suspect may start within its group, and no better request is served before it."""
        first, limits = self._store.pending.first_suspect(), self._store.limits
        if first is None or self._room_of(first[0]) <= 0 or held >= self._store.pending.next_group():
            return False
        if limits is not None and not limits.may_start(first[0], self._now_ms):
            return False
        return bool(self._store.policy.weights) or rival is None or rival.position[0] >= first[1].rank

    def _choose(self) -> Choice | None:
        """Return the request that is served next, None if none may be."""
        tiers = range(len(self._store.pending.lanes))
        choice = self._choose_of(tier for tier in tiers if tier not in self._withheld)
        if choice is None and self._discovery_left > 0:
            choice = self._choose_of(tier for tier in tiers if tier in self._withheld)
        return choice

    def _choose_of(self, tiers: Iterable[int]) -> Choice | None:
        fronts = [self._front_of(tier) for tier in tiers]
        is_ready = any(front.is_ready for front in fronts)
        # A place is reserved only if another request could take it at once.
        choices = [front.first for front in fronts if front.first is not None and (is_ready or not front.is_reserving)]
        if not self._store.policy.weights:
            return next(iter(choices), None)
        by_tier = {choice.tier: choice for choice in choices}
        return by_tier[self._store.passes.next_of(by_tier)] if by_tier else None

    def _front_of(self, tier: int) -> Front:
        """Return the best request of a lane; slots without room are put aside."""
        lane = self._store.pending.lanes[tier]
        ready = self._first_with_room(lane, lane.ready) if self._now_left > 0 else None
        may_reserve = self._now_left > 0 and not self._demand.reservable
        reserved = self._first_soon(lane, self._may_reserve) if may_reserve else None
        soon = self._first_soon(lane, self._opens_within_horizon) if self._later_left > 0 else None
        early = min((first for first in (reserved, soon) if first is not None), default=None)
        if ready is None:
            found = soon or reserved
            return Front(found and Choice(*found, is_later=True, tier=tier), is_ready=False, is_reserving=soon is None)
        if early is not None and tier_of(early[0][0]) < tier_of(ready[0][0]):
            return Front(Choice(*early, is_later=True, tier=tier), is_ready=True)
        if soon is not None and soon < ready and self._places > self._now_left:
            return Front(Choice(*soon, is_later=True, tier=tier), is_ready=True)
        if self._demand.reservable and self._reserved_before(tier_of(ready[0][0])) >= self._demand.reservable:
            return Front(None, is_ready=True)
        return Front(Choice(*ready, is_later=False, tier=tier), is_ready=True)

    def _first_with_room(self, lane: Lane, slots: HeapMap[str, Position]) -> tuple[Position, str] | None:
        while (first := slots.first()) is not None and self._room_of(first[1]) <= 0:
            lane.move(first[1], "waiting")
            self._aside.append(first[1])
        return first

    def _first_soon(self, lane: Lane, suits: Callable[[str], bool]) -> tuple[Position, str] | None:
        """Return the first of the suitable slots that open soon."""
        first = self._first_with_room(lane, lane.soon)
        if first is None or suits(first[1]):
            return first
        found = ((position, slot) for slot, position in lane.soon.items() if suits(slot) and self._room_of(slot) > 0)
        return min(found, default=None)

    def _opens_within_horizon(self, slot: str) -> bool:
        assert self._store.limits is not None
        return self._store.limits.opens_ms(slot) <= self._now_ms + self._demand.horizon_ms

    def _may_reserve(self, slot: str) -> bool:
        limits = self._store.limits
        assert limits is not None
        is_soon = limits.opens_ms(slot) <= self._now_ms + self._demand.reserve_ms
        return is_soon and limits.may_reserve(slot, self._now_ms)

    def _reserved_before(self, tier: int) -> int:
        """Return how many places are reserved for better tiers, if nothing is leased ahead of its time."""
        limits, last_ms, reserved = self._store.limits, self._now_ms + self._demand.reserve_ms, 0
        if limits is None or self._store.policy.weights:
            return 0
        for lane in self._store.pending.lanes:
            first = lane.soon.first()
            if first is None or tier_of(first[0][0]) >= tier:
                continue
            for slot, (rank, _) in lane.soon.items():
                if tier_of(rank) < tier and self._room_of(slot) > 0:
                    most = min(limits.reservable(slot, last_ms), _MOST_RESERVED)
                    # The best `most` requests of a heap are among its first 2**most entries.
                    front = lane.of_slot(slot)[: 2**most]
                    reserved += min(most, sum(tier_of(envelope.rank) < tier for envelope in front))
        return reserved

    def _bring_back(self, slot: str) -> None:
        pending = self._store.pending
        if pending.waiting is not None:
            pending.waiting.update(slot)
            return
        for lane in pending.lanes:
            if slot in lane:
                lane.move(slot, "ready")

    def _room_of(self, slot: str) -> int:
        room = self._room.get(slot)
        return self._demand.slot_room.get(slot, self._demand.slot_limit) if room is None else room
