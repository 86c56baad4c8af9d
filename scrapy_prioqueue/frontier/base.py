"""The frontier's interface and the plain data that passes through it; no Scrapy, no Redis, no storage.

A frontier holds all requests of one crawl: pending, leased, dead, done, and the fingerprints seen.
A worker joins it, then talks to it in exchanges: each commits what the worker has to tell and leases what it needs.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from scrapy_prioqueue.frontier.direct import Direct
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
"""Reason of a dead letter whose retries are used up."""

DEAD_BY_CALLBACK = "callback"
"""Reason of a dead letter whose callback or errback has raised an exception."""

DEAD_BY_BUDGET = "budget"
"""Reason of a dead letter that was over one of its budgets."""

DEAD_BY_ESCALATION = "escalation"
"""Reason of a dead letter that was given up on by the last extraction layer."""

DEAD_REASONS = (
    *(DEAD_BY_DOWNLOAD, DEAD_BY_CALLBACK, DEAD_BY_LEASE),
    *(DEAD_BY_DECODE, DEAD_BY_BUDGET, DEAD_BY_ESCALATION),
)
"""All of them."""


SUSPECT_GROUPS = (8, 4, 4, 2, 2)
"""Workers that are killed together, in a deploy for example, leave many suspects, of which few or none kill workers."""

ANY_NUMBER = 2**31


@dataclass(frozen=True, slots=True)
class FrontierConfig:
    """Settings on which all workers of a frontier must agree, and those of one worker.

    Args:
        name: the frontier's name, shared by all workers of a crawl.
        tiers: names of the tiers, best first.
        order: which of two requests of equal rank and slot goes first: the newest ("lifo") or the oldest ("fifo").
        lease_ttl_s: seconds until a lease that nobody renews expires; also how long a silent worker counts as alive.
        max_attempts: a request leased so often and never acked becomes a dead letter.
        on_finish: whether the next crawl forgets ("restart") or keeps ("keep") the fingerprints seen.
        worker: id of this worker; one that returns under the same id gets its own leases back.
        worker_info: what others want to know of this worker, such as host and pid; see `process_info`.
        crawl_id: name of the run, or None to join whatever is there.
        flush: begin anew, dropping what the frontier holds.
        clock: for tests; None for the frontier's own clock.
        journal_s: seconds for which committed operations are kept, to send them again to a server that lost them.
        journal_limit: how many of them are kept at most.
        wait_replicas: replicas that must have a commit before it counts as done.
        dead_on: reasons for which a request given up is kept as a dead letter; others are only counted.
        seen_name: name of the frontier in which the fingerprints are kept, None for this one; for a server only.
        dead_limit: dead letters of each reason kept at most; the oldest go first. Of those over budget only letters of
            earlier crawls go.
        policy: what is enforced as requests are handed out.
        seen: how fingerprints are remembered.
        spider: what requests are crawled with, told to those that join later; empty for nothing.
        suspect_groups: how many suspects a worker may hold together, by how often they were lost since they are; one
            where they were lost more often. See `group`.
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

    @property
    def suspect_attempts(self) -> int:
        """A request lost so often is a suspect: it may be what kills workers, and is handed out with few others."""
        return max(1, min(2, self.max_attempts - 1))

    @property
    def groups(self) -> Sequence[int]:
        """The last of `suspect_groups`, no more than `max_attempts`: fewer attempts leave fewer to narrow it down."""
        return tuple(self.suspect_groups)[-self.max_attempts :]

    @property
    def lone_losses(self) -> int:
        """A request is given up only if it was lost so often while nothing else could be to blame."""
        return min(2, self.max_attempts - self.suspect_attempts)

    def group(self, attempts: int) -> int:
        """Return how many suspects a worker may hold together with one that was lost so often."""
        steps = attempts - self.suspect_attempts
        return self.groups[steps] if steps < len(self.groups) else 1


@dataclass(frozen=True, slots=True)
class Demand:
    """What a worker requests in one exchange.

    Args:
        limit: how many requests it could use at most; 0 is allowed and only reports the worker's state.
        slot_limit: how many of one slot it could use, at least 1, where `slot_room` doesn't say otherwise.
        slot_room: how many more of these slots it could use; 0 where the slot is full.
        is_idle: nothing runs here, nothing is unsent and `start()` is used up: the crawl may end.
        is_fair: take no more than an equal share of what is pending.
        suspect_room: how many more suspects may come, as far as those go that are held: the first of all, unless
            another request goes before them or their slots have no room.
        suspects_held: how many are held; a suspect comes only where that is less than its group.
        later_limit: how many requests it could hold at most of those that may start now and those whose slots let them
            start soon; `limit` where that is more.
        horizon_ms: how soon that is.
        keep_ms: a request of a better tier that may start so soon takes one of the places of `limit` that a worse one
            could have at once.
        kept_of: where nothing is handed out ahead of its time: how many places are free of which so many are kept.
        notes: what it has learnt of slots.
        away_ms: for how long it was cut off, if it has not told all that it did meanwhile; 0 otherwise. Until all
            workers that lived then have, or some seconds have passed, nothing is handed out and no lease expires.
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
    keep_ms: int = 0
    kept_of: int = 0
    notes: Sequence[Note] = ()
    away_ms: int = 0

    @property
    def may_take_suspect(self) -> bool:
        """A suspect may come."""
        return self.suspect_room > 0


class Lease(NamedTuple):
    """A request handed out until it expires; a tuple, since one is made for each request.

    Args:
        lease_id: number of the request in its frontier, below 2**53.
        attempt: how often it has been leased, this time included; the token of this lease.
        start_in_ms: how long its slot lets it wait, from when it was handed out.
        late_ms: it may start that much later, and has to be given back after that; None for no such limit.
        refusals: how often workers have given it back since they can't read it.
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
        leased: requests handed out and not yet acked.
        dead: requests given up in this crawl.
        done: requests acked.
        workers: workers heard of within the lease's time to live.
        delayed: requests that are not to be served yet.
        letters: dead letters that are kept, of this crawl and of earlier ones; known when a worker leaves only.
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
        """Requests that are still to be fetched, or are being fetched."""
        return self.pending + self.delayed + self.leased


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A request that was given up.

    Args:
        worker: who held it last.
        traceback: the end of it, empty where there is none.
        lost_by: the workers that were lost over it, with commas between.
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
    """This worker has restored its data on a server that was restarted, replaced or emptied.

    Nothing new was applied and nothing leased: leases that it does not know any more are to be claimed first.

    Args:
        resent: operations that were sent again.
        missing: batches that were lost and are not kept here any more.
        orders: how many orders and limits of operators were told again.
    """

    resent: int = 0
    missing: int = 0
    orders: int = 0


@dataclass(frozen=True, slots=True)
class Orders:
    """Commands of operators, and of the frontier itself, to a worker.

    Args:
        is_paused: start no requests.
        is_drained: take no new requests in that were found on pages.
        stop_reason: close, with this reason.
        is_flooded: there are so many requests that nothing is to be discovered: no start requests, no seeds.
        is_at_limit: nothing more is to be stored, not even where nothing can be served.
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
        committed: one entry per batch that was applied, in order; shorter than what was sent if one was refused.
        refusal: why the next batch was not applied, or None.
        leases: requests for this worker, in the order in which they are to be served.
        depth: counts after the exchange.
        has_ended: the crawl is over: nothing pending or leased and every living worker idle.
        reaped: expired leases that this exchange gave back to the queue.
        next_due_s: seconds until time brings something: the earliest lease expires, delayed request is due, or slot may
            be asked for again; None without any of them.
        buried: dead letters that this exchange has made of leases that were lost too often.
        has_forgotten: the server has lost the frontier, or was emptied; a new crawl has begun in its place.
        orders: what an operator wants.
        recall: what was done since the server may have forgotten something, None in an ordinary exchange.
        over_budget: how many requests this exchange has given up, by the budget key that they were over.
        must_ask: there are limits or budgets, so requests are to be asked for ahead of their time.
        has_budgets: there are budgets, so requests have to carry their keys, and nothing is to be started that the
            frontier has not handed out.
        lost: what workers had kept to themselves of which this exchange has found that they are lost, by their ids.
        warnings: what an operator should know of the crawl, ready to be logged.
        held_back: pending requests that water marks don't count, since their slots can't serve them soon; 0 below the
            marks.
        letters_dropped: reasons of which older dead letters were dropped in this crawl, since there were too many.
    """

    committed: Sequence[Committed] = ()
    refusal: Exception | None = None
    leases: Sequence[Lease] = ()
    depth: Depth = Depth()
    has_ended: bool = False
    reaped: int = 0
    next_due_s: float | None = None
    buried: Sequence[DeadLetter] = ()
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
        is_new: a crawl that begins now; False for one that is resumed or already under way.
        seen: fingerprints the frontier holds.
        recovered: leases given back because they belonged to an earlier process of this worker.
        reaped: expired leases, of any worker, that were given back besides.
        buried: those of all these that were given up, since they were lost too often.
        has_forgotten: the server has lost the frontier meanwhile; a new crawl has begun in its place.
        warnings: what an operator should know about the server and the crawl, ready to be logged.
        has_budgets: there are budgets, so that requests have to carry their keys.
        spider: `FrontierConfig.spider` of the worker that has begun the crawl, empty where that isn't known.
        waits: who holds requests, None where nobody else does.
        gone: workers on this machine whose processes are gone; what they held is among `reaped`.
        lost: what workers had kept to themselves that are lost, by their ids.
    """

    depth: Depth
    is_new: bool
    seen: int = 0
    recovered: int = 0
    reaped: int = 0
    buried: Sequence[DeadLetter] = ()
    has_forgotten: bool = False
    warnings: Sequence[str] = ()
    spider: str = ""
    waits: Waits | None = None
    gone: Sequence[str] = ()
    lost: Mapping[str, Kept] = field(default_factory=dict)
    has_budgets: bool = False


ALWAYS_TAKEN = 64 * 1024
"""Bytes that every server takes at a time: where it was less, a lost connection isn't a matter of size."""


class Frontier(ABC):
    """All requests of one crawl, as one worker sees them.

    The methods are coroutines; those of the in-process frontier never suspend.
    `FrontierUnavailable` may be raised by each of them; unless its `was_sent` is false, nothing is known of whether the
    call was carried out.
    """

    config: FrontierConfig
    """Settings of this worker."""

    address: str
    """Where the requests are kept, fit for a log line (no password)."""

    is_local: bool
    """True if an exchange costs no round trip."""

    direct: Direct | None = None
    """A way to work without exchanges, if there is one."""

    _refused_size = sys.maxsize

    @property
    def payload_limit(self) -> int:
        """Bytes of the largest payload that is taken, as far as is known."""
        return self._refused_size - 1

    @abstractmethod
    async def join(self) -> Joined:
        """Enter the crawl, begin a new one or resume one.

        Raises:
            CrawlEnded: `FrontierConfig.crawl_id` names a crawl that is over.
            NotPermitted: a flush while other workers are alive, or another crawl is unfinished.
            LayoutMismatch: written by another layout version, or pending requests with other tiers.
        """

    @abstractmethod
    async def exchange(self, batches: Sequence[Batch], demand: Demand | None) -> Exchanged:
        """Commit the batches in order, reap expired leases, lease the requests demanded; one round trip.

        With `demand` None nothing is leased or reaped, and only `committed` and `refusal` are told.
        A batch that is refused (`FrontierFull`, `RequestTooLarge`) doesn't keep others from being leased.

        Raises:
            NotPermitted: another process has joined under this worker's id.
        """

    def note_too_large(self, size: int) -> None:
        """Take note that a payload of so many bytes was refused for its size."""
        if size > ALWAYS_TAKEN:
            self._refused_size = min(self._refused_size, size)

    @abstractmethod
    async def known(self, pushes: Sequence[Push]) -> Sequence[int]:
        """Return the indexes of requests that would be duplicates now; a full server takes a batch of such ones."""

    @abstractmethod
    async def pending(self, slot: str, first: int, limit: int) -> Sequence[Lease]:
        """Return requests of a slot that wait, best first, without leasing them: `limit` of them, from the n-th on.

        Their attempts are those that they have behind them.
        """

    @abstractmethod
    async def workers(self) -> Sequence[str]:
        """Return the ids of the living workers."""

    def said_limits(self) -> Mapping[str, SlotLimit]:
        """Return operators' limits of slots, as far as this worker knows them."""
        return {}

    async def limits_in_force(self) -> LimitsInForce:
        """Return the limits that a worker needs in an outage."""
        return LimitsInForce()

    @abstractmethod
    async def renew(self, held: Sequence[tuple[int, int]]) -> Sequence[int]:
        """Push the expiry of held leases back and report this worker as alive.

        Args:
            held: (lease id, attempt) of each.

        Returns:
            the ids of those that this worker does not hold any more.
        """

    @abstractmethod
    async def leases(self) -> Sequence[tuple[int, int]]:
        """Return (lease id, attempt) of all that this worker holds as far as the frontier knows."""

    @abstractmethod
    async def reconcile(self, held: Sequence[tuple[int, int]]) -> int:
        """Give back every lease of this worker that is not among `held`; return how many.

        For when an answer was lost and leases may have been granted that nobody knows of.
        """

    @abstractmethod
    async def waits(self) -> Waits:
        """Return why there is nothing for this worker, which asks since it has nothing to do; it costs little."""

    @abstractmethod
    async def report_slow(self, pages: Sequence[SlowPage], blocked: Blocked | None = None) -> None:
        """Note which pages of this worker may never end, and whether its loop is blocked, in place of the last note."""

    @abstractmethod
    async def listen(self, ring: Callable[[], object]) -> None:
        """Call `ring` whenever there may be work for a worker that got less than it asked for, or the crawl has ended.

        Goes on until it is cancelled; one in process, which nobody else pushes to, returns at once.
        """

    @abstractmethod
    async def leave(self) -> None:
        """Leave the crawl. The last worker of a crawl that has ended clears it."""

    @abstractmethod
    async def dead_letters(self, limit: int) -> Sequence[DeadLetter]:
        """Return the newest dead letters, newest first."""

    @abstractmethod
    async def count_letters(self) -> int:
        """Return how many dead letters are kept."""

    @abstractmethod
    def twin(self) -> Frontier:
        """Return the same session of this worker over connections of its own, for the event loop of another thread.

        To be closed soon: it doesn't follow if this one enters its crawl again. One in process returns itself.
        """

    @abstractmethod
    async def close(self) -> None:
        """Close connections. Safe to call twice."""
