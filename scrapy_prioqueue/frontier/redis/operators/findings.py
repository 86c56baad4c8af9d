"""Results of the inspector as plain data, for the command line and other programs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from scrapy_prioqueue.frontier.policy_parts import Owner
from scrapy_prioqueue.frontier.redis.operators.budgets import BudgetSummary
from scrapy_prioqueue.frontier.redis.operators.limits import LimitShown
from scrapy_prioqueue.frontier.waits import Blocked, SlowPage

RequestState = Literal["pending", "delayed", "leased", "dead"]
"""State of a stored request."""

Sorting = Literal["pending", "leased", "name", "order"]
"""Order of slots: by length of the queue, by number of leases, by name, or as served."""

STATES: tuple[RequestState, ...] = ("leased", "pending", "delayed", "dead")


SHORT_WAIT_MS = 10_000
"""A crawl whose requests all wait for no longer than this doesn't count as idle."""

HANDLERS = "handlers of this package's signals in the project, which are still running"


@dataclass(frozen=True, slots=True)
class PolicyFound:
    """The policy of a frontier.

    Args:
        has_limits: slots may have to wait.
        has_budgets: requests have budget keys.
        weights: by tier, best first; empty to serve the best tier first.
        discovery: indexes of the tiers that are not served in a flood.
        high_water: number of pending requests at which a flood begins, 0 for no mark.
        low_water: number at which it ends.
        pending_limit: number of pending requests of all kinds at which a flood begins, 0 for no limit.
        is_flooded: there is a flood.
        is_memory_high: the server's memory is above its mark.
        owners: the owners of the parts in force.
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
        seen: number of fingerprints.
        seen_name: name of the frontier that stores them, empty for this one.
        seen_mode: exact, compact or bloom.
        seen_lost: expected number of new pages that a Bloom filter has taken for duplicates.
        orders: operators' commands in force: paused, drained, stopping.
        cleaning_ms: time of the last step of a clearing, 0 if there was none.
        keeps_letters: there is a reason for which dead letters are kept.
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
    keeps_letters: bool = True

    def has_letter(self, stored: Stored) -> bool:
        """Return whether a dead letter is of this crawl; those of earlier ones are kept, and no longer counted."""
        return stored.epoch == self.epoch

    @property
    def has_ended(self) -> bool:
        """Whether the crawl is over; the next worker, or a push, begins a new one."""
        return self.phase == "ended"


@dataclass(frozen=True, slots=True)
class TierDepth:
    """Number of pending requests of a tier."""

    tier: str
    pending: int


@dataclass(frozen=True, slots=True)
class Rates:
    """The rates of a fleet, by the server's counters of the last ten seconds or so; None if unknown.

    Args:
        done_per_s: requests acked.
        accepted_per_s: requests stored.
        gone_per_s: requests given up or removed.
        counted_ms: beginning and end of the time over which these were counted; 0 and 0 if unknown.
        left_s: seconds until nothing is left at these rates; None also while the frontier grows.
        history: requests acked in each 10 s of the last five minutes, the current ones last; empty if unknown.
        is_growing: more were stored than acked, given up and removed in the last ten to twenty seconds.
    """

    done_per_s: float | None = None
    accepted_per_s: float | None = None
    left_s: float | None = None
    history: Sequence[int] = ()
    is_growing: bool = False
    gone_per_s: float = 0.0
    counted_ms: tuple[int, int] = (0, 0)

    @property
    def drain_per_s(self) -> float | None:
        """By how many requests the frontier shrinks per second."""
        if self.done_per_s is None or self.accepted_per_s is None:
            return None
        return self.done_per_s + self.gone_per_s - self.accepted_per_s


@dataclass(frozen=True, slots=True)
class WorkerFound:
    """A worker that the frontier knows.

    Args:
        heard_s: seconds since it was last heard of.
        is_alive: that is less than a lease's time to live.
        is_busy: it has not reported that it is idle.
        is_hungry: it got less than it asked for.
        rate_per_s: average rate of acks since it joined; None if unknown.
        stop: reason of the command to stop, empty for none.
        slow: pages that it holds and that may never end.
        blocked: set if its event loop is blocked.
        kept: number of requests that stay in it.
        kept_pages: number of pages that linger because of those.
        unstorable: number of requests since its start that could not be stored.
        has_more_starts: it has not exhausted `start()`.
        is_paused: its engine is paused (`engine.pause()`), so it starts nothing.
        has_handlers: handlers of this package's signals are still running in it, and may add requests.
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
    unstorable: int = 0
    has_more_starts: bool = False
    is_paused: bool = False
    has_handlers: bool = False


@dataclass(frozen=True, slots=True)
class Memory:
    """Memory of the whole server in bytes; 0 if unknown, and a limit of 0 means none."""

    used: int = 0
    limit: int = 0


@dataclass(frozen=True, slots=True)
class SeedsFound:
    """A key of seeds.

    Args:
        kind: type of the key, `none` if there is no such key, empty if it can't be read.
        entries: number of entries; None if they are no seeds, or unknown.
    """

    key: str
    kind: str
    entries: int | None


@dataclass(frozen=True, slots=True)
class Status:
    """The summary of a frontier.

    Args:
        counts: the counters of the crawl, by name; missing ones are 0.
        tiers: pending requests by tier, best first.
        is_sampled: the tiers are estimated from a sample of the slots.
        next_due_ms: when the first delayed request is due, 0 if there is none.
        now_ms: on the frontier's clock.
        waiting_for_rate: slots with pending requests that wait for their rate.
        waiting_for_leases: slots with pending requests at their concurrency, which wait for leases to end.
        rate_left_s: seconds until the slowest slot has served its pending requests at its rate; 0 without delays, or if
            there are too many slots.
        closed_waiting: slots with pending requests that wait because of `Retry-After`.
        closed_slots: all slots that wait because of `Retry-After`.
        limits: number of entries about slots in settings and of operators.
        learnt_delays: number of delays from robots.txt or latency.
        budgets: all budget keys together.
        suspects: number of pending suspects.
        opening_ms: when the first and the last of the slots open that wait for their rate; 0 and 0 if none does.
        seeds: the keys of seeds in the settings of the command.
        letters: number of dead letters that are kept, of this crawl and earlier ones.
    """

    name: str
    address: str
    state: State
    counts: Mapping[str, int]
    tiers: Sequence[TierDepth]
    is_sampled: bool
    slots: int
    pace: Rates
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
    seeds: Sequence[SeedsFound] = ()
    letters: int = 0

    @property
    def own_letters(self) -> int:
        """Number of dead letters of this crawl that are kept."""
        return max(0, self.counts["dead"] - self.counts["dead_dropped"])

    @property
    def earlier_letters(self) -> int:
        """Number of dead letters of earlier crawls."""
        return max(0, self.letters - self.own_letters)

    @property
    def left(self) -> int:
        """Number of requests that are left."""
        return self.counts["pending"] + self.counts["delayed"] + self.counts["leased"]

    @property
    def has_workers(self) -> bool:
        """Whether a worker is alive."""
        return any(worker.is_alive for worker in self.workers)

    @property
    def waiting_workers(self) -> Sequence[WorkerFound]:
        """The workers that keep an empty crawl open, for what is `awaited`."""
        if self.left or self.state.has_ended:
            return ()
        return [worker for worker in self.workers if worker.is_alive and worker.is_busy and not worker.kept]

    @property
    def awaited(self) -> str:
        """What the waiting workers wait for, as the end of a sentence."""
        waiting = self.waiting_workers
        # A drained crawl reads no seeds.
        found = ["seeds"] if self.seeds and "drained" not in self.state.orders else []
        own = ["more requests of start()"] if any(worker.has_more_starts for worker in waiting) else []
        own += [HANDLERS] if any(worker.has_handlers for worker in waiting) else []
        *others, last = found + (own or ["pushed requests", "the end of PRIOQUEUE_MAX_IDLE"])
        return f"{', '.join(others)} or {last}" if others else last

    @property
    def idle_until_ms(self) -> int:
        """Time before which nothing can be fetched, since all requests wait; 0 if something can be fetched now."""
        waits = (
            self.slots == self.waiting_for_rate + self.closed_waiting
            and not self.suspects
            and not self.counts["leased"]
        )
        times = [at_ms for at_ms in (self.opening_ms[0], self.next_due_ms) if at_ms]
        return min(times) if waits and times and min(times) > self.now_ms else 0

    @property
    def is_idle(self) -> bool:
        """Whether nothing can be fetched for a while, since all requests wait."""
        return self.idle_until_ms - self.now_ms > SHORT_WAIT_MS


@dataclass(frozen=True, slots=True)
class SlotFound:
    """A slot with requests.

    Args:
        pending: number of requests in its queue.
        leased: number of leased requests, None if not counted.
        rank: of its best pending request, None if it has none.
        waiting_until_ms: when its rate allows the next request, 0 for now.
        done_per_s: requests acked per second in the last minute.
        limit: the limit in force.
        is_full: it is at its concurrency.
        closed_until_ms: end of the pause that its site has asked for, 0 for none.
    """

    name: str
    pending: int
    leased: int | None = None
    rank: int | None = None
    waiting_until_ms: int = 0
    done_per_s: float = 0.0
    limit: LimitShown = LimitShown()
    is_full: bool = False
    closed_until_ms: int = 0


@dataclass(frozen=True, slots=True)
class SlotsFound:
    """The first slots in some order.

    Args:
        count: total number of slots; a lower bound if very many are in several lanes.
        sort: the order.
        suspects: number of pending suspects, which are kept apart from their slots.
    """

    count: int
    slots: Sequence[SlotFound]
    sort: Sorting
    suspects: int = 0


class Letter(NamedTuple):
    """A dead letter that somebody has chosen; if its request dies again, that is another one."""

    lease_id: int
    died_ms: int


@dataclass(frozen=True, slots=True)
class Stored:
    """A stored request in any state.

    Args:
        at_ms: when its lease expires, it is due, or it died; 0 while it is pending.
        is_suspect: it has lost workers, and is kept apart from its slot.
        worker: its holder, or the last one.
        lost_by: workers that were lost while they held it.
    """

    lease_id: int
    state: RequestState
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

    @property
    def letter(self) -> Letter:
        """What names this dead letter."""
        return Letter(self.lease_id, self.at_ms)
