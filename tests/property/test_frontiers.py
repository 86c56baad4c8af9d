"""Every frontier answers as the model does, in random histories with workers that die.

Invariants 2, 3, 6 and 9: one lease at a time, exact order, the end of a crawl, and balanced counters.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from itertools import count
from typing import Any, Literal

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    MultipleResults,
    RuleBasedStateMachine,
    initialize,
    invariant,
    multiple,
    precondition,
    rule,
    run_state_machine_as_test,
)

from scrapy_prioqueue.errors import CrawlEnded
from scrapy_prioqueue.frontier.base import (
    ANY_NUMBER,
    Ack,
    Claim,
    Committed,
    DeadLetter,
    Demand,
    Exchanged,
    Fail,
    Joined,
    OnFinish,
    Operation,
    Order,
    Push,
    Release,
)
from scrapy_prioqueue.frontier.labels import Label, label_of, labelled
from scrapy_prioqueue.frontier.policy import Budget, Closing, CrawlDelay, Latency, Policy, SlotLimit, Throttle
from scrapy_prioqueue.frontier.policy_parts import PARTS
from scrapy_prioqueue.frontier.seen import NEVER_S, SeenPolicy
from scrapy_prioqueue.rank import TIER_WIDTH
from tests.contract.backends import TTL_S, Backend, MemoryBackend, RedisBackend, Worker, text_of
from tests.property.model import SPENT, Answer, Claimed, End, Leased, Model, Token
from tests.support.servers import RedisServer

EXAMPLES = 50
"""Each of fifty steps."""

TTL_MS = round(TTL_S * 1000)

SILENCE_MS = 5 * TTL_MS
"""After so long a silent worker counts as killed: it comes back as a new process."""

WORKERS = st.sampled_from(["w1", "w2", "w3"])
SLOTS = st.sampled_from(["a", "b", "c", ""])
KINDS: st.SearchStrategy[Literal["ack", "release", "fail"]] = st.sampled_from(["ack", "release", "fail"])
KEYS = st.sampled_from(["k", "l"])
LIMITS = st.builds(
    SlotLimit,
    st.sampled_from([None, None, 0.0, 0.033, 0.4, 0.9, 33.0]),
    st.sampled_from([None, None, 0, 1, 3]),
    st.sampled_from([None, None, 1, 3]),
)
BUDGETS = st.builds(
    Budget,
    st.none() | st.integers(0, 9),
    st.none() | st.integers(0, 4),
    st.none() | st.just(1200),
    st.none() | st.just(1.5),
)
POLICIES = st.just(Policy()) | st.builds(
    lambda marks, **fields: Policy(high_water=marks[0], low_water=marks[1], pending_limit=marks[2], **fields),
    marks=st.sampled_from([(0, 0, 0), (0, 0, 0), (1, 0, 0), (5, 2, 0), (5, 2, 7), (9, 8, 0)]),
    slots=st.dictionaries(st.sampled_from(["a", "b", "*"]), LIMITS, max_size=3),
    throttle=st.none() | st.builds(Throttle, st.just(0.5), st.just(2.0), st.sampled_from([1.0, 3.0])),
    weights=st.sampled_from([(), (), (2, 1), (1, 3), (1, 1)]),
    budgets=st.none() | st.dictionaries(st.sampled_from(["k", "*"]), BUDGETS),
    discovery=st.sampled_from([(), (), (0,), (1,)]),
    unset=st.just(frozenset()) | st.frozensets(st.sampled_from(sorted(PARTS))),
)
NOTES = st.lists(
    st.builds(Closing, SLOTS, st.sampled_from([0, 77, 300, 3000, 70_000]))
    | st.builds(CrawlDelay, SLOTS, st.sampled_from([0, 77, 700]), st.booleans())
    | st.builds(Latency, SLOTS, st.sampled_from([10, 500, 5000]), st.booleans()),
    max_size=3,
)
SEEN = st.just(SeenPolicy()) | st.sampled_from(
    [
        SeenPolicy("compact"),
        SeenPolicy("bloom", expected=1000),
        SeenPolicy(revisit_s=2),
        SeenPolicy("compact", revisit_s=NEVER_S),
    ]
)
PUSHES = st.lists(
    st.builds(
        Push,
        rank=st.integers(-1, 1) | st.integers(TIER_WIDTH - 1, TIER_WIDTH + 1),
        slot=SLOTS,
        payload=st.just(b"")
        | st.builds(
            lambda is_rendered, keys: labelled(b"", Label(is_rendered, keys)),
            st.booleans(),
            st.lists(KEYS, max_size=2, unique=True),
        ),
        fingerprint=st.none() | st.none() | st.integers(0, 40).map(lambda number: b"fingerprint %d" % number),
        is_start=st.booleans(),
        start_mark=st.none() | st.none() | st.integers(0, 40).map(lambda number: b"mark %d" % number),
        delay_ms=st.just(0) | st.sampled_from([0, 1, 700, 5000]),
        revisit_s=st.none() | st.none() | st.sampled_from([0, 1, 5, NEVER_S]),
    ),
    max_size=6,
)
DEMANDS = st.builds(
    Demand,
    limit=st.integers(0, 6),
    slot_limit=st.integers(1, 3) | st.just(2**31),
    slot_room=st.dictionaries(SLOTS, st.integers(0, 2), max_size=3),
    is_idle=st.booleans(),
    is_fair=st.booleans(),
    suspect_room=st.sampled_from([0, 1, ANY_NUMBER]),
    suspects_held=st.just(0),
    later_limit=st.just(0) | st.integers(0, 4),
    horizon_ms=st.sampled_from([0, 250, 1000]),
    reserve_ms=st.sampled_from([0, 600, 2000]),
    notes=st.just([]) | st.just([]) | NOTES,
)
NOTHING = Demand(0)
EVERYTHING = Demand(150, is_fair=False)


class Side:
    """One frontier beside the model: its workers, the ids it gave, and who believes to hold what until when."""

    def __init__(self, backend: Backend, **config: Any) -> None:
        self.backend = backend
        self.config = config
        self.workers: dict[str, Worker] = {}
        self.ids: dict[str, int] = {}
        self.beliefs: dict[tuple[str, str], int] = {}
        self.last_claimed: dict[str, Mapping[int, tuple[int, int]]] = {}

    def start(self, worker: str, policy: Policy) -> Joined:
        """Let a new process of a worker join; the last one was killed, or has left."""
        if worker in self.workers:
            self.workers[worker].close()
        self.forget_all_but(worker, ())
        self.last_claimed[worker] = {}
        self.workers[worker] = self.backend.worker(worker, policy=policy, **self.config)
        return self.workers[worker].join()

    def operation(self, end: End) -> Operation:
        """Return the operation that ends a lease in this frontier."""
        kind, (payload, attempt) = end
        lease_id = self.ids[payload]
        if kind == "fail":
            return Fail(lease_id, attempt, "decode", "", spent=SPENT)
        return Ack(lease_id, attempt, SPENT) if kind == "ack" else Release(lease_id, attempt)

    def claim(self, claimed: Claimed) -> Claim:
        """Return the operation that claims a lease in this frontier."""
        lease_id = None if claimed.known_as is None else self.ids[claimed.known_as]
        return Claim(claimed.push, lease_id, claimed.attempt)

    def check_claims(
        self, worker: str, committed: Committed, granted: Mapping[int, Token], new: Collection[str]
    ) -> None:
        """Compare what was granted, and remember the ids of requests that are new here."""
        self.last_claimed[worker] = committed.claimed
        assert {at: attempt for at, (_, attempt) in committed.claimed.items()} == {
            at: attempt for at, (_, attempt) in granted.items()
        }
        for at, (payload, _) in granted.items():
            lease_id, _ = committed.claimed[at]
            if payload in new:
                self.ids[payload] = lease_id
            assert self.ids[payload] == lease_id
            self.believe(worker, payload)

    def renew(self, worker: str, tokens: Sequence[Token]) -> list[int]:
        """Let a worker renew leases; return the ids of those it has lost."""
        frontier = self.workers[worker].frontier
        return list(self.workers[worker].run(frontier.renew(self._held(tokens))))

    def reconcile(self, worker: str, tokens: Sequence[Token]) -> int:
        """Let a worker give back all but these leases; return how many."""
        frontier = self.workers[worker].frontier
        return self.workers[worker].run(frontier.reconcile(self._held(tokens)))

    def answer(self, worker: str, exchanged: Exchanged) -> Answer:
        """Return an answer without ids, and remember them."""
        leases = []
        for lease in exchanged.leases:
            payload = text_of(lease.payload)
            assert self.ids.setdefault(payload, lease.lease_id) == lease.lease_id
            self.believe(worker, payload)
            leases.append(Leased(payload, lease.attempt, lease.rank, lease.slot, lease.start_in_ms, lease.late_ms))
        return Answer(
            leases,
            exchanged.depth,
            exchanged.has_ended,
            exchanged.reaped,
            exchanged.next_due_s,
            exchanged.over_budget,
            exchanged.orders.is_flooded,
            exchanged.orders.is_at_limit,
            exchanged.held_back,
            exchanged.must_ask,
        )

    def believe(self, worker: str, payload: str) -> None:
        """Record that a worker has been granted a lease."""
        self.beliefs[worker, payload] = self.backend.clock() + TTL_MS

    def forget(self, worker: str, payloads: Collection[str]) -> None:
        """Note that a worker does not hold these requests any more."""
        for payload in payloads:
            self.beliefs.pop((worker, payload), None)

    def forget_all_but(self, worker: str, payloads: Collection[str]) -> None:
        """Note that a worker holds nothing but these requests."""
        self.forget(
            worker, [payload for holder, payload in self.beliefs if holder == worker and payload not in payloads]
        )

    def _held(self, tokens: Sequence[Token]) -> list[tuple[int, int]]:
        return [(self.ids[payload], attempt) for payload, attempt in tokens]


class FrontierMachine(RuleBasedStateMachine):
    """Does the same to the model and to each frontier, and compares what they answer.

    A request is known by its payload, which is unique; its id is each frontier's own affair.
    """

    tokens: Bundle[Token] = Bundle("tokens")
    side_type = Side
    model_type = Model

    def __init__(self, backends: Sequence[Backend]) -> None:
        super().__init__()
        self.backends = backends
        self.sides: list[Side] = []
        self.inside: set[str] = set()
        self.late: dict[str, int] = {}
        self.payloads = count(1)
        self.pushes: dict[str, Push] = {}
        self.letters_read = 0

    @initialize(
        order=st.sampled_from(["lifo", "fifo"]),
        max_attempts=st.integers(1, 4),
        policy=POLICIES,
        seen=SEEN,
        on_finish=st.sampled_from(["restart", "keep"]),
    )
    def begin(self, order: Order, max_attempts: int, policy: Policy, seen: SeenPolicy, on_finish: OnFinish) -> None:
        self.policy = policy
        self.sides = [
            self.side_type(backend, order=order, max_attempts=max_attempts, seen=seen, on_finish=on_finish)
            for backend in self.backends
        ]
        self.model = self.model_type(order, TTL_MS, max_attempts, tiers=2, seen=seen, keeps_seen=on_finish == "keep")
        self.model.now_ms = self.backends[0].clock()

    # What workers say

    @rule(target=tokens, worker=WORKERS, pushes=PUSHES, kinds=st.lists(KINDS, max_size=6), demand=DEMANDS)
    def exchange(
        self, worker: str, pushes: list[Push], kinds: list[Literal["ack", "release", "fail"]], demand: Demand
    ) -> MultipleResults[Token]:
        self.enter(worker)
        return self.talk(worker, pushes, list(zip(kinds, self.held_by(worker), strict=False)), demand)

    @rule(worker=WORKERS, pushes=PUSHES, kinds=st.lists(KINDS, max_size=6))
    def commit(self, worker: str, pushes: list[Push], kinds: list[Literal["ack", "release", "fail"]]) -> None:
        self.enter(worker)
        self.talk(worker, pushes, list(zip(kinds, self.held_by(worker), strict=False)), None)

    @rule(worker=WORKERS, token=tokens, kind=KINDS)
    def end_any_lease(self, worker: str, token: Token, kind: Literal["ack", "release", "fail"]) -> None:
        self.enter(worker)
        self.talk(worker, [], [(kind, token)], None)

    @rule(
        target=tokens,
        worker=WORKERS,
        found=PUSHES,
        attempts=st.lists(st.integers(1, 3), min_size=6, max_size=6),
        ids=st.lists(tokens, max_size=2),
        held=st.lists(tokens, max_size=4),
    )
    def claim(
        self, worker: str, found: list[Push], attempts: list[int], ids: list[Token], held: list[Token]
    ) -> MultipleResults[Token]:
        """Claim new requests, the first ones under the ids of others, and requests that any worker has held before."""
        self.enter(worker)
        known_as = [*(payload for payload, _ in ids), *[None] * len(found)]
        claims = [
            Claimed(self.named(push), payload, attempt)
            for push, payload, attempt in zip(found, known_as, attempts, strict=False)
        ]
        return self.talk(worker, [], [], None, [*claims, *self.claims_of(held)])

    @rule(target=tokens, worker=WORKERS, other=WORKERS, pushes=PUSHES, number=st.integers(1, 6))
    def lose_and_claim(self, worker: str, other: str, pushes: list[Push], number: int) -> MultipleResults[Token]:
        """Be silent until what one holds is pending again, more is found meanwhile, then claim some of it."""
        self.enter(worker)
        self.talk(worker, pushes, [], EVERYTHING)
        held = self.held_by(worker)
        self.time_passes(TTL_S)
        self.enter(other)
        self.talk(other, pushes, [], NOTHING)
        self.enter(worker)
        return self.talk(worker, [], [], None, self.claims_of(held[-number:]))

    @rule(worker=WORKERS)
    def repeat_the_last_batch(self, worker: str) -> None:
        self.enter(worker)
        expected = self.model.lease(worker, NOTHING)
        for side in self.sides:
            batch = side.workers[worker].last_batch
            exchanged = side.workers[worker].exchange(batch, demand=NOTHING)
            (committed,) = exchanged.committed
            assert (committed.number, *fates(committed)) == (batch.number, [], [], [])
            if batch.number:
                assert committed.claimed == side.last_claimed[worker]
            assert side.answer(worker, exchanged) == expected

    # With a first limit leases are counted, 200 per call, and meanwhile nothing is handed out.
    @precondition(lambda self: self.model.depth().pending + self.model.depth().leased < 250)
    @rule(worker=WORKERS, slot=SLOTS)
    def push_a_hundred(self, worker: str, slot: str) -> None:
        self.enter(worker)
        self.talk(worker, [Push(0, slot, b"")] * 100, [], None)

    @rule(worker=WORKERS)
    def lease_everything(self, worker: str) -> None:
        self.enter(worker)
        self.talk(worker, [], [], EVERYTHING)
        pending = 0
        while self.model.depth().pending != pending:
            # Suspects come one at a time, and slots that have to wait later.
            pending = self.model.depth().pending
            self.talk(worker, [], [], EVERYTHING)

    @rule(worker=WORKERS)
    def ack_everything(self, worker: str) -> None:
        self.enter(worker)
        self.talk(worker, [], [("ack", token) for token in self.held_by(worker)], NOTHING)

    @rule(is_all_done=st.booleans())
    def all_rest(self, is_all_done: bool) -> None:
        for worker in sorted(self.inside) * 2:
            if is_all_done:
                self.lease_everything(worker)
                self.ack_everything(worker)
            self.enter(worker)
            self.talk(worker, [], [], Demand(0, is_idle=True))

    @rule(worker=WORKERS, others=st.lists(tokens, max_size=3), number=st.integers(0, 9))
    def renew(self, worker: str, others: list[Token], number: int) -> None:
        self.enter(worker)
        named = [*self.held_by(worker)[:number], *others]
        lost = self.model.renew(worker, named)
        for side in self.sides:
            assert side.renew(worker, named) == [side.ids[payload] for payload in lost]
            for payload, _ in named:
                if payload not in lost:
                    side.believe(worker, payload)

    @rule(worker=WORKERS, number=st.integers(0, 9))
    def reconcile(self, worker: str, number: int) -> None:
        self.enter(worker)
        known = self.held_by(worker)[:number]
        given_back = self.model.reconcile(worker, known)
        for side in self.sides:
            assert side.reconcile(worker, known) == given_back
            side.forget_all_but(worker, [payload for payload, _ in known])

    # What happens to them

    @rule(policy=POLICIES)
    def workers_come_with_another_policy(self, policy: Policy) -> None:
        self.policy = policy

    @rule(seconds=st.sampled_from([0.034, 0.2, 0.5, 1, 4, TTL_S, TTL_S + 1]))
    def time_passes(self, seconds: float) -> None:
        self.model.now_ms += round(seconds * 1000)
        for side in self.sides:
            side.backend.clock.advance(seconds)

    @rule(target=tokens, worker=WORKERS, pushes=PUSHES, demand=DEMANDS)
    def lease_and_hang(self, worker: str, pushes: list[Push], demand: Demand) -> MultipleResults[Token]:
        self.enter(worker)
        leased = self.talk(worker, pushes, [], demand)
        self.time_passes(TTL_S)
        return leased

    @rule(worker=WORKERS)
    def kill(self, worker: str) -> None:
        self.inside.discard(worker)
        self.late.pop(worker, None)

    @rule(worker=WORKERS)
    def leave(self, worker: str) -> None:
        self.enter(worker)
        self.inside.remove(worker)
        self.model.leave(worker)
        for side in self.sides:
            side.workers[worker].leave()
        if self.model.crawl.has_ended and not self.model.living():
            self.model.clear()
            self.inside.clear()

    # What must be true at any time

    @invariant()
    def no_request_is_held_by_two(self) -> None:
        for side in self.sides:
            now_ms = side.backend.clock()
            holders = Counter(payload for (_, payload), expiry_ms in side.beliefs.items() if expiry_ms > now_ms)
            assert set(holders.values()) <= {1}

    @invariant()
    def dead_letters_are_those_of_the_model(self) -> None:
        if len(self.model.dead_letters) == self.letters_read:
            return
        self.letters_read = len(self.model.dead_letters)
        for side in self.sides:
            letters = next(iter(side.workers.values())).dead_letters()
            died_ms = [letter.died_ms for letter in letters]
            assert died_ms == sorted(died_ms, reverse=True)
            assert sorted(map(facts_of, letters)) == sorted(self.model.dead_letters)

    def teardown(self) -> None:
        for backend in self.backends:
            backend.close()

    # How it is done

    def enter(self, worker: str) -> None:
        """See to it that a worker takes part in the crawl."""
        now_ms = self.model.now_ms
        if worker in self.late and now_ms - self.late.pop(worker) <= SILENCE_MS:
            self.learn_of_the_end(worker)
        if worker not in self.inside or now_ms - self.model.crawl.sessions[worker].heard_ms > SILENCE_MS:
            self.start(worker)

    def start(self, worker: str) -> None:
        """Let a worker join, and compare what it finds."""
        heard_ms = {name: session.heard_ms for name, session in self.model.crawl.sessions.items()}
        is_new, recovered = self.model.join(worker, self.policy)
        if is_new:
            self.late |= {name: heard_ms[name] for name in self.inside - {worker}}
            self.inside.clear()
        self.inside.add(worker)
        for side in self.sides:
            joined = side.start(worker, self.policy)
            assert (joined.is_new, joined.recovered) == (is_new, recovered)
            # What is new again may be counted as long as it is kept.
            seen = self.model.seen_now()
            assert joined.seen == seen if self.model.revisit_s is None else joined.seen >= seen
            assert joined.depth == self.model.depth()

    def learn_of_the_end(self, worker: str) -> None:
        """Let a worker find that its crawl is over and another has begun."""
        for side in self.sides:
            exchanged = side.workers[worker].send(Push(0, "a", b"too late"), demand=EVERYTHING)
            assert exchanged.has_ended
            assert isinstance(exchanged.rejection, CrawlEnded)
            assert not exchanged.committed
            assert not exchanged.leases

    def named(self, push: Push) -> Push:
        """Return a push with a payload of its own."""
        payload, label = str(next(self.payloads)), label_of(push.payload)
        encoded = payload.encode() if label is None else labelled(payload.encode(), label)
        self.pushes[payload] = replace(push, payload=encoded)
        return self.pushes[payload]

    def claims_of(self, held: Sequence[Token]) -> list[Claimed]:
        """Return the claims to what was held, except where they would make two requests of one payload."""
        claims = [Claimed(self.pushes[payload], payload, attempt) for payload, attempt in dict(held).items()]
        return [claim for claim in claims if self.model.is_known(claim) or self._may_be_stored_again(claim.push)]

    def _may_be_stored_again(self, push: Push) -> bool:
        if push.fingerprint is None:
            return False
        return self.model.was_seen(push.fingerprint) or self.model.find(text_of(push.payload)) is None

    def talk(
        self,
        worker: str,
        pushes: Sequence[Push],
        ends: Sequence[End],
        demand: Demand | None,
        claims: Sequence[Claimed] = (),
    ) -> MultipleResults[Token]:
        """Make an exchange, compare its answers, and return what was leased."""
        pushes = [self.named(push) for push in pushes]
        here = {text_of(claim.push.payload) for claim in claims if self.model.is_known(claim)}
        committed, granted = self.model.commit(worker, pushes, claims, ends)
        expected = None if demand is None else self.model.lease(worker, demand)
        for side in self.sides:
            operations = [*pushes, *map(side.claim, claims), *map(side.operation, ends)]
            side.forget(worker, [payload for _, (payload, _) in ends])
            exchanged = side.workers[worker].send(*operations, demand=demand)
            assert exchanged.rejection is None
            assert [fates(each) for each in exchanged.committed] == [fates(committed)]
            new = {payload for payload, _ in granted.values()} - here
            side.check_claims(worker, exchanged.committed[0], granted, new)
            if expected is not None:
                assert side.answer(worker, exchanged) == expected
        leased = [(lease.payload, lease.attempt) for lease in expected.leases] if expected else []
        return multiple(*leased, *granted.values())

    def held_by(self, worker: str) -> list[Token]:
        """Return what a worker holds, in the order of the pushes."""
        return [(request.payload, request.attempts) for request in self.model.held_by(worker)]


def facts_of(letter: DeadLetter) -> tuple[str, str, int, str, str]:
    """Return what the model knows of a dead letter."""
    detail = letter.detail if letter.reason == "budget" else ""
    return text_of(letter.payload), letter.reason, letter.attempts, letter.worker, detail


def fates(committed: Committed) -> tuple[list[int], list[int], list[int]]:
    """Return what became of a batch in a form that can be compared."""
    return list(committed.duplicates), list(committed.repeated_starts), list(committed.void)


@pytest.fixture
def new_backends(redis_server: RedisServer, frontier_name: str) -> Callable[[], list[Backend]]:
    """Makes two new frontiers, in process and in Redis, to be compared in the same history."""
    numbers = count(1)

    def new() -> list[Backend]:
        name = f"{frontier_name}-{next(numbers)}"
        return [MemoryBackend(name), RedisBackend(name, redis_server.url)]

    return new


@pytest.mark.timeout(600)
def test_frontiers_answer_as_the_model_does(new_backends: Callable[[], list[Backend]]) -> None:
    run_state_machine_as_test(
        lambda: FrontierMachine(new_backends()),  # type: ignore[arg-type]
        settings=settings(suppress_health_check=list(HealthCheck), max_examples=EXAMPLES),
    )
