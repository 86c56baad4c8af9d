"""Requests that a worker refuses are delayed, and go to other workers first."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from scrapy_prioqueue.frontier.base import Lease, Refuse
from scrapy_prioqueue.frontier.policy import Budget, Policy, SlotLimit
from tests.contract.backends import TTL_S, Backend, Worker, ack, fail, labelled_push, push, release

DELAY_S = 2
ASIDE_S = 1


def refuse(lease: Lease) -> Refuse:
    return Refuse(lease.lease_id, lease.attempt, DELAY_S * 1000)


def refuse_one(worker: Worker) -> Lease:
    (lease,) = worker.lease()
    worker.commit(refuse(lease))
    return lease


def shown(leases: Sequence[Lease]) -> list[tuple[str, int, int]]:
    return [(lease.payload.decode(), lease.attempt, lease.refusals) for lease in leases]


@pytest.fixture(params=["plain", "policies"])
def policy(request: pytest.FixtureRequest) -> Policy:
    """Nothing to enforce, and something of everything."""
    if request.param == "plain":
        return Policy()
    return Policy(slots={"*": SlotLimit(concurrency=9)}, budgets={"*": Budget(pages=9)}, weights=[1])


def test_a_refused_request_is_delayed_and_keeps_what_it_has(backend: Backend, policy: Policy) -> None:
    worker = backend.join(policy=policy)
    worker.commit(labelled_push("1", "key", rank=-7, slot="b.example"))
    lease = refuse_one(worker)

    depth = worker.depth()
    early = worker.lease()
    backend.clock.advance(DELAY_S)
    (again,) = worker.lease()

    assert (depth.pending, depth.delayed, depth.leased, depth.done) == (0, 1, 0, 0)
    assert early == []
    assert again._replace(refusals=0, start_in_ms=0, late_ms=None) == lease._replace(start_in_ms=0, late_ms=None)
    assert again.refusals == 1


def test_a_worker_alone_gets_it_again_and_the_refusals_are_counted(backend: Backend, policy: Policy) -> None:
    worker = backend.join(policy=policy)
    worker.commit(push("1"))
    found = []
    for _ in range(3):
        found += shown([refuse_one(worker)])
        backend.clock.advance(DELAY_S)

    assert found + shown(worker.lease()) == [("1", 1, 0), ("1", 1, 1), ("1", 1, 2), ("1", 1, 3)]


def test_others_get_it_and_who_has_refused_it_does_not(backend: Backend, policy: Policy) -> None:
    old, new = backend.join("old", policy=policy), backend.join("new", policy=policy)
    old.commit(push("1"), push("2"))
    refuse_one(old)
    backend.clock.advance(DELAY_S)

    assert shown(old.lease(9)) == [("1", 1, 0)]
    assert (old.depth().pending, old.depth().delayed) == (0, 1)
    backend.clock.advance(ASIDE_S)
    (lease,) = new.lease(9)
    assert shown([lease]) == [("2", 1, 0)]
    new.commit(ack(lease))
    assert (new.depth().done, new.depth().leased) == (1, 1)


def test_a_request_returns_to_those_that_refused_it_when_no_other_worker_is_left(backend: Backend) -> None:
    old, new = backend.join("old"), backend.join("new")
    old.commit(push("1"))
    refuse_one(old)
    backend.clock.advance(DELAY_S)
    held_back = old.lease()
    new.leave()
    backend.clock.advance(ASIDE_S)

    assert held_back == []
    assert shown(old.lease()) == [("1", 1, 1)]


def test_two_that_can_not_read_it_get_it_in_turn(backend: Backend) -> None:
    workers = [backend.join("w1"), backend.join("w2")]
    workers[0].commit(push("1"))
    found = []
    for worker in (*workers, *workers, *workers):
        found += shown([refuse_one(worker)])
        backend.clock.advance(DELAY_S)

    assert [refusals for _, _, refusals in found] == [0, 0, 1, 2, 3, 4]


def test_many_that_can_not_read_it_do_not_give_it_up_while_another_may(backend: Backend) -> None:
    old, new = [backend.join(f"old{number}") for number in range(5)], backend.join("new")
    old[0].commit(push("1"))
    found = []
    for worker in (*old, backend.join("started again")):
        found += shown([refuse_one(worker)])
        backend.clock.advance(DELAY_S)
        new.ask(0)

    assert found == [("1", 1, 0)] * 6
    assert old[0].lease() == []
    backend.clock.advance(ASIDE_S)
    assert shown(new.lease()) == [("1", 1, 0)]


def test_many_that_are_set_aside_are_so_in_several_exchanges(backend: Backend) -> None:
    old, _ = backend.join("old"), backend.join("new")
    old.commit(*(push(str(number)) for number in range(150)))
    old.commit(*map(refuse, old.lease(150)))
    backend.clock.advance(DELAY_S)

    while old.ask(0).depth.delayed:
        """So many are not put back at once."""
    first, last = old.ask(9, is_fair=False), old.ask(9, is_fair=False)

    assert (first.leases, first.next_due_s, first.depth.pending, first.depth.delayed) == ([], 0.0, 50, 100)
    assert (last.leases, last.next_due_s, last.depth.pending, last.depth.delayed) == ([], ASIDE_S, 0, 150)


@pytest.mark.parametrize("end", ["ack", "fail"])
def test_refusals_of_a_settled_request_are_forgotten(backend: Backend, end: str) -> None:
    worker = backend.join()
    worker.commit(push("1"))
    refuse_one(worker)
    backend.clock.advance(DELAY_S)
    (lease,) = worker.lease()
    worker.commit(release(lease))
    (lease,) = worker.lease()
    worker.commit(ack(lease) if end == "ack" else fail(lease))

    assert (lease.refusals, worker.depth().unfinished) == (1, 0)
    assert worker.ask(0, is_idle=True).has_ended


def test_a_late_refusal_is_void(backend: Backend) -> None:
    worker = backend.join()
    worker.commit(push("1"))
    (lease,) = worker.lease()
    backend.clock.advance(TTL_S)
    worker.ask(0)

    assert list(worker.commit(refuse(lease)).void) == [0]
    assert worker.depth().pending == 1
