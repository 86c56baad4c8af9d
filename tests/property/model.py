"""A frontier as plainly as it can be said, with lists and `sorted()`; what the real ones are compared with."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from math import ceil
from typing import Literal, NamedTuple

from scrapy_prioqueue.frontier.base import Committed, Demand, Depth, Order, Push

REAP_LIMIT = 100

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


@dataclass
class Request:
    """An accepted request and what has become of it."""

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
    """Everything that begins anew with a crawl."""

    requests: list[Request] = field(default_factory=list)
    turns: list[str] = field(default_factory=list)
    seen: set[bytes] = field(default_factory=set)
    marks: set[bytes] = field(default_factory=set)
    sessions: dict[str, Session] = field(default_factory=dict)
    has_ended: bool = False


@dataclass(frozen=True)
class Answer:
    """What a demand is answered with."""

    leases: Sequence[Leased]
    depth: Depth
    has_ended: bool
    reaped: int
    next_due_s: float | None


class Model:
    """The frontier; `turns` lists the slots that have ordinary pending requests, the longest unserved first."""

    def __init__(self, order: Order, ttl_ms: int, max_attempts: int) -> None:
        self.order = order
        self.ttl_ms = ttl_ms
        self.max_attempts = max_attempts
        self.now_ms = 0
        self.crawl = Crawl(has_ended=True)
        self.dead_letters: list[tuple[str, str, int, str]] = []

    # Workers

    def join(self, worker: str) -> tuple[bool, int]:
        """Return whether a crawl begins now, and how many leases the worker gets back."""
        is_new = self.crawl.has_ended
        if is_new:
            self.crawl = Crawl()
        self.crawl.sessions[worker] = Session(self.now_ms)
        own = sorted(self.held_by(worker), key=lambda request: request.tie)
        for request in own:
            self._lose(request)
        self._reap()
        return is_new, len(own)

    def leave(self, worker: str) -> None:
        """Forget a worker; its leases go on."""
        del self.crawl.sessions[worker]

    def hear(self, worker: str) -> None:
        """Note a sign of life."""
        self.crawl.sessions[worker].heard_ms = self.now_ms

    def living(self) -> list[Session]:
        """Return the workers that have been heard of lately."""
        return [each for each in self.crawl.sessions.values() if each.heard_ms >= self.now_ms - self.ttl_ms]

    def clear(self) -> None:
        """Free what a crawl that has ended needs no more."""
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
                self._queue_up(push.slot)
        return refused

    def find(self, payload: str) -> Request | None:
        """Return a request of this crawl that is not finished."""
        return next(
            (request for request in self._in("pending", "delayed", "leased") if request.payload == payload), None
        )

    def is_known(self, claim: Claimed) -> bool:
        """Return whether a claim speaks of a request that is here and was not lost more often since."""
        if claim.known_as != claim.push.payload.decode():
            return False
        request = self.find(claim.known_as)
        return request is not None and (request.state == "leased" or request.attempts <= claim.attempt)

    def _claim(self, worker: str, claim: Claimed) -> str | Token:
        request = self.find(claim.push.payload.decode()) if self.is_known(claim) else None
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
        request.state, request.holder, request.expiry_ms = "leased", worker, self.now_ms + self.ttl_ms
        return request.payload, request.attempts

    def _mark(self, push: Push) -> str:
        crawl = self.crawl
        if push.start_mark is not None:
            if push.start_mark in crawl.marks:
                return "repeated"
            crawl.marks.add(push.start_mark)
        if push.fingerprint is not None:
            if push.fingerprint in crawl.seen:
                return "duplicate"
            crawl.seen.add(push.fingerprint)
        return ""

    def _store(self, push: Push) -> Request:
        crawl = self.crawl
        number = len(crawl.requests) + 1
        is_newest_first = self.order == "lifo" and not push.is_start
        tie = 10**6 + number if push.is_start else -number if is_newest_first else number
        suspect_attempts = max(1, min(2, self.max_attempts - 1))
        request = Request(push.payload.decode(), push.rank, push.slot, tie, suspect_attempts=suspect_attempts)
        crawl.requests.append(request)
        crawl.has_ended = False
        return request

    def _end(self, worker: str, end: End) -> bool:
        kind, token = end
        request = self._held(worker, token)
        if request is None:
            return False
        if kind == "ack":
            request.state = "done"
        elif kind == "release":
            self._give_back(request, is_attempt=False)
        else:
            self._bury(request, "decode")
        return True

    # Leases

    def lease(self, worker: str, demand: Demand) -> Answer:
        """Reap, lease, and see whether the crawl is over."""
        self.hear(worker)
        reaped = self._reap()
        limit = demand.limit
        if demand.is_fair and limit:
            limit = min(limit, max(1, ceil(len(self._in("pending")) / len(self.living()))))
        leased = self._take(worker, limit, demand)
        self.crawl.sessions[worker].is_idle = demand.is_idle and not leased
        if not self._in("pending", "delayed", "leased") and all(session.is_idle for session in self.living()):
            self.crawl.has_ended = True
        times = [request.expiry_ms for request in self._in("leased")]
        times += [request.due_ms for request in self._in("delayed")]
        return Answer(
            leases=[Leased(request.payload, request.attempts, request.rank, request.slot) for request in leased],
            depth=self.depth(),
            has_ended=self.crawl.has_ended,
            reaped=reaped,
            next_due_s=max(0, min(times) - self.now_ms) / 1000 if times else None,
        )

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
            accepted=len(self.crawl.requests),
            pending=len(self._in("pending")),
            leased=len(self._in("leased")),
            dead=len(self._in("dead")),
            done=len(self._in("done")),
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

    def _take(self, worker: str, limit: int, demand: Demand) -> list[Request]:
        room = {request.slot: demand.slot_room.get(request.slot, demand.slot_limit) for request in self._in("pending")}
        leased: list[Request] = []
        while len(leased) < limit:
            may_take_suspect = demand.may_take_suspect and not leased
            request = (self._next_suspect(room) if may_take_suspect else None) or self._next_ordinary(room)
            if request is None:
                break
            if not request.is_suspect:
                self._end_turn(request)
            request.state, request.holder, request.expiry_ms = "leased", worker, self.now_ms + self.ttl_ms
            request.attempts += 1
            room[request.slot] -= 1
            leased.append(request)
        return leased

    def _next_suspect(self, room: dict[str, int]) -> Request | None:
        """Return the best suspect, unless its slot has no room or an ordinary request outranks it."""
        suspects = [request for request in self._in("pending") if request.is_suspect]
        suspect = min(suspects, key=lambda request: (request.rank, request.tie), default=None)
        if suspect is None or room[suspect.slot] <= 0:
            return None
        rival = self._next_ordinary(room)
        return None if rival is not None and rival.rank < suspect.rank else suspect

    def _next_ordinary(self, room: dict[str, int]) -> Request | None:
        turns = self.crawl.turns
        waiting = [request for request in self._ordinary() if room[request.slot] > 0]
        return min(waiting, key=lambda request: (request.rank, turns.index(request.slot), request.tie), default=None)

    def _ordinary(self) -> list[Request]:
        return [request for request in self._in("pending") if not request.is_suspect]

    def _end_turn(self, served: Request) -> None:
        self.crawl.turns.remove(served.slot)
        if self._is_followed(served):
            self.crawl.turns.append(served.slot)

    def _leave_queue(self, claimed: Request) -> None:
        if not self._is_followed(claimed):
            self.crawl.turns.remove(claimed.slot)

    def _is_followed(self, request: Request) -> bool:
        return any(other.slot == request.slot for other in self._ordinary() if other is not request)

    def _reap(self) -> int:
        expired = [request for request in self._in("leased") if request.expiry_ms <= self.now_ms]
        expired = sorted(expired, key=lambda request: (request.expiry_ms, request.tie))[:REAP_LIMIT]
        for request in expired:
            self._lose(request)
        due = [request for request in self._in("delayed") if request.due_ms <= self.now_ms]
        for request in sorted(due, key=lambda request: (request.due_ms, request.tie))[:REAP_LIMIT]:
            request.state = "pending"
            self._queue_up(request.slot)
        return len(expired)

    def _queue_up(self, slot: str) -> None:
        if slot not in self.crawl.turns:
            self.crawl.turns.append(slot)

    def _give_back(self, request: Request, *, is_attempt: bool) -> None:
        request.state = "pending"
        if not is_attempt:
            request.attempts -= 1
        if not request.is_suspect:
            self._queue_up(request.slot)

    def _lose(self, request: Request) -> None:
        if request.attempts < self.max_attempts:
            self._give_back(request, is_attempt=True)
        else:
            self._bury(request, "lease")

    def _bury(self, request: Request, reason: str) -> None:
        request.state = "dead"
        self.dead_letters.append((request.payload, reason, request.attempts, request.holder))
