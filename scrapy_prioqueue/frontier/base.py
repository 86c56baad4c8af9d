"""The frontier's interface and its plain data; no Scrapy, no Redis, no storage.

A frontier holds all requests of one crawl: pending, leased, dead, done, and the fingerprints seen.
A worker joins it and then makes exchanges: each commits the worker's operations and leases the requests it needs.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from typing import Literal, NamedTuple

from scrapy_prioqueue.frontier.kept import Kept
from scrapy_prioqueue.frontier.operations import Ack as Ack
from scrapy_prioqueue.frontier.operations import Batch as Batch
from scrapy_prioqueue.frontier.operations import Claim as Claim
from scrapy_prioqueue.frontier.operations import Committed as Committed
from scrapy_prioqueue.frontier.operations import Fail as Fail
from scrapy_prioqueue.frontier.operations import Operation as Operation
from scrapy_prioqueue.frontier.operations import Push as Push
from scrapy_prioqueue.frontier.operations import Refuse as Refuse
from scrapy_prioqueue.frontier.operations import Release as Release
from scrapy_prioqueue.frontier.operations import Spent as Spent
from scrapy_prioqueue.frontier.policy import LimitsInForce, Note, Policy, SlotLimit
from scrapy_prioqueue.frontier.runs import FleetTotals
from scrapy_prioqueue.frontier.runs import Report as Report
from scrapy_prioqueue.frontier.seen import SeenPolicy
from scrapy_prioqueue.frontier.waits import Blocked, SlowPage, Waits

Clock = Callable[[], int]
"""Returns the time in integer milliseconds; tests pass one, production uses the frontier's own."""

Order = Literal["lifo", "fifo"]
OnFinish = Literal["restart", "keep"]

DEAD_BY_LEASE = "lease"
"""Reason of a dead letter that was leased `FrontierConfig.max_attempts` times and never acked."""

DEAD_BY_DECODE = "decode"
"""Reason of a dead letter whose payload could not be read as a request."""

DEAD_BY_DOWNLOAD = "download"
"""Reason of a dead letter whose retries are exhausted."""

DEAD_BY_CALLBACK = "callback"
"""Reason of a dead letter whose callback or errback raised an exception."""

DEAD_BY_BUDGET = "budget"
"""Reason of a dead letter that was over one of its budgets."""

DEAD_BY_ESCALATION = "escalation"
"""Reason of a dead letter that the last extraction layer gave up."""

DEAD_REASONS = (
    *(DEAD_BY_DOWNLOAD, DEAD_BY_CALLBACK, DEAD_BY_LEASE),
    *(DEAD_BY_DECODE, DEAD_BY_BUDGET, DEAD_BY_ESCALATION),
)
"""All reasons."""


SUSPECT_GROUPS = (8, 4, 4, 2, 2)
"""Workers that are killed together, for example in a deploy, leave many suspects, of which few or none kill workers."""

ANY_NUMBER = 2**31


def suspect_attempts_of(max_attempts: int) -> int:
    """Return the number of losses that makes a request a suspect: it may kill workers, and comes with few others."""
    return max(1, min(2, max_attempts - 1))


def group_size(losses: int, suspect_attempts: int, groups: Sequence[int]) -> int:
    """Return how many suspects a worker may hold together with one that has had this number of losses."""
    steps = losses - suspect_attempts
    return groups[steps] if steps < len(groups) else 1


@dataclass(frozen=True, slots=True)
class FrontierConfig:
    """Settings that all workers of a frontier must share, and those of one worker.

    Args:
        name: the frontier's name, shared by all workers of a crawl.
        tiers: names of the tiers, best first.
        order: which of two requests of equal rank and slot goes first: the newest ("lifo") or the oldest ("fifo").
        lease_ttl_s: seconds after which a lease expires unless it is renewed, and a silent worker counts as lost.
        max_attempts: leases without an ack after which a request becomes a dead letter.
        on_finish: whether the next crawl forgets ("restart") or keeps ("keep") the fingerprints seen.
        worker: id of this worker; a worker that returns under the same id gets its own leases back.
        worker_info: what other workers need to know of this one, such as host and pid; see `process_info`.
        crawl_id: name of the crawl, or None to join any crawl.
        flush: drop the frontier's data and begin a new crawl.
        flush_if_alone: if other workers are alive, join them without a flush, instead of being rejected.
        clock: for tests; None for the frontier's own clock.
        journal_s: seconds for which committed operations are kept, to send them again to a server that lost them.
        journal_limit: maximum number of these operations.
        wait_replicas: replicas that must have a commit before it counts as done.
        dead_on: reasons for which dead letters are kept; others are only counted.
        seen_name: name of the frontier that stores the fingerprints, None for this one; only on a server.
        dead_limit: maximum number of dead letters per reason; the oldest are dropped first. Letters of requests over
            budget are dropped only if they come from earlier crawls.
        policy: limits, weights, budgets and water marks.
        seen: how fingerprints are remembered.
        spider: class and arguments of the spider, to be compared with those of other workers; empty for none.
        suspect_groups: how many suspects a worker may hold together, by the number of losses since a request became a
            suspect; 1 beyond the last entry. See `group_size`.
        foreign_keys: of the requests and fingerprints of scrapy-redis, to be counted when a new crawl begins; or none.
    """

    name: str
    tiers: Sequence[str]
    worker: str
    order: Order = "lifo"
    lease_ttl_s: float = 60.0
    max_attempts: int = 5
    on_finish: OnFinish = "restart"
    worker_info: Mapping[str, str] = field(default_factory=dict)
    crawl_id: str | None = None
    flush: bool = False
    flush_if_alone: bool = False
    clock: Clock | None = None
    journal_s: float = 30.0
    journal_limit: int = 20_000
    wait_replicas: int = 0
    dead_on: Sequence[str] = DEAD_REASONS
    dead_limit: int = 10_000
    seen_name: str | None = None
    policy: Policy = Policy()
    seen: SeenPolicy = SeenPolicy()
    spider: str = ""
    suspect_groups: Sequence[int] = SUSPECT_GROUPS
    foreign_keys: Sequence[str] = ()

    @property
    def suspect_attempts(self) -> int:
        """Number of losses that makes a request a suspect."""
        return suspect_attempts_of(self.max_attempts)

    @property
    def groups(self) -> Sequence[int]:
        """The last `max_attempts` of `suspect_groups`: with fewer attempts the groups must shrink faster."""
        return tuple(self.suspect_groups)[-self.max_attempts :]

    @property
    def lone_losses(self) -> int:
        """Losses as the only possible culprit that are required before a request is given up."""
        return min(2, self.max_attempts - self.suspect_attempts)

    def group(self, losses: int) -> int:
        """Return `group_size` with these settings."""
        return group_size(losses, self.suspect_attempts, self.groups)


@dataclass(frozen=True, slots=True)
class Demand:
    """The requests that a worker wants from one exchange.

    Args:
        limit: maximum number of requests; 0 is allowed and only reports the worker's state.
        slot_limit: maximum number of each slot, at least 1, unless `slot_room` has the slot.
        slot_room: maximum number by slot; 0 for a full slot.
        is_idle: nothing runs here, nothing is unsent and `start()` is exhausted: the crawl may end.
        is_fair: take at most an equal share of the pending requests.
        suspect_room: how many more suspects may come within the group of those held. A suspect comes first, unless
            another request is served before it or its slot has no room.
        suspects_held: number of suspects held; another one comes only if this is below the size of its group.
        later_limit: maximum number of requests that may start now or soon; `limit` if that is larger.
        horizon_ms: how far ahead "soon" reaches.
        reserve_ms: time within which a request of a better tier must start to have a place of `limit` reserved, while a
            worse one could start at once.
        reservable: number of free places of which some may be reserved, if nothing is leased ahead of its time; else 0.
        notes: what the worker has learned of slots.
        away_ms: how long the worker was cut off, until it has reported all that it did meanwhile; 0 otherwise. Nothing
            is leased and no lease expires until all workers that lived then have reported, or some seconds have
            passed.
    """

    limit: int
    slot_limit: int = 2**31
    slot_room: Mapping[str, int] = field(default_factory=dict)
    is_idle: bool = False
    is_fair: bool = True
    suspect_room: int = ANY_NUMBER
    suspects_held: int = 0
    later_limit: int = 0
    horizon_ms: int = 0
    reserve_ms: int = 0
    reservable: int = 0
    notes: Sequence[Note] = ()
    away_ms: int = 0


class Lease(NamedTuple):
    """A request that a worker holds until the lease ends; a tuple for speed, since one is created for each request.

    Args:
        lease_id: number of the request in its frontier, below 2**53.
        attempt: how often it has been leased, including this time; part of the token of this lease.
        start_in_ms: how long it must wait for its slot, from when it was leased.
        late_ms: how much later than that it may start before it must be released; None for no limit.
        refusals: how often all living workers have refused it; 0 if this worker never has.
    """

    lease_id: int
    attempt: int
    rank: int
    slot: str
    payload: bytes
    start_in_ms: int = 0
    late_ms: int | None = None
    refusals: int = 0


@dataclass(frozen=True, slots=True)
class Depth:
    """Counts of one crawl. ``accepted == pending + delayed + leased + dead + done`` at every moment.

    Args:
        accepted: requests stored since the crawl began.
        pending: requests that wait for a worker.
        leased: requests whose leases have not ended.
        dead: requests given up in this crawl.
        done: requests acked.
        workers: living workers, heard of within the lease's time to live; 0 in an answer without counts.
        delayed: requests that may not be served yet.
        letters: dead letters kept, of this crawl and of earlier ones; set only when a worker leaves.
    """

    accepted: int = 0
    pending: int = 0
    leased: int = 0
    dead: int = 0
    done: int = 0
    workers: int = 0
    delayed: int = 0
    letters: int = 0

    @property
    def unfinished(self) -> int:
        """Requests that are not done or dead."""
        return self.pending + self.delayed + self.leased

    def after(self, known: Depth) -> Depth:
        """Return these counts; without any, since the crawl is over, those known before, with nothing left."""
        if self.workers:
            return self
        return replace(known, pending=0, delayed=0, leased=0, workers=0, letters=self.letters)


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A request that was given up.

    Args:
        worker: the last worker that held it.
        traceback: its end, empty if there is none.
        lost_by: the workers that were lost while they held it, separated by commas.
    """

    lease_id: int
    reason: str
    detail: str
    attempts: int
    rank: int
    slot: str
    worker: str
    died_ms: int
    payload: bytes
    traceback: str = ""
    lost_by: str = ""


@dataclass(frozen=True, slots=True)
class Recall:
    """Sent when this worker has restored its data on a server that was restarted, replaced or emptied.

    No new batch was applied and nothing leased: first the worker must claim the leases that the server has lost.

    Args:
        resent: operations that were sent again.
        missing: lost batches that are not in the journal any more.
        orders: operators' commands and limits that were sent again.
    """

    resent: int = 0
    missing: int = 0
    orders: int = 0


@dataclass(frozen=True, slots=True)
class Orders:
    """Commands of operators, and of the frontier itself, to a worker.

    Args:
        is_paused: start no requests.
        is_drained: accept no new requests that were found on pages.
        stop_reason: close, with this reason.
        is_flooded: make no new discoveries: read neither `start()` nor seeds.
        is_at_limit: make none even if no request can be served.
    """

    is_paused: bool = False
    is_drained: bool = False
    stop_reason: str | None = None
    is_flooded: bool = False
    is_at_limit: bool = False


@dataclass(frozen=True, slots=True)
class Exchanged:
    """The frontier's answer to one exchange.

    Args:
        committed: one entry per batch that was applied, in order; fewer than were sent if one was rejected.
        rejection: why the next batch was not applied, or None.
        leases: requests for this worker, in serving order.
        depth: counts after the exchange.
        has_ended: the crawl is over: nothing is pending or leased and all living workers are idle.
        reaped: expired leases that this exchange returned to the queue.
        next_due_s: seconds until a lease expires, a delayed request is due, or a waiting slot should be asked for
            again; None if none of these is expected.
        dead_letters: dead letters that this exchange has made of leases that were lost too often.
        has_forgotten: the server has lost the frontier, or was emptied, and a new crawl has begun.
        orders: commands of operators.
        recall: result of restoring data that the server may have lost, None in an ordinary exchange.
        over_budget: number of requests that this exchange has given up, by the exhausted budget key.
        must_ask: there are limits or budgets, so requests should be asked for ahead of their time.
        has_budgets: there are budgets, so requests must have labels, and only leased requests may be started.
        lost: by worker id, requests that lost workers had kept to themselves, as found by this exchange.
        warnings: problems of the crawl for operators, ready to be logged.
        held_back: pending requests that water marks don't count, since their slots can't serve them soon; 0 below the
            marks.
        letters_dropped: reasons with too many dead letters, so that older ones were dropped in this crawl.
    """

    committed: Sequence[Committed] = ()
    rejection: Exception | None = None
    leases: Sequence[Lease] = ()
    depth: Depth = Depth()
    has_ended: bool = False
    reaped: int = 0
    next_due_s: float | None = None
    dead_letters: Sequence[DeadLetter] = ()
    has_forgotten: bool = False
    orders: Orders = Orders()
    recall: Recall | None = None
    over_budget: Mapping[str, int] = field(default_factory=dict)
    must_ask: bool = False
    has_budgets: bool = False
    lost: Mapping[str, Kept] = field(default_factory=dict)
    held_back: int = 0
    letters_dropped: Sequence[str] = ()
    warnings: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Joined:
    """The answer to a worker that joins.

    Args:
        depth: counts at that moment.
        is_new: whether a crawl begins now; False if one is resumed or running.
        seen: number of fingerprints in the frontier.
        recovered: leases returned because they belonged to an earlier process of this worker.
        reaped: other expired leases that were returned, of any worker.
        dead_letters: dead letters of those leases that were lost too often.
        has_forgotten: the server has lost the frontier meanwhile, and a new crawl has begun.
        warnings: problems of the server and the crawl for operators, ready to be logged.
        has_budgets: there are budgets, so requests must have labels.
        spider: `FrontierConfig.spider` of the worker that began the crawl, empty if unknown.
        waits: who holds requests, None if no other worker does.
        gone: workers on this machine whose processes have ended; their leases are included in `reaped`.
        lost: by worker id, requests that lost workers had kept to themselves.
        identity: one of `IDENTITIES` if the crawl was begun with other software, empty for the project's own.
        last_ended_ms: if this crawl is new, when the one before it ended; 0 if unknown, always in process.
        foreign: if this crawl is new, the numbers of requests and fingerprints under `FrontierConfig.foreign_keys`.
    """

    depth: Depth
    is_new: bool
    seen: int = 0
    recovered: int = 0
    reaped: int = 0
    dead_letters: Sequence[DeadLetter] = ()
    has_forgotten: bool = False
    warnings: Sequence[str] = ()
    spider: str = ""
    waits: Waits | None = None
    gone: Sequence[str] = ()
    lost: Mapping[str, Kept] = field(default_factory=dict)
    has_budgets: bool = False
    identity: str = ""
    last_ended_ms: int = 0
    foreign: tuple[int, int] = (0, 0)


ALWAYS_TAKEN = 64 * 1024
"""Bytes that every server accepts in a call: if a smaller call fails, its size isn't the cause."""


class Frontier(ABC):
    """All requests of one crawl, as one worker sees them.

    The methods are coroutines; those of the in-process frontier never suspend.
    Each may raise `FrontierUnavailable`. Unless its `was_sent` is false, the call may or may not have been executed.
    """

    config: FrontierConfig
    """Settings of this worker."""

    address: str
    """Where the requests are stored, for log lines (no password)."""

    is_local: bool
    """Whether an exchange needs no round trip."""

    _rejected_size = sys.maxsize

    @property
    def payload_limit(self) -> int:
        """Size in bytes of the largest payload that the server accepts, as far as is known."""
        return self._rejected_size - 1

    @abstractmethod
    async def join(self) -> Joined:
        """Join the crawl: begin a new one, resume one, or join a running one.

        Raises:
            CrawlEnded: `FrontierConfig.crawl_id` names a crawl that is over.
            NotPermitted: a flush while other workers are alive, or another crawl is unfinished.
            LayoutMismatch: the frontier has another layout version, or pending requests with other tiers.
        """

    @abstractmethod
    async def exchange(self, batches: Sequence[Batch], demand: Demand | None) -> Exchanged:
        """Commit the batches in order, reap expired leases, and lease the requests demanded, in one round trip.

        With `demand` None nothing is leased or reaped, and only `committed` and `rejection` are set.
        Leases are granted even if a batch is rejected (`FrontierFull`, `RequestTooLarge`).

        Raises:
            NotPermitted: another process has joined under this worker's id.
        """

    def note_too_large(self, size: int) -> None:
        """Record that a payload of this many bytes was rejected for its size."""
        if size > ALWAYS_TAKEN:
            self._rejected_size = min(self._rejected_size, size)

    @abstractmethod
    async def known(self, pushes: Sequence[Push]) -> Sequence[int]:
        """Return the indexes of requests that would be duplicates now; a full server accepts a batch of only these."""

    @abstractmethod
    async def pending(self, slot: str, first: int, limit: int) -> Sequence[Lease]:
        """Return up to `limit` pending requests of a slot, best first, from the n-th on, without leasing them.

        Their `attempt` is the number of past leases.
        """

    @abstractmethod
    async def workers(self) -> Sequence[str]:
        """Return the ids of the living workers."""

    def operators_limits(self) -> Mapping[str, SlotLimit]:
        """Return operators' limits of slots that this worker knows."""
        return {}

    async def limits_in_force(self) -> LimitsInForce:
        """Return the limits that a worker must keep in an outage."""
        return LimitsInForce()

    @abstractmethod
    async def renew(self, held: Sequence[tuple[int, int]]) -> Sequence[int]:
        """Extend held leases and report this worker as alive.

        Args:
            held: (lease id, attempt) of each.

        Returns:
            the ids of the leases that this worker no longer holds.
        """

    @abstractmethod
    async def leases(self) -> Sequence[tuple[int, int]]:
        """Return (lease id, attempt) of all leases that the frontier has for this worker."""

    @abstractmethod
    async def reconcile(self, held: Sequence[tuple[int, int]]) -> int:
        """Return every lease of this worker that is not among `held` to the queue; return how many.

        For use after a lost answer, which may have granted leases that the worker doesn't know of.
        """

    @abstractmethod
    async def waits(self) -> Waits:
        """Return why there is nothing for this worker, which is idle; a cheap call."""

    @abstractmethod
    async def report_slow(self, pages: Sequence[SlowPage], blocked: Blocked | None = None) -> None:
        """Store which pages of this worker may never end, and whether its loop is blocked; replaces the last report."""

    @abstractmethod
    async def listen(self, ring: Callable[[], object]) -> None:
        """Call `ring` when there may be work for a worker that got less than it asked for, or the crawl has ended.

        Runs until it is cancelled. For an in-process frontier, to which nobody else pushes, it returns at once.
        """

    async def follow(self, on_move: Callable[[], object]) -> None:  # noqa: B027
        """Call `on_move` each time the server is known to be at another address, where a call may succeed.

        Runs until it is cancelled; returns at once if the server has only one address, or none.
        """

    async def record(self, report: Report) -> float:
        """Store a report on this worker's run, in parallel to other calls.

        Returns:
            the seconds until a sample of the frontier is due, which the next report stores, too. In process, where
            nothing is stored, this is infinite.
        """
        return inf

    @abstractmethod
    async def leave(self, report: Report | None = None) -> FleetTotals | None:
        """Leave the crawl. The last worker to leave a crawl that has ended clears it.

        Args:
            report: the last one on this worker's run.

        Returns:
            the totals of all runs if this is that last worker, else None; in process always None.
        """

    @abstractmethod
    async def count_letters(self) -> int:
        """Return the number of dead letters kept."""

    @abstractmethod
    def twin(self) -> Frontier:
        """Return the same session of this worker with connections of its own, for the event loop of another thread.

        It must be closed soon, since it doesn't follow if this one joins again. An in-process frontier returns itself.
        """

    @abstractmethod
    async def close(self) -> None:
        """Close connections. Safe to call twice."""
