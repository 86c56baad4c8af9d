"""One worker's view of an in-process frontier: implements the interface of `frontier.base`."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from math import ceil

from scrapy_prioqueue.errors import CrawlEnded, LayoutMismatch, NotPermitted, PrioQueueError
from scrapy_prioqueue.frontier.base import (
    DEAD_BY_BUDGET,
    DEAD_BY_LEASE,
    Ack,
    Batch,
    Claim,
    Committed,
    DeadLetter,
    Demand,
    Depth,
    Exchanged,
    Fail,
    Frontier,
    FrontierConfig,
    Joined,
    Lease,
    Orders,
    Push,
    Refuse,
    Release,
    Report,
)
from scrapy_prioqueue.frontier.memory.direct import Direct
from scrapy_prioqueue.frontier.memory.leases import Held
from scrapy_prioqueue.frontier.memory.pending import Envelope
from scrapy_prioqueue.frontier.memory.serving import Served, Serving, openings_ms
from scrapy_prioqueue.frontier.memory.store import Crawl, MemoryStore, Rejected, Worker
from scrapy_prioqueue.frontier.memory.waits import waits_of
from scrapy_prioqueue.frontier.policy import LimitsInForce
from scrapy_prioqueue.frontier.policy_parts import PolicyChange, policy_warning
from scrapy_prioqueue.frontier.waits import Blocked, SlowPage, Waits
from scrapy_prioqueue.printable import how_often

MOST_ATTEMPTS = 250
"""On a server attempts are stored in one byte."""

REAP_LIMIT = 50
"""Maximum number of expired leases that one exchange returns, and of delayed requests that it makes pending: on a
server more would delay the other workers."""

_EPOCH_MS = (time.time_ns() - time.monotonic_ns()) // 10**6


def steady_clock() -> int:
    """Return the time of day in milliseconds: that at import, plus the time since on a clock that never goes back."""
    return _EPOCH_MS + time.monotonic_ns() // 10**6


class MemoryFrontier(Frontier):
    """A frontier in this process.

    Args:
        config: settings of this worker.
        store: that of another worker's frontier, to share its crawl; None for a frontier of its own.
    """

    address = "memory"
    is_local = True

    def __init__(self, config: FrontierConfig, store: MemoryStore | None = None) -> None:
        self.config = config
        self.store = MemoryStore() if store is None else store
        self.clock = config.clock or steady_clock
        self._ttl_ms = round(config.lease_ttl_s * 1000)
        self._forgets_seen = config.on_finish == "restart"
        self.joined: Crawl | None = None
        self._known_change: PolicyChange | None = None
        self.session = Worker(heard_ms=0)
        self._new_letters: list[DeadLetter] = []
        self.direct = Direct(self)

    async def join(self) -> Joined:
        now_ms = self.clock()
        store, worker = self.store, self.config.worker
        others = self._others(now_ms)
        if self.config.flush and not (others and self.config.flush_if_alone):
            self._flush(others)
        is_new = self._begins_crawl(others)
        self._check_tiers(others=[] if is_new else others)
        crawl = self._begin(now_ms) if is_new or store.crawl is None else store.crawl
        store.tiers = tuple(self.config.tiers)
        warnings = self._policy_warnings(store.adopt(self.config.policy, worker, now_ms))
        self._known_change = store.policy_change
        store.pending.groups = self.config.groups
        store.revisit_s = self.config.seen.revisit_s
        crawl.spider = crawl.spider or self.config.spider
        self.joined = crawl
        host = self.config.worker_info.get("host", "")
        self.session = store.workers[worker] = Worker(heard_ms=now_ms, host=host)
        own = store.leases.of_worker(worker)
        self._new_letters = []
        for lease_id in own:
            self._take_back(lease_id, now_ms, is_alone=len(own) == 1)
        reaped = self._reap(now_ms)
        store.look_at_flood(now_ms)
        return Joined(
            depth=self._depth(now_ms),
            is_new=is_new,
            seen=len(store.seen),
            recovered=len(own),
            reaped=reaped,
            dead_letters=self._new_letters,
            spider=crawl.spider,
            warnings=warnings,
            has_budgets=store.budgets.is_on,
            waits=waits_of(store, worker, now_ms, self._ttl_ms) if store.leases else None,
        )

    def _begin(self, now_ms: int) -> Crawl:
        config = self.config
        return self.store.begin(
            config.crawl_id, now_ms, forget_seen=self._forgets_seen, suspect_attempts=config.suspect_attempts
        )

    async def exchange(self, batches: Sequence[Batch], demand: Demand | None) -> Exchanged:
        now_ms = self.clock()
        crawl = self._crawl()
        if crawl is None:
            late = CrawlEnded(f"the crawl that worker {self.config.worker!r} has joined is over")
            return Exchanged(rejection=late if batches else None, has_ended=True)
        if not self._is_last_session():
            raise NotPermitted(
                f"another process has joined frontier {self.config.name!r} under the worker id"
                f" {self.config.worker!r}: give each living worker an id of its own"
            )
        self.session.heard_ms = now_ms
        committed, rejection = self._commit(crawl, batches, now_ms)
        reaped, self._new_letters, served = 0, [], Served()
        left_ms = None if demand is None else self._returning_ms(demand, now_ms)
        if demand is not None:
            for note in demand.notes:
                self.store.note(note, now_ms)
            if left_ms is None:
                reaped = self._reap(now_ms)
            self.store.end_limits(now_ms)
            if left_ms is None:
                served = self._serve(demand, now_ms)
            self.session.is_idle = demand.is_idle and not served.leases
            crawl.has_ended = crawl.has_ended or (left_ms is None and self._is_over(now_ms))
        return Exchanged(
            committed=committed,
            rejection=rejection,
            leases=served.leases,
            depth=self._depth(now_ms),
            has_ended=crawl.has_ended,
            reaped=reaped,
            dead_letters=self._new_letters,
            next_due_s=0.0 if served.must_ask_again else self._next_due_s(now_ms, demand, left_ms),
            orders=Orders(is_flooded=self.store.flood.is_on, is_at_limit=self.store.flood.is_at_limit),
            held_back=self.store.flood.held,
            warnings=self._policy_warnings(self.store.policy_change) if demand is not None else (),
            over_budget=served.over_budget,
            must_ask=self.store.limits is not None or self.store.budgets.is_on,
            has_budgets=self.store.budgets.is_on,
            letters_dropped=sorted(crawl.letters_dropped) if crawl.letters_dropped else (),
        )

    def _policy_warnings(self, change: PolicyChange | None) -> Sequence[str]:
        """Return the warning about another worker's policy, once."""
        if change is None or change is self._known_change:
            return ()
        self._known_change = change
        return [policy_warning(change, self.config.worker, self.config.name)]

    async def known(self, pushes: Sequence[Push]) -> Sequence[int]:
        seen, now_ms = self.store.seen, self.clock()
        fingerprints = (push.fingerprint for push in pushes)
        return [index for index, each in enumerate(fingerprints) if each is not None and seen.knows(each, now_ms)]

    async def pending(self, slot: str, first: int, limit: int) -> Sequence[Lease]:
        found = self.store.pending.of_slot(slot)[first : first + limit]
        return [Lease(each.lease_id, each.attempts, each.rank, slot, each.payload) for each in found]

    async def limits_in_force(self) -> LimitsInForce:
        closed_ms = {} if self.store.limits is None else self.store.limits.closed_ms(self.clock())
        return LimitsInForce(self.store.policy == self.config.policy, closed_ms)

    async def workers(self) -> Sequence[str]:
        return list(self._living(self.clock()))

    async def renew(self, held: Sequence[tuple[int, int]]) -> Sequence[int]:
        now_ms = self.clock()
        self.session.heard_ms = now_ms
        lost: list[int] = []
        for lease_id, attempt in held:
            if self._holds(lease_id, attempt):
                self.store.leases.renew(lease_id, now_ms + self._ttl_ms)
            else:
                lost.append(lease_id)
        return lost

    async def leases(self) -> Sequence[tuple[int, int]]:
        return self.store.leases.tokens_of(self.config.worker)

    async def reconcile(self, held: Sequence[tuple[int, int]]) -> int:
        if not self._is_last_session():
            return 0
        known = {lease_id for lease_id, attempt in held if self._holds(lease_id, attempt)}
        unknown = [lease_id for lease_id in self.store.leases.of_worker(self.config.worker) if lease_id not in known]
        for lease_id in unknown:
            self.store.give_back(self.store.end(lease_id), was_attempt=False)
        return len(unknown)

    async def waits(self) -> Waits:
        return waits_of(self.store, self.config.worker, self.clock(), self._ttl_ms)

    async def report_slow(self, pages: Sequence[SlowPage], blocked: Blocked | None = None) -> None:
        if self._is_last_session():
            session = self.session
            session.slow, session.blocked, session.slow_ms = tuple(pages), blocked, self.clock()
            session.is_idle = session.is_idle or (blocked is not None and blocked.is_idle)

    async def listen(self, ring: Callable[[], object]) -> None:
        return

    async def leave(self, report: Report | None = None) -> None:
        crawl = self._crawl()
        if crawl is None or not self._is_last_session():
            return
        self.joined = None
        del self.store.workers[self.config.worker]
        self.store.returns.forget(self.config.worker)
        if crawl.has_ended and not self._others(self.clock()):
            self.store.clear_ended(crawl, forget_seen=self._forgets_seen)

    async def count_letters(self) -> int:
        return len(self.store.dead_letters)

    def twin(self) -> MemoryFrontier:
        return self

    async def close(self) -> None:
        """Do nothing: there is no connection."""

    # Joining

    def _flush(self, others: Sequence[str]) -> None:
        if others:
            raise NotPermitted(
                f"frontier {self.config.name!r} can't be flushed while other workers are alive: {', '.join(others)}"
            )
        self.store.drop()

    def _begins_crawl(self, others: Sequence[str]) -> bool:
        """Return whether this worker begins a new crawl; raise an error if it may not join."""
        wanted, crawl = self.config.crawl_id, self.store.crawl
        if self.store.has_ended(wanted):
            raise CrawlEnded(f"crawl {wanted!r} of frontier {self.config.name!r} has ended")
        if crawl is None or crawl.has_ended:
            return True
        if wanted is None or wanted == crawl.crawl_id:
            return False
        if others or self.store.has_requests():
            raise NotPermitted(
                f"crawl {wanted!r} can't begin while crawl {crawl.crawl_id!r} of frontier {self.config.name!r} is"
                " unfinished: let it finish, or flush the frontier to drop it"
            )
        return True

    def _check_tiers(self, others: Sequence[str]) -> None:
        found, wanted = self.store.tiers, tuple(self.config.tiers)
        if found != wanted and (others or self.store.has_requests()):
            raise LayoutMismatch(
                f"frontier {self.config.name!r} is used with the tiers {', '.join(found)}, not with"
                f" {', '.join(wanted)}: let that crawl finish with its own tiers, or flush the frontier to drop it"
            )

    # Committing

    def _commit(
        self, crawl: Crawl, batches: Sequence[Batch], now_ms: int
    ) -> tuple[list[Committed], PrioQueueError | None]:
        committed: list[Committed] = []
        for batch in batches:
            due = self.session.last_batch + 1
            if batch.number > due:
                return committed, PrioQueueError(f"batch {batch.number} came before batch {due}")
            if batch.number < due:
                is_last = batch.number == self.session.last_batch
                committed.append(Committed(batch.number, claimed=self.session.last_claimed if is_last else {}))
                continue
            applied = self._apply(crawl, batch, now_ms)
            committed.append(applied)
            self.session.last_batch, self.session.last_claimed = due, dict(applied.claimed)
        return committed, None

    def _apply(self, crawl: Crawl, batch: Batch, now_ms: int) -> Committed:
        rejected: dict[Rejected, list[int]] = {"duplicates": [], "repeated_starts": []}
        void: list[int] = []
        claimed: dict[int, tuple[int, int]] = {}
        for position, operation in enumerate(batch.operations):
            if isinstance(operation, Push):
                reason = self.store.push(crawl, operation, self.config.order, now_ms)
                if reason is not None:
                    rejected[reason].append(position)
            elif isinstance(operation, Claim):
                outcome = self.store.claim(
                    *(crawl, operation, self.config.order),
                    worker=self.config.worker,
                    expiry_ms=now_ms + self._ttl_ms,
                    now_ms=now_ms,
                )
                if isinstance(outcome, Envelope):
                    claimed[position] = (outcome.lease_id, outcome.attempts)
                elif outcome is not None:
                    rejected[outcome].append(position)
            elif self._holds(operation.lease_id, operation.attempt):
                self._end_lease(crawl, operation, now_ms)
            else:
                void.append(position)
        return Committed(batch.number, rejected["duplicates"], rejected["repeated_starts"], void, claimed)

    def _end_lease(self, crawl: Crawl, operation: Ack | Release | Fail, now_ms: int) -> None:
        held = self.store.end(operation.lease_id, operation)
        if isinstance(operation, Ack):
            crawl.done += 1
            self.store.forget_losses(operation.lease_id)
            self.store.refused_by.pop(operation.lease_id, None)
        elif isinstance(operation, Refuse):
            self.store.refuse(held, now_ms + operation.delay_ms)
        elif isinstance(operation, Release):
            self.store.give_back(held, was_attempt=False)
        else:
            self._dead_letter(held, operation.reason, operation.detail, now_ms, operation.traceback)

    def _dead_letter(self, held: Held, reason: str, detail: str, now_ms: int, traceback: str = "") -> None:
        letter = self.store.dead_letter(held, reason, detail, now_ms, traceback)
        self._keep(letter)
        self._new_letters.append(letter)

    def _keep(self, letter: DeadLetter) -> None:
        if letter.reason in self.config.dead_on:
            self.store.keep_letter(letter, self.config.dead_limit)

    # Leasing

    def _reap(self, now_ms: int) -> int:
        reaped = 0
        while reaped < REAP_LIMIT and (first := self.store.leases.first_expiry()) and first[0] <= now_ms:
            self._take_back(first[1], now_ms)
            reaped += 1
        self.store.promote(now_ms, REAP_LIMIT)
        return reaped

    def _take_back(self, lease_id: int, now_ms: int, *, is_alone: bool = False) -> None:
        """End the lease of a lost holder; the request is given up if it was lost too often."""
        held = self.store.end(lease_id)
        attempts, store, config = held.envelope.attempts, self.store, self.config
        was_isolated = attempts - 1 >= store.pending.suspect_attempts and store.pending.group(attempts - 1) == 1
        alone = store.lost_alone.get(lease_id, 0) + (is_alone or was_isolated)
        lost_by = store.lost_by[lease_id] = [*store.lost_by.get(lease_id, ()), held.worker]
        if attempts < config.max_attempts or (alone < config.lone_losses and attempts < MOST_ATTEMPTS):
            store.give_back(held, was_attempt=True)
            store.lost_alone[lease_id] = alone
        else:
            detail = f"leased {how_often(attempts)} and never acked; lost by {', '.join(lost_by)}"
            self._dead_letter(held, DEAD_BY_LEASE, detail, now_ms)

    def _serve(self, demand: Demand, now_ms: int) -> Served:
        limit = demand.limit
        if demand.is_fair:
            limit = min(limit, ceil(len(self.store.pending) / len(self._living(now_ms))))
        if self.store.budgets.is_on or not self.store.is_plain:
            return self._serve_by_policy(demand, limit, now_ms)
        self.store.flood.is_on = False
        taken = self.store.pending.take(
            limit,
            slot_room=demand.slot_room,
            slot_limit=demand.slot_limit,
            suspect_room=demand.suspect_room,
            suspects_held=demand.suspects_held,
        )
        leases: list[Lease] = []
        for slot, pending in taken:
            envelope = Envelope(pending.rank, pending.lease_id, pending.attempts + 1, pending.payload)
            self.store.leases.grant(Held(slot, envelope, self.config.worker), now_ms + self._ttl_ms)
            leases.append(Lease(envelope.lease_id, envelope.attempts, envelope.rank, slot, envelope.payload))
        return Served(leases)

    def _serve_by_policy(self, demand: Demand, limit: int, now_ms: int) -> Served:
        leases: list[Lease] = []

        def give_up(slot: str, envelope: Envelope, detail: str) -> None:
            self._keep(self.store.dead_letter(Held(slot, envelope, ""), DEAD_BY_BUDGET, detail, now_ms))

        if self.store.pending.waiting is not None:
            self.store.pending.waiting.update_all(now_ms, max(demand.horizon_ms, demand.reserve_ms))
        serving = Serving(
            *(self.store, demand, limit, now_ms),
            grant=lambda slot, envelope: leases.append(self._grant(slot, envelope, now_ms)),
            give_up=give_up,
            worker=self.config.worker,
            living=self._living(now_ms),
        )
        serving.serve()
        return Served(leases, serving.over_budget, serving.has_given_up_most)

    def _grant(self, slot: str, pending: Envelope, now_ms: int) -> Lease:
        envelope = Envelope(pending.rank, pending.lease_id, pending.attempts + 1, pending.payload)
        start_in_ms, late_ms = self.store.grant(Held(slot, envelope, self.config.worker), now_ms + self._ttl_ms, now_ms)
        return Lease(
            envelope.lease_id,
            envelope.attempts,
            envelope.rank,
            slot,
            envelope.payload,
            start_in_ms,
            late_ms,
            refusals=self.store.rounds_of(envelope.lease_id, self.config.worker) if self.store.refused_by else 0,
        )

    def _holds(self, lease_id: int, attempt: int) -> bool:
        return self._is_last_session() and self.store.leases.is_held(lease_id, attempt, by=self.config.worker)

    # The crawl and its workers

    def _crawl(self) -> Crawl | None:
        """Return the crawl that this worker is in, None if it is over and another one has begun."""
        return self.joined if self.joined is self.store.crawl else None

    def _is_last_session(self) -> bool:
        """Return whether this worker is in the crawl and no other process has joined under its id since."""
        return self.store.workers.get(self.config.worker) is self.session

    def _is_over(self, now_ms: int) -> bool:
        return not self.store.has_requests() and all(worker.is_idle for worker in self._living(now_ms).values())

    def _living(self, now_ms: int) -> dict[str, Worker]:
        return self.store.living(now_ms - self._ttl_ms)

    def _others(self, now_ms: int) -> list[str]:
        return [name for name in self._living(now_ms) if name != self.config.worker]

    def _depth(self, now_ms: int) -> Depth:
        return self.store.depth(now_ms - self._ttl_ms)

    def _returning_ms(self, demand: Demand, now_ms: int) -> int | None:
        away_ms = demand.away_ms
        if not (away_ms or self.store.returns.is_on):
            return None
        heard = {name: worker.heard_ms for name, worker in self.store.workers.items()}
        first_ms, last_ms = now_ms - away_ms - self._ttl_ms, now_ms - away_ms / 2
        silent = [name for name, at_ms in heard.items() if first_ms <= at_ms < last_ms]
        return self.store.returns.left_ms(self.config.worker, away_ms, silent, now_ms, self._ttl_ms)

    def _next_due_s(self, now_ms: int, demand: Demand | None, left_ms: int | None) -> float | None:
        if left_ms is not None:
            return left_ms / 1000
        expiry, due_ms = self.store.leases.first_expiry(), self.store.delayed.first_due_ms()
        times = [at for at in (expiry and expiry[0], due_ms) if at is not None]
        if demand is not None and self.store.limits is not None:
            times += openings_ms(self.store.pending, self.store.limits, now_ms, demand.horizon_ms)
        return max(0, min(times) - now_ms) / 1000 if times else None
