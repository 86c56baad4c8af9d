"""A simple model of a frontier, with lists and `sorted()`, with which the real frontiers are compared."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import ceil, inf
from typing import Literal, NamedTuple

from scrapy_prioqueue.frontier.base import Committed, Demand, Depth, Order, Orders, Push, Spent
from scrapy_prioqueue.frontier.kept import Kept
from scrapy_prioqueue.frontier.labels import Label, label_of
from scrapy_prioqueue.frontier.policy import Policy
from scrapy_prioqueue.frontier.seen import NEVER_S, SeenPolicy
from scrapy_prioqueue.rank import tier_of
from tests.contract.backends import text_of
from tests.property.shares import Shares

MARKS = ["high_water", "low_water", "pending_limit", "discovery"]
REAP_LIMIT = 50
OVER_BUDGET_LIMIT = 100

SPENT = Spent(bytes=300, time_ms=400)
"""What each request costs that is acked or fails."""

State = Literal["pending", "delayed", "leased", "dead", "done"]
Token = tuple[str, int]
"""A payload, which no two requests share, and an attempt."""

End = tuple[Literal["ack", "release", "fail"], Token]
"""How a worker ends a lease, or tries to."""


class Claimed(NamedTuple):
    """A claim.

    Args:
        push: the request.
        known_as: the payload of the request whose id is named, None if none is.
        attempt: how often it was leased, as the worker says.
    """

    push: Push
    known_as: str | None
    attempt: int


class Leased(NamedTuple):
    """A lease, known by its payload."""

    payload: str
    attempt: int
    rank: int
    slot: str
    start_in_ms: int
    late_ms: int | None


@dataclass
class Request:
    """An accepted request and what becomes of it."""

    payload: str
    rank: int
    slot: str
    tie: int
    state: State = "pending"
    attempts: int = 0
    holder: str = ""
    expiry_ms: int = 0
    due_ms: int = 0
    reason: str = ""
    suspect_attempts: int = 2
    lost_alone: int = 0
    label: Label | None = None
    timing: tuple[int, int | None] = (0, None)

    @property
    def is_suspect(self) -> bool:
        """Whether it was lost so often that, while pending, it waits apart from its slot."""
        return self.attempts >= self.suspect_attempts


@dataclass
class Session:
    """A worker that has joined and not left."""

    heard_ms: int
    is_idle: bool = False


@dataclass
class Crawl:
    """The data of one crawl, reset at the beginning of the next.

    Args:
        requests: those that are not finished.
        seen: fingerprints, and in which second each is new again.
    """

    accepted: int = 0
    requests: list[Request] = field(default_factory=list)
    finished: Counter[State] = field(default_factory=Counter)
    turns: list[tuple[int, str]] = field(default_factory=list)
    seen: dict[bytes, float] = field(default_factory=dict)
    marks: set[bytes] = field(default_factory=set)
    sessions: dict[str, Session] = field(default_factory=dict)
    has_ended: bool = False
    shares: Shares = field(default_factory=Shares)
    orders: Orders = Orders()


@dataclass
class Left:
    """How many requests may still be leased: now, later, and in all."""

    now: int
    later: int
    places: int

    def take(self, when: str) -> None:
        """Hand one out."""
        self.places -= 1
        self.now = min(self.now - (when == "now"), self.places)
        self.later = max(0, min(self.later - (when == "later"), self.places))


@dataclass(frozen=True)
class Answer:
    """What a demand is answered with."""

    leases: Sequence[Leased]
    depth: Depth
    has_ended: bool
    reaped: int
    next_due_s: float | None
    over_budget: Mapping[str, int]
    is_flooded: bool
    is_at_limit: bool
    held_back: int
    must_ask: bool


class Model:
    """The frontier; `turns` lists the slots that have ordinary pending requests, the longest unserved first.

    Where requests go by tier, it lists the slots of each tier; else all are of one.
    """

    def __init__(
        self, order: Order, ttl_ms: int, max_attempts: int, tiers: int, seen: SeenPolicy, *, keeps_seen: bool
    ) -> None:
        self.tiers = tiers
        self.revisit_s = seen.revisit_s
        self.keeps_seen = keeps_seen
        self.order = order
        self.ttl_ms = ttl_ms
        self.max_attempts = max_attempts
        self.now_ms = 0
        self.crawl = Crawl(has_ended=True)
        self.dead_letters: list[tuple[str, str, int, str, str]] = []
        self.stored = 0

    # Workers

    def join(self, worker: str, policy: Policy) -> tuple[bool, int]:
        """Return whether a crawl begins now, and how many leases the worker gets back."""
        is_new = self.crawl.has_ended
        if is_new:
            self.crawl = Crawl(seen=self.crawl.seen if self.keeps_seen else {})
        self.crawl.sessions[worker] = Session(self.now_ms)
        self._adopt(policy)
        own = sorted(self.held_by(worker), key=lambda request: request.tie)
        for request in own:
            self._lose(request, is_alone=len(own) == 1)
        self._reap()
        self._look_at_flood()
        return is_new, len(own)

    def _adopt(self, policy: Policy) -> None:
        """Go by another policy; a slot has the turn that it had in each of its tiers, or else the first of theirs."""
        crawl = self.crawl
        policy = replace(
            policy,
            **{
                name: getattr(crawl.shares.policy, name)
                for part in policy.unset
                for name in {"marks": MARKS, "crawl_delay": ["awaits_crawl_delay"]}.get(part, [part])
            },
        )
        if policy.goes_by_tier != crawl.shares.policy.goes_by_tier:
            tiers = range(self.tiers)
            turns = [(tier, slot) for _, slot in crawl.turns for tier in (tiers if policy.goes_by_tier else [0])]
            crawl.shares.policy = policy
            there = {self._position_of(request) for request in self._ordinary()}
            crawl.turns = [turn for turn in dict.fromkeys(turns) if turn in there]
        crawl.shares.policy = policy
        crawl.shares.was_limited = crawl.shares.was_limited or policy.limits_slots
        if policy.budgets is not None and not crawl.shares.has_budgets:
            crawl.shares.has_budgets = True
            for request in self._in("leased"):
                crawl.shares.hold(request.label, 1)

    def _position_of(self, request: Request) -> tuple[int, str]:
        return self._tier_of(request) if self.crawl.shares.policy.goes_by_tier else 0, request.slot

    def _tier_of(self, request: Request) -> int:
        return min(tier_of(request.rank), self.tiers - 1)

    def leave(self, worker: str) -> None:
        """Forget a worker; its leases remain."""
        del self.crawl.sessions[worker]

    def hear(self, worker: str) -> None:
        """Note a sign of life."""
        self.crawl.sessions[worker].heard_ms = self.now_ms

    def living(self) -> list[Session]:
        """Return the workers that have been heard of lately."""
        return [each for each in self.crawl.sessions.values() if each.heard_ms >= self.now_ms - self.ttl_ms]

    def clear(self) -> None:
        """Free what a crawl that has ended needs no more."""
        if not self.keeps_seen:
            self.crawl.seen.clear()
        self.crawl.marks.clear()

    # The outbox

    def commit(
        self, worker: str, pushes: Sequence[Push], claims: Sequence[Claimed], ends: Sequence[End]
    ) -> tuple[Committed, dict[int, Token]]:
        """Apply a batch in which pushes come first, then claims; return its fate, and what was granted by position."""
        self.hear(worker)
        fates: list[str | Token] = [self._push(push) for push in pushes]
        fates += [self._claim(worker, claim) for claim in claims]
        fates += ["" if self._end(worker, end) else "void" for end in ends]
        positions = {
            fate: [at for at, each in enumerate(fates) if each == fate] for fate in ("duplicate", "repeated", "void")
        }
        granted = {at: fate for at, fate in enumerate(fates) if isinstance(fate, tuple)}
        return Committed(0, positions["duplicate"], positions["repeated"], positions["void"]), granted

    def _push(self, push: Push) -> str:
        refused = self._mark(push)
        if not refused:
            request = self._store(push)
            request.due_ms = max(push.not_before_ms, self.now_ms + push.delay_ms)
            if request.due_ms > self.now_ms:
                request.state = "delayed"
            else:
                self._queue_up(request)
        return refused

    def find(self, payload: str) -> Request | None:
        """Return a request of this crawl that is not finished."""
        return next(
            (request for request in self._in("pending", "delayed", "leased") if request.payload == payload), None
        )

    def is_known(self, claim: Claimed) -> bool:
        """Return whether a claim speaks of a request that is here and was not lost more often since."""
        if claim.known_as != text_of(claim.push.payload):
            return False
        request = self.find(claim.known_as)
        return request is not None and (request.state == "leased" or request.attempts <= claim.attempt)

    def _claim(self, worker: str, claim: Claimed) -> str | Token:
        request = self.find(text_of(claim.push.payload)) if self.is_known(claim) else None
        if request is None:
            refused = self._mark(claim.push)
            if refused:
                return refused
            request = self._store(claim.push)
            request.attempts = claim.attempt
        elif request.state == "pending":
            if not request.is_suspect:
                self._leave_queue(request)
            request.attempts += 1
        elif request.holder != worker:
            return ""
        if request.state == "leased" and request.holder == worker:
            request.expiry_ms = self.now_ms + self.ttl_ms
        else:
            self._grant(request, worker)
        return request.payload, request.attempts

    def _mark(self, push: Push) -> str:
        crawl = self.crawl
        if push.start_mark is not None:
            if push.start_mark in crawl.marks:
                return "repeated"
            crawl.marks.add(push.start_mark)
        if push.fingerprint is not None:
            if self.was_seen(push.fingerprint):
                return "duplicate"
            crawl.seen[push.fingerprint] = self._new_again_s(push)
        return ""

    def was_seen(self, fingerprint: bytes) -> bool:
        """Return whether a request with this fingerprint would be a duplicate."""
        return self.crawl.seen.get(fingerprint, 0) > self.now_ms // 1000

    def seen_now(self) -> int:
        """Return how many fingerprints are not new."""
        return sum(map(self.was_seen, self.crawl.seen))

    def _new_again_s(self, push: Push) -> float:
        if self.revisit_s is None:
            return inf
        after_s = self.revisit_s if push.revisit_s is None else push.revisit_s
        if after_s == NEVER_S:
            return inf
        return ceil(self.now_ms / 1000) + after_s if after_s else 0

    def _store(self, push: Push) -> Request:
        crawl = self.crawl
        crawl.accepted += 1
        self.stored = number = self.stored + 1
        is_newest_first = self.order == "lifo" and not push.is_start
        tie = 10**6 + number if push.is_start else -number if is_newest_first else number
        suspect_attempts = max(1, min(2, self.max_attempts - 1))
        request = Request(text_of(push.payload), push.rank, push.slot, tie, suspect_attempts=suspect_attempts)
        request.label = label_of(push.payload)
        crawl.requests.append(request)
        crawl.has_ended = False
        return request

    def _end(self, worker: str, end: End) -> bool:
        kind, token = end
        request = self._held(worker, token)
        if request is None:
            return False
        if kind != "release":
            self.crawl.shares.spend(request.label, SPENT)
        if kind == "ack":
            self._finish(request, "done")
        elif kind == "release":
            self._give_back(request, is_attempt=False)
        else:
            self._dead_letter(request, "decode")
        return True

    # Leases

    def lease(self, worker: str, demand: Demand) -> Answer:
        """Reap, lease, and see whether the crawl is over."""
        self.hear(worker)
        reaped = self._reap()
        shares = self.crawl.shares
        for note in demand.notes:
            assert not isinstance(note, Kept)
            shares.note(note, self.now_ms)
        shares.end_limits(self.now_ms, {request.slot for request in self._ordinary()})
        limit = demand.limit
        if demand.is_fair and limit:
            limit = min(limit, max(1, ceil(len(self._in("pending")) / len(self.living()))))
        leased, over_budget = self._take(worker, limit, demand)
        self.crawl.sessions[worker].is_idle = demand.is_idle and not leased
        if not self._in("pending", "delayed", "leased") and all(session.is_idle for session in self.living()):
            self.crawl.has_ended = True
        times = [request.expiry_ms for request in self._in("leased")]
        times += [request.due_ms for request in self._in("delayed")]
        times += self._openings_ms(demand.horizon_ms)
        if over_budget.total() == OVER_BUDGET_LIMIT:
            times.append(0)
        return Answer(
            leases=[
                Leased(request.payload, request.attempts, request.rank, request.slot, *request.timing)
                for request in leased
            ],
            depth=self.depth(),
            has_ended=self.crawl.has_ended,
            reaped=reaped,
            next_due_s=max(0, min(times) - self.now_ms) / 1000 if times else None,
            over_budget=over_budget,
            is_flooded=shares.is_flooded,
            is_at_limit=shares.is_at_limit,
            held_back=shares.held_back,
            must_ask=shares.are_limited or shares.has_budgets,
        )

    def _openings_ms(self, horizon_ms: int) -> list[int]:
        """Return when to ask again for slots that have to wait."""
        shares = self.crawl.shares
        slots = {request.slot for request in self._ordinary() if not self._is_full(request.slot)}
        times = [shares.opens_ms(slot) for slot in slots]
        times = [at - horizon_ms / 2 for at in times if at > self.now_ms + horizon_ms]
        suspect = self._first_suspect()
        if suspect is not None and not self._is_full(suspect.slot) and shares.opens_ms(suspect.slot) > self.now_ms:
            times.append(shares.opens_ms(suspect.slot))
        return [ceil(at) for at in times]

    def _is_full(self, slot: str) -> bool:
        concurrency = self.crawl.shares.concurrency(slot)
        return concurrency > 0 and sum(request.slot == slot for request in self._in("leased")) >= concurrency

    def renew(self, worker: str, tokens: Iterable[Token]) -> list[str]:
        """Return the payloads of leases that the worker doesn't hold; the others expire later."""
        self.hear(worker)
        lost = []
        for token in tokens:
            request = self._held(worker, token)
            if request is None:
                lost.append(token[0])
            else:
                request.expiry_ms = self.now_ms + self.ttl_ms
        return lost

    def reconcile(self, worker: str, tokens: Collection[Token]) -> int:
        """Give back what the worker holds beside these; return how many."""
        unknown = [request for request in self.held_by(worker) if (request.payload, request.attempts) not in tokens]
        for request in sorted(unknown, key=lambda request: request.tie):
            self._give_back(request, is_attempt=False)
        return len(unknown)

    def held_by(self, worker: str) -> list[Request]:
        """Return what a worker holds."""
        return [request for request in self._in("leased") if request.holder == worker]

    def depth(self) -> Depth:
        """Return the counts of the crawl."""
        return Depth(
            accepted=self.crawl.accepted,
            pending=len(self._in("pending")),
            leased=len(self._in("leased")),
            dead=self.crawl.finished["dead"],
            done=self.crawl.finished["done"],
            workers=len(self.living()),
            delayed=len(self._in("delayed")),
        )

    def _in(self, *states: State) -> list[Request]:
        return [request for request in self.crawl.requests if request.state in states]

    def _held(self, worker: str, token: Token) -> Request | None:
        for request in self.held_by(worker):
            if (request.payload, request.attempts) == token:
                return request
        return None

    def _take(self, worker: str, limit: int, demand: Demand) -> tuple[list[Request], Counter[str]]:
        shares = self.crawl.shares
        room = {request.slot: demand.slot_room.get(request.slot, demand.slot_limit) for request in self._in("pending")}
        left = Left(limit, demand.later_limit, max(demand.limit, demand.later_limit))
        discoveries = self._look_at_flood()
        leased: list[Request] = []
        over_budget: Counter[str] = Counter()
        may_take_suspect = demand.suspect_room > 0 and limit > 0
        while True:
            request = self._next_ordinary(room, left, demand, discoveries)
            suspect = self._next_suspect(room, request) if may_take_suspect else None
            may_take_suspect, request = False, suspect or request
            if request is None:
                break
            excess = shares.excess(request.label)
            if excess is not None and over_budget.total() == OVER_BUDGET_LIMIT:
                room[request.slot] = 0
                continue
            if suspect is None:
                self._end_turn(request)
            if excess is not None:
                over_budget[excess[0]] += 1
                request.holder = ""
                self._dead_letter(request, "budget", excess[1])
                continue
            when = "later" if shares.opens_ms(request.slot) > self.now_ms else "now"
            if suspect is None:
                shares.step(self._tier_of(request))
                discoveries -= self._is_withheld(request)
            request.attempts += 1
            self._grant(request, worker)
            left.take(when)
            room[request.slot] -= 1
            leased.append(request)
        return leased, over_budget

    def _look_at_flood(self) -> int:
        pending, leased = len(self._in("pending")), len(self._in("leased"))
        positions = Counter(self._position_of(request) for request in self._ordinary())
        return self.crawl.shares.look(pending, leased, self.now_ms, positions)

    def _grant(self, request: Request, worker: str) -> None:
        request.state, request.holder, request.expiry_ms = "leased", worker, self.now_ms + self.ttl_ms
        request.timing = self.crawl.shares.pace(request.slot, self.now_ms)
        self.crawl.shares.hold(request.label, 1)

    def _first_suspect(self) -> Request | None:
        suspects = [request for request in self._in("pending") if request.is_suspect]
        return min(suspects, key=lambda request: (request.rank, request.tie), default=None)

    def _next_suspect(self, room: dict[str, int], rival: Request | None) -> Request | None:
        """Return the best suspect, unless its slot has no room or must wait, or an ordinary request outranks it."""
        suspect, shares = self._first_suspect(), self.crawl.shares
        if suspect is None or room[suspect.slot] <= 0 or self._is_full(suspect.slot):
            return None
        if shares.opens_ms(suspect.slot) > self.now_ms:
            return None
        is_outranked = rival is not None and rival.rank < suspect.rank and not shares.policy.weights
        return None if is_outranked else suspect

    def _next_ordinary(self, room: dict[str, int], left: Left, demand: Demand, discoveries: float) -> Request | None:
        shares = self.crawl.shares
        there = [each for each in self._ordinary() if room[each.slot] > 0 and not self._is_full(each.slot)]
        others = [each for each in there if not self._is_withheld(each)]
        withheld = [each for each in there if self._is_withheld(each)] if discoveries > 0 else []
        for choice in (others, withheld):
            tiers = {self._tier_of(each) if shares.policy.goes_by_tier else 0 for each in choice}
            ready = [each for each in choice if left.now > 0 and shares.opens_ms(each.slot) <= self.now_ms]
            fronts = {tier: self._front(tier, choice, left, demand, is_reserving=bool(ready)) for tier in tiers}
            found = {tier: front for tier, front in fronts.items() if front is not None}
            if found:
                return found[shares.next_tier(list(found)) if shares.policy.goes_by_tier else 0]
        return None

    def _front(
        self, tier: int, choice: list[Request], left: Left, demand: Demand, *, is_reserving: bool
    ) -> Request | None:
        """Return what goes first in a line: of all, or of a tier."""
        shares, now_ms = self.crawl.shares, self.now_ms
        line = [each for each in choice if not shares.policy.goes_by_tier or self._tier_of(each) == tier]
        line.sort(key=lambda each: (each.rank, self.crawl.turns.index(self._position_of(each)), each.tie))
        ready = [each for each in line if left.now > 0 and shares.opens_ms(each.slot) <= now_ms]
        waiting = [each for each in line if shares.opens_ms(each.slot) > now_ms]
        soon = [each for each in waiting if left.later > 0 and shares.opens_ms(each.slot) <= now_ms + demand.horizon_ms]
        reserved = [each for each in waiting if left.now > 0 and self._may_reserve(each.slot, demand.reserve_ms)]
        if not ready:
            return next(iter(soon or (reserved if is_reserving and shares.policy.goes_by_tier else [])), None)
        better = [each for each in line if each in soon + reserved and tier_of(each.rank) < tier_of(ready[0].rank)]
        spare = [each for each in soon[:1] if left.places > left.now and line.index(each) < line.index(ready[0])]
        return (better or spare or ready)[0]

    def _may_reserve(self, slot: str, reserve_ms: int) -> bool:
        """Return whether a slot opens so soon and none of its requests waits that could leave its place to the next."""
        shares = self.crawl.shares
        interval_ms, ahead_ms = shares.interval_ms(slot), shares.opens_ms(slot) - self.now_ms
        waiting = ceil(ahead_ms / interval_ms) - 1 if interval_ms else 0
        leased = sum(request.slot == slot for request in self._in("leased"))
        return ahead_ms <= reserve_ms and (waiting <= 0 or 2 * waiting < leased)

    def _is_withheld(self, request: Request) -> bool:
        shares = self.crawl.shares
        return shares.is_flooded and self._tier_of(request) in shares.policy.discovery

    def _ordinary(self) -> list[Request]:
        return [request for request in self._in("pending") if not request.is_suspect]

    def _end_turn(self, served: Request) -> None:
        self.crawl.turns.remove(self._position_of(served))
        if self._is_followed(served):
            self.crawl.turns.append(self._position_of(served))

    def _leave_queue(self, claimed: Request) -> None:
        if not self._is_followed(claimed):
            self.crawl.turns.remove(self._position_of(claimed))

    def _is_followed(self, request: Request) -> bool:
        position = self._position_of(request)
        return any(self._position_of(other) == position for other in self._ordinary() if other is not request)

    def _reap(self) -> int:
        expired = [request for request in self._in("leased") if request.expiry_ms <= self.now_ms]
        expired = sorted(expired, key=lambda request: (request.expiry_ms, request.tie))[:REAP_LIMIT]
        for request in expired:
            self._lose(request)
        due = [request for request in self._in("delayed") if request.due_ms <= self.now_ms]
        for request in sorted(due, key=lambda request: (request.due_ms, request.tie))[:REAP_LIMIT]:
            request.state = "pending"
            self._queue_up(request)
        return len(expired)

    def _queue_up(self, request: Request) -> None:
        if self._position_of(request) not in self.crawl.turns:
            self.crawl.turns.append(self._position_of(request))

    def _give_back(self, request: Request, *, is_attempt: bool) -> None:
        self.crawl.shares.hold(request.label, -1)
        request.state = "pending"
        if not is_attempt:
            request.attempts -= 1
        if not request.is_suspect:
            self._queue_up(request)

    def _lose(self, request: Request, *, is_alone: bool = False) -> None:
        # Suspects come one at a time here: nothing else was to blame for what was one already.
        request.lost_alone += is_alone or request.attempts > request.suspect_attempts
        is_to_blame = request.lost_alone >= min(2, self.max_attempts - request.suspect_attempts)
        if request.attempts < self.max_attempts or not is_to_blame:
            self._give_back(request, is_attempt=True)
        else:
            self.crawl.shares.hold(request.label, -1)
            self._dead_letter(request, "lease")

    def _finish(self, request: Request, state: State) -> None:
        request.state = state
        self.crawl.finished[state] += 1
        self.crawl.requests = [other for other in self.crawl.requests if other is not request]

    def _dead_letter(self, request: Request, reason: str, detail: str = "") -> None:
        self._finish(request, "dead")
        self.dead_letters.append((request.payload, reason, request.attempts, request.holder, detail))
