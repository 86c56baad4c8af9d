"""State that the workers of an in-process frontier share, and the operations that keep its counts balanced."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Literal

from scrapy_prioqueue.frontier.base import DEAD_BY_BUDGET, Ack, Claim, DeadLetter, Depth, Fail, Order, Push, Release
from scrapy_prioqueue.frontier.kept import Kept
from scrapy_prioqueue.frontier.memory.budgets import Budgets
from scrapy_prioqueue.frontier.memory.floods import Flood, held_back
from scrapy_prioqueue.frontier.memory.leases import Held, Leases, Returns
from scrapy_prioqueue.frontier.memory.limits import SlotLimits, Timing
from scrapy_prioqueue.frontier.memory.pending import Delayed, Envelope, Pending, lease_id_of
from scrapy_prioqueue.frontier.memory.seen import SeenSet
from scrapy_prioqueue.frontier.memory.serving import Passes
from scrapy_prioqueue.frontier.policy import Closing, CrawlDelay, Note, Policy
from scrapy_prioqueue.frontier.policy_parts import NOBODY, Owner, PolicyChange, changes_of, merged, take_parts
from scrapy_prioqueue.frontier.seen import NEVER_S
from scrapy_prioqueue.frontier.waits import Blocked, SlowPage

Rejected = Literal["duplicates", "repeated_starts"]
"""Why a push was not accepted, as the name of the field of `Committed`."""


@dataclass(slots=True, eq=False)
class Crawl:
    """One crawl, from the first worker that joins it until the next crawl begins."""

    crawl_id: str | None
    created_ms: int = 0
    spider: str = ""
    accepted: int = 0
    dead: int = 0
    done: int = 0
    has_ended: bool = False
    start_marks: set[bytes] = field(default_factory=set)
    letters_dropped: set[str] = field(default_factory=set)


@dataclass(slots=True, eq=False)
class Worker:
    """One session of a worker, from its join until it leaves or the next join under its id."""

    heard_ms: int
    is_idle: bool = False
    last_batch: int = 0
    last_claimed: dict[int, tuple[int, int]] = field(default_factory=dict)
    host: str = ""
    slow: Sequence[SlowPage] = ()
    blocked: Blocked | None = None
    slow_ms: int = 0


class MemoryStore:
    """The state of one frontier."""

    def __init__(self) -> None:
        self._stored = 0
        self.drop()

    def drop(self) -> None:
        """Drop everything except the number of stored requests, so that lease ids are never reused."""
        self.crawl: Crawl | None = None
        self.ended_ids: set[str] = set()
        self.tiers: tuple[str, ...] = ()
        self.workers: dict[str, Worker] = {}
        self.returns = Returns()
        self.pending = Pending()
        self.delayed = Delayed()
        self.leases = Leases()
        self.seen = SeenSet()
        self.revisit_s: int | None = None
        self.dead_letters: dict[int, DeadLetter] = {}
        """By number, the oldest first."""
        self._letter_numbers = count()
        self._letters_by_reason: dict[str, deque[int]] = {}
        self.lost_by: dict[int, list[str]] = {}
        self.refused_by: dict[int, list[str]] = {}
        self.lost_alone: dict[int, int] = {}
        self._begin_counting()

    def _begin_counting(self) -> None:
        """Drop the state of slots, tiers and budgets."""
        self.policy = Policy()
        self.policy_owners: Mapping[str, Owner] = {}
        self.policy_change: PolicyChange | None = None
        self.limits: SlotLimits | None = None
        self.passes = Passes()
        self.budgets = Budgets()
        self.flood = Flood()
        self._all_limits = SlotLimits(self.pending.has_slot)
        self._has_limits = False
        self.is_plain = False  # until `adopt` says so

    def adopt(self, own: Policy, worker: str, now_ms: int) -> PolicyChange | None:
        """Apply the parts that this policy sets; the state of slots, tiers and budgets in this crawl is kept.

        Returns:
            the change to report to all workers, None if there is none.
        """
        before, owners = self.policy, self.policy_owners
        self.policy_owners, taken, kept = take_parts(own, owners, worker, now_ms)
        policy = self.policy = merged(own, before, taken, len(self.tiers))
        self._all_limits.adopt(policy)
        self.budgets.adopt(policy, self.leases.payloads())
        self._arrange()
        changes = changes_of(before, policy)
        changed = {part: owners.get(part, NOBODY) for part in taken if owners.get(part, NOBODY).digest or changes}
        if not owners or not (changed or kept):
            return None
        at_ms = now_ms if self.policy_change is None else max(now_ms, self.policy_change.ms + 1)
        self.policy_change = PolicyChange(worker, at_ms, changed, changes, kept)
        return self.policy_change

    def _arrange(self) -> None:
        """Keep the state that the policy needs, and no other."""
        had_limits = self.limits is not None
        # Once slots have limits, their state is kept until `end_limits`.
        self._has_limits = self._has_limits or self.policy.limits_slots
        self.limits = self._all_limits if self._has_limits else None
        if self.limits is not None and not had_limits:
            self.limits.count_running(self.leases.slots())
        policy = self.policy
        self.pending.arrange(max(1, len(self.tiers)) if policy.goes_by_tier else 1, self.limits)
        has_policies = self.limits or policy.goes_by_tier or policy.has_marks
        self.is_plain = not (has_policies or self.refused_by)
        """Whether requests are served by rank and turn only, not considering budgets."""

    def note(self, note: Note, now_ms: int) -> None:
        """Apply a worker's note."""
        if isinstance(note, Kept):
            return
        if not self._has_limits and isinstance(note, (Closing, CrawlDelay)):
            self._has_limits = True
            self._arrange()
        if self.limits is not None:
            self.limits.note(note, now_ms)

    def end_limits(self, now_ms: int) -> None:
        """Switch limits off if none is set and no slot waits."""
        if self.limits is None or not self.limits.may_end(now_ms):
            return
        self._has_limits = False
        self._arrange()
        self._all_limits.forget()

    def look_at_flood(self, now_ms: int) -> int:
        """Update the flood; return how many discoveries may be served if nothing else can be."""
        return self.flood.look(
            *(self.policy, len(self.pending), len(self.leases), now_ms),
            lambda: held_back(self.pending.lanes, self.limits, now_ms),
        )

    def begin(self, crawl_id: str | None, now_ms: int, *, forget_seen: bool, suspect_attempts: int) -> Crawl:
        """Begin a new crawl; call it only if there is none or the last one is over."""
        last = self.crawl
        if last is not None and last.has_ended and last.crawl_id is not None:
            self.ended_ids.add(last.crawl_id)
        self.workers.clear()
        if forget_seen:
            self.seen.clear()
        self.pending.suspect_attempts = suspect_attempts
        self._begin_counting()
        self.crawl = Crawl(crawl_id, now_ms)
        return self.crawl

    def clear_ended(self, crawl: Crawl, *, forget_seen: bool) -> None:
        """Free data that an ended crawl no longer needs."""
        self.lost_by.clear()
        self.refused_by.clear()
        self.lost_alone.clear()
        crawl.start_marks.clear()
        if forget_seen:
            self.seen.clear()

    def has_ended(self, crawl_id: str | None) -> bool:
        """Return whether there was a crawl with this id that has ended."""
        if crawl_id is None:
            return False
        is_last = self.crawl is not None and self.crawl.has_ended and self.crawl.crawl_id == crawl_id
        return is_last or crawl_id in self.ended_ids

    def has_requests(self) -> bool:
        """Return whether any request is pending, delayed or leased."""
        return bool(self.pending or self.delayed or self.leases)

    def living(self, since_ms: int) -> dict[str, Worker]:
        """Return the workers that were heard of since a time."""
        return {name: worker for name, worker in self.workers.items() if worker.heard_ms >= since_ms}

    def push(self, crawl: Crawl, push: Push, order: Order, now_ms: int) -> Rejected | None:
        """Store a request, or return why it was rejected."""
        rejected = self._rejection(crawl, push, now_ms)
        if rejected is not None:
            return rejected
        envelope = self._accepted(crawl, push, order, attempts=0)
        if push.is_delayed and (due_ms := push.due_ms(now_ms)) > now_ms:
            self.delayed.put(due_ms, push.slot, envelope)
        else:
            self.pending.put(push.slot, envelope)
        return None

    def promote(self, now_ms: int, limit: int) -> None:
        """Make delayed requests pending that are due."""
        for slot, envelope in self.delayed.take_due(now_ms, limit):
            self.pending.put(slot, envelope)

    def grant(self, held: Held, expiry_ms: int, now_ms: int) -> Timing:
        """Add a lease; return when it may start."""
        self.leases.grant(held, expiry_ms)
        self.budgets.charge(held.envelope.lease_id, held.envelope.payload)
        return Timing() if self.limits is None else self.limits.charge(held.slot, now_ms)

    def end(self, lease_id: int, operation: Ack | Release | Fail | None = None) -> Held:
        """Remove and return a lease; without an operation it has expired, or its holder doesn't know of it."""
        held = self.leases.end(lease_id)
        if self.limits is not None:
            self.limits.discharge(held.slot)
        if self.budgets.held:
            if isinstance(operation, (Ack, Fail)):
                self.budgets.settle(lease_id, operation.spent)
            else:
                self.budgets.give_back(lease_id)
        return held

    def claim(
        self, crawl: Crawl, claim: Claim, order: Order, *, worker: str, expiry_ms: int, now_ms: int
    ) -> Rejected | Envelope | None:
        """Lease a request to the worker that works on it, or return why not; None if another worker has it."""
        push, lease_id = claim.push, claim.lease_id
        held = None if lease_id is None else self.leases.find(lease_id)
        if held is not None and held.envelope.payload == push.payload:
            if held.worker != worker:
                return None
            self.leases.renew(held.envelope.lease_id, expiry_ms)
            return held.envelope
        found = None
        if lease_id is not None:
            found = self.pending.take_out(push.slot, lease_id, push.payload, most_attempts=claim.attempt)
            found = found or self.delayed.take_out(push.slot, lease_id, push.payload, most_attempts=claim.attempt)
        if found is not None:
            envelope = found._replace(attempts=found.attempts + 1)
        else:
            rejected = self._rejection(crawl, push, now_ms)
            if rejected is not None:
                return rejected
            envelope = self._accepted(crawl, push, order, attempts=claim.attempt)
        self.grant(Held(push.slot, envelope, worker), expiry_ms, now_ms)
        return envelope

    def _rejection(self, crawl: Crawl, push: Push, now_ms: int) -> Rejected | None:
        """Mark a request as seen, or return why it must not be stored."""
        if push.start_mark is not None:
            if push.start_mark in crawl.start_marks:
                return "repeated_starts"
            crawl.start_marks.add(push.start_mark)
        if push.fingerprint is None:
            return None
        revisit_s = self.revisit_s if push.revisit_s is None or self.revisit_s is None else push.revisit_s
        revisit_s = None if revisit_s == NEVER_S else revisit_s
        return None if self.seen.add(push.fingerprint, now_ms, revisit_s) else "duplicates"

    def _accepted(self, crawl: Crawl, push: Push, order: Order, *, attempts: int) -> Envelope:
        self._stored += 1
        crawl.accepted += 1
        crawl.has_ended = False
        lease_id = lease_id_of(self._stored, order=order, is_start=push.is_start, is_lifo_start=push.is_lifo_start)
        return Envelope(push.rank, lease_id, attempts, push.payload)

    def give_back(self, held: Held, *, was_attempt: bool) -> None:
        """Return a leased request to the queue."""
        envelope = held.envelope
        if not was_attempt:
            envelope = envelope._replace(attempts=envelope.attempts - 1)
        self.pending.put(held.slot, envelope)

    def refuse(self, held: Held, due_ms: int) -> None:
        """Delay a request that its worker can't decode."""
        self.refused_by.setdefault(held.envelope.lease_id, []).append(held.worker)
        self.is_plain = False
        self.delayed.put(due_ms, held.slot, held.envelope._replace(attempts=held.envelope.attempts - 1))

    def rounds_of(self, lease_id: int, worker: str) -> int:
        """Return how often all living workers have refused a request; 0 if this worker never has.

        A worker gets it again only if no other living one is left, so each repeated name is a further round.
        """
        names = self.refused_by.get(lease_id, ())
        return len(names) - len(set(names)) + 1 if worker in names else 0

    def is_for_others(self, lease_id: int, worker: str, living: Iterable[str]) -> bool:
        """Return whether a worker has refused a request that another one may be able to decode."""
        names = self.refused_by.get(lease_id, ())
        return worker in names and not set(living) <= set(names)

    def forget_losses(self, lease_id: int) -> None:
        """Drop the record of lost workers of a request."""
        self.lost_by.pop(lease_id, None)
        self.lost_alone.pop(lease_id, None)

    def dead_letter(self, held: Held, reason: str, detail: str, now_ms: int, traceback: str = "") -> DeadLetter:
        """Give up a leased request; return its dead letter."""
        envelope = held.envelope
        letter = DeadLetter(
            lease_id=envelope.lease_id,
            reason=reason,
            detail=detail,
            attempts=envelope.attempts,
            rank=envelope.rank,
            slot=held.slot,
            worker=held.worker,
            died_ms=now_ms,
            payload=envelope.payload,
            traceback=traceback,
            lost_by=", ".join(self.lost_by.get(envelope.lease_id, ())),
        )
        self.forget_losses(envelope.lease_id)
        self.refused_by.pop(envelope.lease_id, None)
        if self.crawl is not None:
            self.crawl.dead += 1
        return letter

    def keep_letter(self, letter: DeadLetter, limit: int) -> None:
        """Keep a dead letter, and drop the oldest ones of its reason if there are more than `limit`.

        Letters over budget can be replayed once there is room, so all letters of this crawl are kept.
        """
        crawl, reason, number = self.crawl or Crawl(None), letter.reason, next(self._letter_numbers)
        self.dead_letters[number] = letter
        numbers = self._letters_by_reason.setdefault(reason, deque())
        numbers.append(number)
        while len(numbers) > limit:
            if reason == DEAD_BY_BUDGET and self.dead_letters[numbers[0]].died_ms >= crawl.created_ms:
                return
            del self.dead_letters[numbers.popleft()]
            crawl.letters_dropped.add(reason)

    def depth(self, since_ms: int) -> Depth:
        """Return the counts of the crawl, and of the workers heard of since a time."""
        crawl = self.crawl or Crawl(None)
        return Depth(
            accepted=crawl.accepted,
            pending=len(self.pending),
            leased=len(self.leases),
            dead=crawl.dead,
            done=crawl.done,
            workers=len(self.living(since_ms)),
            delayed=len(self.delayed),
        )
