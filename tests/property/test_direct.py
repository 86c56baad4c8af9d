"""The fast path of the in-process frontier has the same results as exchanges: leases, counts and dead letters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scrapy_prioqueue.frontier.base import Ack, Lease, Push, Spent
from scrapy_prioqueue.frontier.labels import Label, labelled
from scrapy_prioqueue.frontier.memory import MemoryFrontier
from scrapy_prioqueue.frontier.memory.direct import MustExchange
from scrapy_prioqueue.frontier.policy import Budget, Policy
from tests.contract.backends import MemoryBackend, Worker

pytestmark = pytest.mark.in_process

BUDGETS = {"small": Budget(pages=2), "rendered": Budget(renders=1), "bytes": Budget(bytes=100), "free": Budget()}

LABELS = st.builds(
    Label, st.booleans(), st.lists(st.sampled_from(sorted(BUDGETS)), min_size=1, max_size=2, unique=True)
)
PUSHES = st.builds(
    lambda rank, slot, number, label: Push(rank, slot, labelled(b"%d" % number, label) if label else b"%d" % number),
    *(st.integers(0, 2), st.sampled_from("ab"), st.integers(0, 99), st.none() | LABELS),
)
STEPS = st.lists(PUSHES | st.just("take") | st.integers(0, 200), max_size=30)


class Direct:
    """Goes the short way where that is open, and makes an exchange where it isn't."""

    def __init__(self, worker: Worker) -> None:
        assert isinstance(worker.frontier, MemoryFrontier)
        self._worker, self._direct = worker, worker.frontier.direct

    def push(self, push: Push) -> None:
        assert self._direct.may_push
        self._direct.push(push)

    def take(self) -> Sequence[Lease]:
        assert self._direct.may_take
        try:
            lease = self._direct.take(lambda slot: True)
        except MustExchange:
            return self._worker.lease()
        return [] if lease is None else [lease]

    def end(self, ack: Ack) -> None:
        assert self._direct.acknowledge(ack)


class Exchanging:
    """Makes an exchange for everything."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker

    def push(self, push: Push) -> None:
        self._worker.commit(push)

    def take(self) -> Sequence[Lease]:
        return self._worker.lease()

    def end(self, ack: Ack) -> None:
        self._worker.commit(ack)


def used_by(worker: Worker) -> Mapping[str, Mapping[str, int]]:
    """Return what the requests of each budget key have cost."""
    assert isinstance(worker.frontier, MemoryFrontier)
    return {key: asdict(used) for key, used in worker.frontier.store.budgets.used.items()}


@given(STEPS)
def test_the_short_way_does_what_exchanges_do(steps: Sequence[Push | str | int]) -> None:
    policy = Policy(budgets=BUDGETS)
    workers = [MemoryBackend("crawl").join(policy=policy) for _ in range(2)]
    direct, exchanging = Direct(workers[0]), Exchanging(workers[1])
    held: list[Lease] = []
    for step in [*steps, *["take"] * len(steps)]:
        if isinstance(step, Push):
            direct.push(step)
            exchanging.push(step)
        elif step == "take":
            leases = direct.take()
            assert leases == exchanging.take()
            held.extend(leases)
        elif held:
            lease = held.pop()
            ack = Ack(lease.lease_id, lease.attempt, Spent(int(step), 0))
            direct.end(ack)
            exchanging.end(ack)
        first, second = workers
        assert first.depth() == second.depth()
    assert workers[0].dead_letters() == workers[1].dead_letters()
    assert used_by(workers[0]) == used_by(workers[1])
