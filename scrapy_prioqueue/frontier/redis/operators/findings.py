"""What the inspector finds: plain data for the command line, a page, an exporter; nothing else lives here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from scrapy_prioqueue.frontier.policy_parts import Owner
from scrapy_prioqueue.frontier.redis.operators.budgets import BudgetSummary
from scrapy_prioqueue.frontier.redis.operators.limits import LimitInForce
from scrapy_prioqueue.frontier.waits import Blocked, SlowPage

Place = Literal["pending", "delayed", "leased", "dead"]
"""Where a request of the frontier is kept."""

Sorting = Literal["pending", "leased", "name", "order"]
"""Which slots come first: those with the longest queues, with the most leases, by name, or in the order of serving."""

PLACES: tuple[Place, ...] = ("leased", "pending", "delayed", "dead")


@dataclass(frozen=True, slots=True)
class PolicyFound:
    """How a frontier shares its requests out.

    Args:
        has_limits: slots may have to wait.
        has_budgets: requests carry budget keys.
        weights: by tier, best first; empty for the best tier first always.
        discovery: positions of the tiers that are not served while there is too much.
        high_water: pending requests from which on there is, 0 for any number.
        low_water: at which there isn't any more.
        pending_limit: pending requests of all kinds from which on there is too much, 0 for any number.
        is_flooded: there is too much now.
        is_memory_high: of the server's memory.
        owners: whose each part in force is.
    """

    has_limits: bool = False
    has_budgets: bool = False
    weights: Sequence[int] = ()
    discovery: Sequence[int] = ()
    high_water: int = 0
    low_water: int = 0
    pending_limit: int = 0
    is_flooded: bool = False
    is_memory_high: bool = False
    owners: Mapping[str, Owner] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class State:
    """The state of a frontier.

    Args:
        phase: open, ended or clearing.
        crawl_id: empty for none.
        seen: fingerprints.
        seen_name: of the frontier in which they are kept, empty for this one.
        seen_mode: exact, compact or bloom.
        seen_lost: how many new pages a Bloom filter has taken for duplicates, by expectation.
        orders: what the fleet was told: paused, drained, stopping.
        cleaning_ms: when something of an earlier crawl was dropped last, 0 if it wasn't.
    """

    layout: str
    phase: str
    epoch: str
    crawl_id: str
    created_ms: int
    ended_ms: int
    tiers: Sequence[str]
    order: str
    on_finish: str
    seen: int
    seen_name: str = ""
    seen_mode: str = "exact"
    seen_lost: float = 0.0
    orders: Sequence[str] = ()
    cleaning_ms: int = 0
    policy: PolicyFound = PolicyFound()


@dataclass(frozen=True, slots=True)
class TierDepth:
    """Pending requests of a tier."""

    tier: str
    pending: int


@dataclass(frozen=True, slots=True)
class Pace:
    """How fast a fleet works, by the server's counters of the last minute; None where they say nothing.

    Args:
        done_per_s: requests acked.
        accepted_per_s: requests stored.
        gone_per_s: requests given up or removed.
        left_s: seconds until nothing is left if both go on like that; None also while the frontier grows.
        history: requests acked in each 10 s of the last five minutes, the current ones last; empty where unknown.
        is_growing: more were stored than acked, given up and removed in the last ten to twenty seconds.
    """

    done_per_s: float | None = None
    accepted_per_s: float | None = None
    left_s: float | None = None
    history: Sequence[int] = ()
    is_growing: bool = False
    gone_per_s: float = 0.0

    @property
    def drain_per_s(self) -> float | None:
        """By how much less is left each second."""
        if self.done_per_s is None or self.accepted_per_s is None:
            return None
        return self.done_per_s + self.gone_per_s - self.accepted_per_s


@dataclass(frozen=True, slots=True)
class WorkerFound:
    """A worker that the frontier knows.

    Args:
        heard_s: seconds since it was last heard of.
        is_alive: that is less than a lease's time to live.
        is_busy: it has, or may get, something to do.
        is_hungry: it got less than it asked for.
        rate_per_s: acks since it joined, by the time since then; None where it isn't known.
        stop: why it was told to stop, empty if it wasn't.
        slow: pages that it holds and that may never end.
        blocked: its event loop doesn't turn.
        kept: requests that only it has.
        kept_pages: pages that are done but for those, and leased until they are done, too.
        has_more_starts: `start()` isn't at its end there.
        is_paused: its engine is paused (`engine.pause()`), so it starts nothing.
    """

    name: str
    host: str
    pid: str
    heard_s: float
    is_alive: bool
    is_busy: bool
    is_hungry: bool
    done: int | None = None
    rate_per_s: float | None = None
    joined_ms: int = 0
    leased: int | None = None
    stop: str = ""
    slow: Sequence[SlowPage] = ()
    blocked: Blocked | None = None
    kept: int = 0
    kept_pages: int = 0
    has_more_starts: bool = False
    is_paused: bool = False


@dataclass(frozen=True, slots=True)
class Memory:
    """Of the whole server, in bytes; 0 where it isn't told, and a limit of 0 is none."""

    used: int = 0
    limit: int = 0


@dataclass(frozen=True, slots=True)
class Status:
    """What an operator sees first.

    Args:
        counts: the counters of the crawl, by name; missing ones are 0.
        tiers: pending requests by tier, best first.
        is_sampled: the tiers are estimated from a sample of the slots.
        next_due_ms: when the first delayed request is due, 0 if there is none.
        now_ms: by the server's clock.
        waiting_for_rate: slots with pending requests that wait for their rate.
        waiting_for_leases: likewise for leases to end, since they are at their concurrency.
        rate_left_s: seconds that the slowest slot takes at its rate for what is pending; 0 where no delays are known,
            or there are too many slots to look at.
        closed_waiting: slots with pending requests that wait since their sites have asked for that.
        closed_slots: slots that wait since their sites have asked for that, with pending requests or without.
        limits: entries about slots that settings and operators have made.
        learnt_delays: delays that slots have asked for, or that follow their latency.
        budgets: all budget keys together.
        suspects: pending requests that wait apart from their slots.
        opening_ms: when the first and the last of the slots open that wait for their rate, 0 and 0 if none does.
    """

    name: str
    address: str
    state: State
    counts: Mapping[str, int]
    tiers: Sequence[TierDepth]
    is_sampled: bool
    slots: int
    pace: Pace
    workers: Sequence[WorkerFound]
    memory: Memory
    next_due_ms: int
    now_ms: int
    server_version: str = ""
    waiting_for_rate: int = 0
    waiting_for_leases: int = 0
    closed_waiting: int = 0
    closed_slots: int = 0
    rate_left_s: float = 0.0
    limits: int = 0
    learnt_delays: int = 0
    budgets: BudgetSummary = BudgetSummary()
    suspects: int = 0
    opening_ms: tuple[int, int] = (0, 0)

    @property
    def left(self) -> int:
        """Requests that are not finished."""
        return self.counts["pending"] + self.counts["delayed"] + self.counts["leased"]

    @property
    def idle_until_ms(self) -> int:
        """Until when nothing can be fetched, since all that is left waits for its time; 0 if something can."""
        waits = (
            self.slots == self.waiting_for_rate + self.closed_waiting
            and not self.suspects
            and not self.counts["leased"]
        )
        times = [at_ms for at_ms in (self.opening_ms[0], self.next_due_ms) if at_ms]
        return min(times) if waits and times and min(times) > self.now_ms else 0


@dataclass(frozen=True, slots=True)
class SlotFound:
    """A slot with something in it.

    Args:
        pending: requests in its queue.
        leased: requests handed out and not acked, None if that wasn't counted.
        rank: of the request at its head, None if nothing is pending.
        waiting_until_ms: when its rate lets it be served again, 0 if it may be now.
        done_per_s: requests of it acked in the last minute, by second.
        limit: what counts for it.
        is_full: it is at its concurrency.
        closed_until_ms: until when it waits since its site has asked for that, 0 if it doesn't.
    """

    name: str
    pending: int
    leased: int | None = None
    rank: int | None = None
    waiting_until_ms: int = 0
    done_per_s: float = 0.0
    limit: LimitInForce = LimitInForce()
    is_full: bool = False
    closed_until_ms: int = 0


@dataclass(frozen=True, slots=True)
class SlotsFound:
    """The first slots in some order.

    Args:
        count: how many there are in all; at least that, where very many stand in several lines.
        sort: the order.
    """

    count: int
    slots: Sequence[SlotFound]
    sort: Sorting


@dataclass(frozen=True, slots=True)
class Stored:
    """A request of the frontier, wherever it is.

    Args:
        at_ms: when its lease expires, it is due, or it died; 0 while it is pending.
        is_suspect: it has lost workers, and waits apart from its slot.
        worker: who has it, or had it last.
        lost_by: workers that were lost over it.
    """

    lease_id: int
    place: Place
    attempts: int
    rank: int
    slot: str
    payload: bytes = field(repr=False)
    at_ms: int = 0
    is_suspect: bool = False
    worker: str = ""
    lost_by: str = ""
    reason: str = ""
    detail: str = ""
    traceback: str = ""
    epoch: str = ""
