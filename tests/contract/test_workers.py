"""Several workers on one frontier: which count as alive, fair shares, and names of any kind."""

from __future__ import annotations

import pytest

from scrapy_prioqueue.errors import NotPermitted
from scrapy_prioqueue.frontier.base import Demand
from tests.contract.backends import TTL_S, Backend, ack, push


def test_workers_count_as_alive_from_their_join_to_their_leave(backend: Backend) -> None:
    first, second = backend.join("w1"), backend.join("w2")
    both = first.depth().workers

    second.leave()

    assert (both, first.depth().workers) == (2, 1)


def test_a_silent_worker_counts_as_alive_for_a_leases_time_to_live(backend: Backend) -> None:
    worker, _silent = backend.join("w1"), backend.join("w2")

    backend.clock.advance(TTL_S)
    before = worker.depth().workers
    backend.clock.advance(0.001)

    assert (before, worker.depth().workers) == (2, 1)


def test_a_worker_is_counted_once_however_often_it_joins(backend: Backend) -> None:
    worker = backend.join("w1")
    worker.join()

    assert backend.join("w1").depth().workers == 1


@pytest.mark.parametrize(("pending", "share"), [(1, 1), (3, 1), (4, 2), (10, 4), (300, 5)])
def test_a_fair_demand_takes_no_more_than_an_equal_share_of_what_is_pending(
    backend: Backend, pending: int, share: int
) -> None:
    worker, *_others = (backend.join(name) for name in ("w1", "w2", "w3"))
    worker.commit(*(push(str(number)) for number in range(pending)))

    assert len(worker.lease(5, is_fair=True)) == share


def test_an_unfair_demand_takes_all_it_can(backend: Backend) -> None:
    worker, *_others = (backend.join(name) for name in ("w1", "w2", "w3"))
    worker.commit(*(push(str(number)) for number in range(4)))

    assert len(worker.lease(5, is_fair=False)) == 4


def test_workers_that_are_not_alive_have_no_share(backend: Backend) -> None:
    worker, left, _silent = (backend.join(name) for name in ("w1", "w2", "w3"))
    worker.commit(*(push(str(number)) for number in range(4)))
    left.leave()
    backend.clock.advance(TTL_S + 1)

    assert len(worker.lease(4, is_fair=True)) == 4


def test_reaped_requests_count_as_pending(backend: Backend) -> None:
    worker, other = backend.join("w1"), backend.join("w2")
    worker.commit(*(push(str(number)) for number in range(6)))
    other.lease(6)
    backend.clock.advance(TTL_S)
    other.renew()

    assert len(worker.lease(6, is_fair=True)) == 3


def test_demands_are_fair_by_default(backend: Backend) -> None:
    worker, _other = backend.join("w1"), backend.join("w2")
    worker.commit(*(push(str(number)) for number in range(6)))

    assert len(worker.exchange(demand=Demand(6)).leases) == 3


@pytest.mark.parametrize("name", ["host:1234", "a b", "{w}", "rechner-ä", "…", "w" * 300])
def test_any_text_can_be_the_name_of_a_worker(backend: Backend, name: str) -> None:
    worker = backend.join(name, max_attempts=1, worker_info={"host": name, "pid": "12"})
    worker.commit(push("1"), push("2", 1))
    (lease,) = worker.lease()

    assert not worker.commit(ack(lease)).void
    worker.lease()
    assert worker.join().recovered == 1
    assert [letter.worker for letter in worker.dead_letters()] == [name]


def test_a_worker_whose_name_begins_like_anothers_is_another(backend: Backend) -> None:
    long, short = backend.join("w10"), backend.join("w1")
    long.commit(push("1"))
    (lease,) = long.lease()

    assert short.join().recovered == 0
    assert list(short.commit(ack(lease)).void) == [0]
    assert not long.commit(ack(lease)).void


def test_a_process_replaced_under_the_same_id_is_rejected(backend: Backend) -> None:
    followed = backend.join("w1")
    followed.commit(push("1"))
    backend.join("w1")

    with pytest.raises(NotPermitted, match="w1"):
        followed.ask(1)
    with pytest.raises(NotPermitted, match="w1"):
        followed.commit(push("2"))


def test_a_process_that_another_has_followed_under_the_same_id_changes_nothing(backend: Backend) -> None:
    followed = backend.join("w1")
    followed.commit(push("1"))
    worker = backend.join("w1")
    (lease,) = worker.lease()

    assert list(followed.renew(lease)) == [lease.lease_id]
    assert followed.reconcile() == 0
    followed.leave()

    assert (worker.depth().workers, worker.depth().leased) == (1, 1)
    assert not worker.commit(ack(lease)).void


def test_frontiers_of_different_names_share_nothing(backend: Backend, frontier_name: str) -> None:
    here, there = backend.join("w1"), backend.join("w1", name=f"{frontier_name}:queue")
    here.commit(push("1", fingerprint=b"fingerprint 1"))
    here.lease()

    assert not there.commit(push("1", fingerprint=b"fingerprint 1")).duplicates
    assert there.join().recovered == 0
    assert (here.depth().leased, there.depth().pending) == (1, 1)


def test_closing_twice_is_safe(backend: Backend) -> None:
    worker = backend.join()
    worker.leave()

    worker.close()
    worker.close()


def test_a_frontier_says_where_its_requests_are_kept(backend: Backend) -> None:
    frontier = backend.frontier()

    assert frontier.address
    assert isinstance(frontier.is_local, bool)
