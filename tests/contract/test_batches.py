"""Batches are applied once, completely and in order; duplicates and repeated start requests are recognised."""

from __future__ import annotations

from dataclasses import astuple

from scrapy_prioqueue.errors import PrioQueueError
from scrapy_prioqueue.frontier.base import Batch, Demand
from tests.contract.backends import Backend, ack, fail, push, release


def test_a_second_push_of_a_fingerprint_is_a_duplicate(backend: Backend) -> None:
    worker = backend.join()
    worker.commit(push("1", fingerprint=b"fingerprint 1"))

    committed = worker.commit(
        push("2", fingerprint=b"fingerprint 2"), push("1 again", 5, "other.example", fingerprint=b"fingerprint 1")
    )

    assert list(committed.duplicates) == [1]
    assert sorted(worker.lease_payloads()) == ["1", "2"]


def test_duplicates_within_a_batch_are_found(backend: Backend) -> None:
    worker = backend.join()

    committed = worker.commit(*(push(str(number), fingerprint=b"fingerprint %d" % (number % 2)) for number in range(5)))

    assert list(committed.duplicates) == [2, 3, 4]


def test_duplicates_are_found_across_workers(backend: Backend) -> None:
    first, second = backend.join("w1"), backend.join("w2")
    first.commit(push("1", fingerprint=b"fingerprint 1"))

    assert list(second.commit(push("1", fingerprint=b"fingerprint 1")).duplicates) == [0]


def test_asking_finds_duplicates_and_marks_nothing_as_seen(backend: Backend) -> None:
    worker = backend.join()
    worker.commit(push("1", fingerprint=b"fingerprint 1"), push("2"))
    asked = [push("1", fingerprint=b"fingerprint 1"), push("2"), push("3", fingerprint=b"fingerprint 3")]

    assert worker.known(*asked) == [0]
    assert worker.known(*asked) == [0]
    assert list(worker.commit(*asked).duplicates) == [0]


def test_a_fingerprint_stays_seen_when_its_request_is_done_or_dead(backend: Backend) -> None:
    worker = backend.join()
    worker.commit(push("1", 1, fingerprint=b"fingerprint 1"), push("2", 2, fingerprint=b"fingerprint 2"))
    one, two = worker.lease(2)
    worker.commit(ack(one), fail(two))

    committed = worker.commit(push("1", fingerprint=b"fingerprint 1"), push("2", fingerprint=b"fingerprint 2"))

    assert list(committed.duplicates) == [0, 1]


def test_a_request_without_a_fingerprint_is_never_a_duplicate(backend: Backend) -> None:
    worker = backend.join()

    assert not worker.commit(push("1"), push("1")).duplicates

    assert worker.lease_payloads() == ["1", "1"]


def test_fingerprints_that_differ_in_one_bit_are_different(backend: Backend) -> None:
    worker = backend.join()
    fingerprints = [(1 << bit).to_bytes(20, "big") for bit in range(160)]

    committed = worker.commit(*(push("", fingerprint=fingerprint) for fingerprint in fingerprints))

    assert not committed.duplicates
    assert worker.depth().accepted == 160


def test_a_start_mark_is_pushed_once_per_crawl_whoever_pushes_it(backend: Backend) -> None:
    first, second = backend.join("w1"), backend.join("w2")
    first.commit(push("start", is_start=True, start_mark=b"mark 1"))

    committed = second.commit(
        push("start", is_start=True, start_mark=b"mark 1"), push("next", is_start=True, start_mark=b"mark 2")
    )

    assert list(committed.repeated_starts) == [0]
    assert not committed.duplicates
    assert first.lease_payloads() == ["start", "next"]


def test_start_marks_are_looked_at_before_fingerprints(backend: Backend) -> None:
    worker = backend.join()
    worker.commit(push("start", start_mark=b"mark 1"))

    repeated = worker.commit(push("start", start_mark=b"mark 1", fingerprint=b"fingerprint 1"))
    fresh = worker.commit(push("link", fingerprint=b"fingerprint 1"))

    assert (list(repeated.repeated_starts), list(repeated.duplicates)) == ([0], [])
    assert not fresh.duplicates


def test_a_start_request_that_is_a_duplicate_has_its_mark_set(backend: Backend) -> None:
    worker = backend.join()
    worker.commit(push("link", fingerprint=b"fingerprint 1"))

    first = worker.commit(push("start", start_mark=b"mark 1", fingerprint=b"fingerprint 1"))
    second = worker.commit(push("start", start_mark=b"mark 1", fingerprint=b"fingerprint 2"))

    assert (list(first.repeated_starts), list(first.duplicates)) == ([], [0])
    assert (list(second.repeated_starts), list(second.duplicates)) == ([0], [])


def test_start_marks_and_fingerprints_are_different_things(backend: Backend) -> None:
    worker = backend.join()

    committed = worker.commit(push("1", fingerprint=b"the same bytes"), push("2", start_mark=b"the same bytes"))

    assert (list(committed.duplicates), list(committed.repeated_starts)) == ([], [])


def test_a_batch_that_comes_again_is_answered_but_not_applied(backend: Backend) -> None:
    worker = backend.join()
    worker.commit(push("parent"))
    (lease,) = worker.lease()
    batch = Batch(2, [push("child", fingerprint=b"fingerprint 1"), push("unfiltered"), ack(lease), ack(lease)])

    first = worker.exchange(batch, demand=Demand(0))
    second = worker.exchange(batch, demand=Demand(0))

    assert list(first.committed[0].void) == [3]
    (committed,) = second.committed
    assert (committed.number, len(committed.duplicates), len(committed.void)) == (2, 0, 0)
    assert second.rejection is None
    assert second.depth == first.depth


def test_a_batch_from_long_ago_is_answered_but_not_applied(backend: Backend) -> None:
    worker = backend.join()
    for number in range(1, 12):
        worker.exchange(Batch(number, [push(str(number))]), demand=None)

    answer = worker.exchange(Batch(2, [push("again")]), Batch(12, [push("new")]), demand=Demand(0))

    assert [committed.number for committed in answer.committed] == [2, 12]
    assert answer.depth.accepted == 12


def test_several_batches_in_one_exchange_are_applied_in_order(backend: Backend) -> None:
    worker = backend.join()

    answer = worker.exchange(
        Batch(1, [push("1", fingerprint=b"fingerprint 1")]),
        Batch(2, []),
        Batch(3, [push("1", fingerprint=b"fingerprint 1"), push("3")]),
        demand=Demand(5, is_fair=False),
    )

    assert [(committed.number, list(committed.duplicates)) for committed in answer.committed] == [
        (1, []),
        (2, []),
        (3, [0]),
    ]
    assert [lease.payload for lease in answer.leases] == [b"3", b"1"]


def test_a_batch_that_comes_too_early_is_refused_and_so_are_those_behind_it(backend: Backend) -> None:
    worker = backend.join()
    worker.commit(push("1"))

    answer = worker.exchange(
        Batch(2, [push("2")]), Batch(4, [push("4")]), Batch(5, [push("5")]), demand=Demand(9, is_fair=False)
    )

    assert [committed.number for committed in answer.committed] == [2]
    assert isinstance(answer.rejection, PrioQueueError)
    assert [lease.payload for lease in answer.leases] == [b"2", b"1"]
    assert worker.exchange(Batch(3, [push("3")]), demand=None).rejection is None


def test_each_session_of_a_worker_counts_its_batches_from_one(backend: Backend) -> None:
    worker = backend.join()
    worker.commit(push("1"))
    worker.commit(push("2"))

    worker.join()
    worker.commit(push("3"))

    assert worker.depth().accepted == 3


def test_each_worker_counts_its_own_batches(backend: Backend) -> None:
    first, second = backend.join("w1"), backend.join("w2")
    first.commit(push("1"))
    first.commit(push("2"))

    second.commit(push("3"))

    assert second.depth().accepted == 3


def test_an_exchange_of_nothing_changes_nothing(backend: Backend) -> None:
    worker = backend.join()
    worker.commit(push("1"))
    before = worker.depth()

    answer = worker.exchange(demand=None)

    assert not answer.committed
    assert not answer.leases
    assert answer.rejection is None
    assert worker.depth() == before


def test_every_request_is_counted_in_exactly_one_state_all_its_life(backend: Backend) -> None:
    worker = backend.join(max_attempts=2)
    history = [worker.depth()]

    worker.commit(*(push(str(number), number, fingerprint=b"fingerprint %d" % number) for number in range(5)))
    worker.commit(push("0", fingerprint=b"fingerprint 0"))
    history.append(worker.depth())
    leases = worker.lease(4)
    history.append(worker.depth())
    worker.commit(ack(leases[0]), release(leases[1]), fail(leases[2]))
    history.append(worker.depth())
    backend.clock.advance(10)
    history.append(worker.depth())

    counts = [astuple(depth)[:5] for depth in history]
    assert counts == [(0, 0, 0, 0, 0), (5, 5, 0, 0, 0), (5, 1, 4, 0, 0), (5, 2, 1, 1, 1), (5, 3, 0, 1, 1)]
