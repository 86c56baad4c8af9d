"""A frontier in Redis follows operators' commands as the model does, in random histories."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import count
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule, run_state_machine_as_test

from scrapy_prioqueue.errors import NotPermitted
from scrapy_prioqueue.frontier.base import Exchanged, Push
from scrapy_prioqueue.frontier.policy import Budget, SlotLimit
from scrapy_prioqueue.frontier.redis.link import Link
from scrapy_prioqueue.frontier.redis.operators.calls import ScriptCalls
from scrapy_prioqueue.frontier.redis.operators.findings import Stored
from scrapy_prioqueue.frontier.redis.operators.operator import CrawlPlan, Operator
from scrapy_prioqueue.frontier.redis.scripts import Call
from scrapy_prioqueue.rank import TIER_WIDTH
from tests.contract.backends import TTL_S, RedisBackend
from tests.property.model import Answer
from tests.property.operated import OperatedModel, facts_of
from tests.property.test_frontiers import BUDGETS, LIMITS, NOTHING, PUSHES, SLOTS, WORKERS, FrontierMachine, Side
from tests.support.clocks import UnixClock
from tests.support.servers import RedisServer

EXAMPLES = 40
"""Each of fifty steps."""

PLAN = CrawlPlan(("high", "low"))
"""Never heeded: what is pushed goes into a crawl that is under way."""

RANKS = st.sampled_from([-1, 0, 1, TIER_WIDTH, TIER_WIDTH + 1])
PICKS = st.lists(st.integers(0, 30), min_size=1, max_size=3)


class ClockedOperator(Operator):
    """An operator whose calls happen at the time of a clock."""

    def __init__(self, link: Link, name: str, clock: UnixClock) -> None:
        super().__init__(link, name, lease_ttl_s=TTL_S)
        self._calls = ClockedCalls(self.link, self.keys.state, clock)


class ClockedCalls(ScriptCalls):
    """Calls that happen at the time of a clock."""

    def __init__(self, link: Link, state_key: str, clock: UnixClock) -> None:
        super().__init__(link, state_key)
        self._clock = clock

    def run(self, calls: Sequence[Call]) -> list[Any]:
        """Run scripts at the clock's time."""
        return super().run([(name, (self._clock(), *arguments[1:])) for name, arguments in calls])


class OperatedSide(Side):
    """A frontier whose workers also receive operators' commands."""

    def answer(self, worker: str, exchanged: Exchanged) -> Answer:
        """Return an answer without ids, and remember them."""
        self.orders = replace(exchanged.orders, is_flooded=False, is_at_limit=False)
        return super().answer(worker, exchanged)


class OperatedMachine(FrontierMachine):
    """What workers do to one frontier, and operators beside them, with the same clock."""

    side_type = OperatedSide
    model_type = OperatedModel
    model: OperatedModel

    def __init__(self, backend: RedisBackend, name: str, link: Link) -> None:
        super().__init__([backend])
        self.operator = ClockedOperator(link, name, backend.clock)
        self.looked: list[Stored] = []
        """What an operator has seen, however long ago."""

    @property
    def is_open(self) -> bool:
        """Whether a crawl is open."""
        return not self.model.crawl.has_ended

    # What is wanted of slots and of keys

    @rule(name=st.sampled_from(["a", "b", "*"]), limit=st.none() | LIMITS)
    def an_operator_limits(self, name: str, limit: SlotLimit | None) -> None:
        if self.is_heard(lambda: self.operator.limit(name, limit)):
            self.model.crawl.shares.say_limit(name, limit, self.model.now_ms)

    @rule(slot=SLOTS)
    def an_operator_opens(self, slot: str) -> None:
        if self.is_heard(lambda: self.operator.open_slot(slot)):
            self.model.crawl.shares.open(slot)

    @rule(name=st.sampled_from(["k", "l", "*"]), budget=st.none() | BUDGETS)
    def an_operator_budgets(self, name: str, budget: Budget | None) -> None:
        if self.is_heard(lambda: self.operator.budget(name, budget)):
            self.model.crawl.shares.say_budget(name, budget)

    @rule(paused=st.none() | st.booleans(), drained=st.none() | st.booleans())
    def an_operator_orders(self, paused: bool | None, drained: bool | None) -> None:
        if self.is_open:
            assert self.operator.order(paused=paused, drained=drained) is not None
            self.model.give_orders(paused=paused, drained=drained)

    @rule(worker=WORKERS)
    def a_worker_hears_its_orders(self, worker: str) -> None:
        self.enter(worker)
        self.talk(worker, [], [], NOTHING)
        for side in self.sides:
            assert isinstance(side, OperatedSide)
            assert side.orders == self.model.crawl.orders

    # What becomes of requests

    @rule(pushes=PUSHES)
    def an_operator_pushes(self, pushes: list[Push]) -> None:
        if self.is_open and pushes:
            named = [self.named(push) for push in pushes]
            assert self.operator.push(named, PLAN) == self.model.push_as_operator(named)

    @rule()
    def an_operator_looks(self) -> None:
        self.look()

    @rule(picks=PICKS, is_new=st.booleans())
    def an_operator_removes(self, picks: list[int], is_new: bool) -> None:
        named = self.picked(picks, ("pending", "delayed"), is_new=is_new)
        assert self.operator.remove(named) == self.model.remove(named)

    @rule(picks=PICKS, rank=RANKS, is_new=st.booleans())
    def an_operator_moves(self, picks: list[int], rank: int, is_new: bool) -> None:
        for stored in self.picked(picks, ("pending", "delayed"), is_new=is_new):
            assert self.operator.move([(stored, rank, stored.payload)]) == self.model.move(stored, rank)

    @rule(picks=PICKS, is_new=st.booleans())
    def an_operator_replays(self, picks: list[int], is_new: bool) -> None:
        named = self.picked(picks, ("dead",), is_new=is_new)
        if self.is_open and named:
            letters = [(stored, stored.payload, None) for stored in named]
            assert self.operator.replay(letters, PLAN) == self.model.replay(named)
            self.letters_read = -1

    @rule(picks=PICKS, is_new=st.booleans())
    def an_operator_purges(self, picks: list[int], is_new: bool) -> None:
        named = self.picked(picks, ("dead",), is_new=is_new)
        if named:
            assert self.operator.purge(named) == self.model.purge(named)
            self.letters_read = -1

    @rule()
    def an_operator_drops_what_waits(self) -> None:
        assert self.operator.drop() == self.model.drop()

    @rule(worker=WORKERS)
    def an_operator_evicts(self, worker: str) -> None:
        if worker in self.inside:
            assert self.operator.evict(worker, max_attempts=self.model.max_attempts) == self.model.evict(worker)
            self.inside.discard(worker)
            for side in self.sides:
                side.forget_all_but(worker, ())

    @rule(fingerprints=st.lists(st.integers(0, 40).map(lambda number: b"fingerprint %d" % number), unique=True))
    def an_operator_forgets(self, fingerprints: list[bytes]) -> None:
        if self.is_open and self.sides[0].config["seen"].mode != "bloom":
            assert list(self.operator.forget(fingerprints)) == self.model.forget(fingerprints)

    @rule()
    def an_operator_forgets_all_that_was_seen(self) -> None:
        if self.is_open:
            self.operator.forget_all()
            self.model.forget_all()

    @rule()
    def an_operator_resets(self) -> None:
        if self.model.living():
            with pytest.raises(NotPermitted):
                self.operator.reset()
        else:
            self.operator.reset()
            self.model.reset()
            self.inside.clear()
            self.late.clear()
            self.letters_read = 0

    # What must be true at any time

    @invariant()
    def what_is_stored_is_what_the_model_has(self) -> None:
        depth, expected = self.operator.depth(), self.model.depth()
        assert replace(depth, workers=0) == replace(expected, workers=0)

    # How it is done

    def _may_be_stored_again(self, push: Push) -> bool:
        """Say no: an operator may know an earlier request of that payload, by another id."""
        return False

    def is_heard(self, call: Callable[[], object]) -> bool:
        """Say something, and return whether there was a crawl, as the model says."""
        if self.is_open:
            call()
        else:
            with pytest.raises(NotPermitted):
                call()
        return self.is_open

    def look(self) -> Sequence[Stored]:
        """Look at all there is, and compare it with what the model has."""
        found = list(self.operator.requests.each())
        if self.is_open:
            facts, expected = Counter(map(facts_of, found)), Counter(self.model.facts())
            assert facts == expected, (facts - expected, expected - facts)
        self.looked += found
        return found

    def picked(self, picks: Sequence[int], states: Sequence[str], *, is_new: bool) -> list[Stored]:
        """Return some of what an operator sees, or saw once."""
        found = [stored for stored in (self.look() if is_new else self.looked) if stored.state in states]
        return [found[-1 - pick % len(found)] for pick in picks] if found else []


@pytest.fixture
def new_machine(redis_server: RedisServer, frontier_name: str) -> Callable[[], OperatedMachine]:
    """Makes machines, each with a new frontier."""
    numbers, link = count(1), Link(redis_server.url)

    def new() -> OperatedMachine:
        name = f"{frontier_name}-{next(numbers)}"
        return OperatedMachine(RedisBackend(name, redis_server.url), name, link)

    return new


@pytest.mark.timeout(600)
def test_a_frontier_heeds_its_operators_as_the_model_does(new_machine: Callable[[], OperatedMachine]) -> None:
    run_state_machine_as_test(
        new_machine,  # type: ignore[arg-type]
        settings=settings(suppress_health_check=list(HealthCheck), max_examples=EXAMPLES),
    )
