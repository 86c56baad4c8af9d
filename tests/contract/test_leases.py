"""Invariant 2: a request has one lease at a time, until an ack, a release, a fail or the expiry."""

from __future__ import annotations

import pytest

from scrapy_prioqueue.frontier.base import Ack, Batch, Demand, Lease, Push, Release
from tests.contract.backends import TTL_S, Backend, ack, fail, push, release

UNKNOWN = Lease(12345, 1, 0, "a.example", b"")


def test_a_lease_carries_what_was_pushed(backend: Backend) -> None:
    worker = backend.join()
    payload = bytes(range(256))
    worker.commit(Push(-7, "a.example", payload, b"fingerprint 1"))

    (lease,) = worker.lease(5)

    assert (lease.rank, lease.slot, lease.payload, lease.attempt) == (-7, "a.example", payload, 1)
    assert 0 <= lease.lease_id < 2**53


def test_an_empty_and_a_large_payload_are_returned_unchanged(backend: Backend) -> None:
    worker = backend.join()
    worker.commit(push("", 0), push("x" * 10**6, 1))

    assert [len(lease.payload) for lease in worker.lease(2)] == [0, 10**6]


def test_ids_are_not_used_twice(backend: Backend) -> None:
    worker = backend.join()
    worker.commit(*(push("", 0, slot, is_start=is_start) for slot in "ab" for is_start in (True, False)))
    leases = list(worker.lease(4))
    worker.commit(*map(ack, leases), *(push("", 0, slot) for slot in "ab"))

    leases += worker.lease(2)

    assert len({lease.lease_id for lease in leases}) == 6


def test_a_leased_request_is_not_leased_to_another_worker(backend: Backend) -> None:
    first, second = backend.join("w1"), backend.join("w2")
    first.commit(*(push(str(number), number) for number in range(10)))

    served = [worker.lease_payloads(3) for worker in (first, second, first, second)]

    assert served == [["0", "1", "2"], ["3", "4", "5"], ["6", "7", "8"], ["9"]]
    assert not first.lease(1)
    assert not second.lease(1)


def test_a_demand_of_nothing_leases_nothing(backend: Backend) -> None:
    worker = backend.join()
    worker.commit(push("1"))

    answer = worker.ask(0, is_fair=True)

    assert not answer.leases
    assert (answer.depth.pending, answer.depth.leased) == (1, 0)


def test_an_ack_ends_a_lease(backend: Backend) -> None:
    worker = backend.join()
    worker.commit(push("1"))
    (lease,) = worker.lease()

    assert not worker.commit(ack(lease)).void

    backend.clock.advance(2 * TTL_S)
    depth = worker.depth()
    assert (depth.pending, depth.leased, depth.done) == (0, 0, 1)


def test_only_the_holder_of_the_very_lease_can_end_it(backend: Backend) -> None:
    holder, other = backend.join("w1"), backend.join("w2")
    holder.commit(push("1"))
    (lease,) = holder.lease()

    assert list(other.commit(ack(lease), release(lease), fail(lease)).void) == [0, 1, 2]
    assert list(holder.commit(Ack(lease.lease_id, 2), Release(lease.lease_id, 0), ack(UNKNOWN)).void) == [0, 1, 2]

    assert not holder.commit(ack(lease)).void


def test_a_lease_can_be_ended_once(backend: Backend) -> None:
    worker = backend.join()
    worker.commit(push("1"), push("2"), push("3"))
    one, two, three = worker.lease(3)

    committed = worker.commit(ack(one), ack(one), fail(two), ack(two), release(three), ack(three))

    assert list(committed.void) == [1, 3, 5]
    depth = worker.depth()
    assert (depth.done, depth.dead, depth.pending) == (1, 1, 1)


def test_void_operations_do_not_keep_the_rest_of_the_batch_from_being_applied(backend: Backend) -> None:
    worker = backend.join()
    worker.commit(push("1"))
    (lease,) = worker.lease()

    committed = worker.commit(ack(UNKNOWN), push("2"), ack(lease))

    assert list(committed.void) == [0]
    assert (worker.depth().pending, worker.depth().done) == (1, 1)


def test_a_lease_expires_after_its_time_to_live_and_not_before(backend: Backend) -> None:
    holder, other = backend.join("w1"), backend.join("w2")
    holder.commit(push("1"))
    (lease,) = holder.lease()

    backend.clock.advance(TTL_S - 0.001)
    before = other.ask(5)
    backend.clock.advance(0.001)
    after = other.ask(5)

    assert not before.leases
    assert before.reaped == 0
    assert after.reaped == 1
    assert [(again.lease_id, again.attempt, again.payload) for again in after.leases] == [(lease.lease_id, 2, b"1")]


def test_a_worker_that_joins_returns_expired_leases_of_others(backend: Backend) -> None:
    holder, other = backend.join("w1"), backend.worker("w2")
    holder.commit(push("1"), push("2"))
    holder.lease(2)
    backend.clock.advance(TTL_S)

    joined = other.join()

    assert (joined.recovered, joined.reaped) == (0, 2)


def test_an_expired_lease_goes_back_to_its_place(backend: Backend) -> None:
    worker = backend.join()
    worker.commit(push("1"), push("2"), push("3"), push("0", -1))
    assert worker.lease_payloads(3) == ["0", "3", "2"]
    worker.commit(push("4"))

    backend.clock.advance(TTL_S)

    assert worker.lease_payloads() == ["0", "4", "3", "2", "1"]


def test_a_late_ack_of_an_expired_lease_is_void(backend: Backend) -> None:
    late, prompt = backend.join("w1"), backend.join("w2")
    late.commit(push("1"))
    (expired,) = late.lease()
    backend.clock.advance(TTL_S)
    prompt.ask(0)

    assert list(late.commit(ack(expired)).void) == [0]
    (lease,) = prompt.lease()
    assert list(late.commit(ack(expired), release(expired), fail(expired)).void) == [0, 1, 2]

    assert not prompt.commit(ack(lease)).void
    assert prompt.depth().done == 1


def test_the_late_ack_of_a_worker_that_leased_it_again_is_void(backend: Backend) -> None:
    worker = backend.join()
    worker.commit(push("1"))
    (expired,) = worker.lease()
    backend.clock.advance(TTL_S)
    (lease,) = worker.lease()

    assert list(worker.commit(ack(expired)).void) == [0]
    assert not worker.commit(ack(lease)).void


def test_an_ack_counts_until_the_lease_is_reaped(backend: Backend) -> None:
    worker = backend.join()
    worker.commit(push("1"))
    (lease,) = worker.lease()
    backend.clock.advance(2 * TTL_S)

    answer = worker.exchange(Batch(2, [ack(lease)]), demand=Demand(1))

    assert not answer.committed[0].void
    assert not answer.leases
    assert (answer.reaped, answer.depth.done) == (0, 1)


def test_an_exchange_without_a_demand_neither_reaps_nor_leases(backend: Backend) -> None:
    worker = backend.join()
    worker.commit(push("1"), push("2"))
    worker.lease()
    backend.clock.advance(TTL_S)

    answer = worker.exchange(Batch(2, [push("3")]), demand=None)

    assert not answer.leases
    assert answer.reaped == 0
    assert worker.ask(0).reaped == 1


def test_an_exchange_reaps_fifty_leases_at_most_earliest_first(backend: Backend) -> None:
    holder, reaper = backend.join("w1"), backend.join("w2")
    holder.commit(*(push("", 0) for _ in range(50)), *(push("", 1) for _ in range(25)))
    early = holder.lease(50)
    backend.clock.advance(1)
    late = holder.lease(25)
    backend.clock.advance(TTL_S + 1)

    answer = reaper.ask(0)

    assert (answer.reaped, answer.depth.leased, answer.next_due_s) == (50, 25, 0)
    assert not holder.commit(ack(late[0])).void
    assert list(holder.commit(*map(ack, early)).void) == list(range(50))
    assert [reaper.ask(0).reaped for _ in range(2)] == [24, 0]


def test_attempts_are_counted_over_expiries(backend: Backend) -> None:
    worker = backend.join(max_attempts=4)
    worker.commit(push("1"))

    attempts = []
    for _ in range(4):
        attempts += [lease.attempt for lease in worker.lease()]
        backend.clock.advance(TTL_S)

    assert attempts == [1, 2, 3, 4]


def test_a_request_lost_too_often_becomes_a_dead_letter(backend: Backend) -> None:
    first, second = backend.join("w1", max_attempts=2), backend.join("w2", max_attempts=2)
    first.commit(push("1", 3, "b.example"))
    (lease,) = first.lease()
    backend.clock.advance(TTL_S)
    second.lease()
    backend.clock.advance(TTL_S)

    answer = first.ask(5)

    assert not answer.leases
    assert answer.reaped == 1
    assert (answer.depth.pending, answer.depth.leased, answer.depth.dead) == (0, 0, 1)
    (letter,) = first.dead_letters()
    assert letter.lease_id == lease.lease_id
    assert letter.reason == "lease"
    assert letter.detail == "leased 2 times and never acked; lost by w1, w2"
    assert (letter.attempts, letter.worker, letter.rank, letter.slot) == (2, "w2", 3, "b.example")
    assert (letter.payload, letter.died_ms) == (b"1", backend.clock())


def test_a_request_may_be_lost_as_often_as_is_allowed_and_then_acked(backend: Backend) -> None:
    worker = backend.join(max_attempts=2)
    worker.commit(push("1"))
    worker.lease()
    backend.clock.advance(TTL_S)
    (lease,) = worker.lease()

    worker.commit(ack(lease))

    assert (worker.depth().done, worker.depth().dead) == (1, 0)


def test_a_release_gives_the_request_back_at_once_and_does_not_count_as_an_attempt(backend: Backend) -> None:
    first, second = backend.join("w1"), backend.join("w2")
    first.commit(push("1"))
    (lease,) = first.lease()

    first.commit(release(lease))

    (again,) = second.lease()
    assert (again.lease_id, again.attempt) == (lease.lease_id, 1)


def test_releases_never_make_a_dead_letter(backend: Backend) -> None:
    worker = backend.join(max_attempts=1)
    worker.commit(push("1"))

    for _ in range(3):
        (lease,) = worker.lease()
        worker.commit(release(lease))

    assert worker.depth().pending == 1


def test_worker_and_attempt_identify_the_holder_after_a_release(backend: Backend) -> None:
    first, second = backend.join("w1"), backend.join("w2")
    first.commit(push("1"))
    (released,) = first.lease()
    first.commit(release(released))
    (lease,) = second.lease()

    assert (released.lease_id, released.attempt) == (lease.lease_id, lease.attempt)
    assert list(first.commit(ack(released)).void) == [0]
    assert not second.commit(ack(lease)).void


def test_a_failure_makes_a_dead_letter_with_its_reason(backend: Backend) -> None:
    worker = backend.join("w1")
    worker.commit(push("1", 2, "b.example"))
    (lease,) = worker.lease()
    backend.clock.advance(1.5)

    worker.commit(fail(lease, "decode", "no callback named 'parse_ä'"))

    (letter,) = worker.dead_letters()
    assert (letter.lease_id, letter.reason, letter.detail) == (lease.lease_id, "decode", "no callback named 'parse_ä'")
    assert (letter.attempts, letter.rank, letter.slot, letter.worker) == (1, 2, "b.example", "w1")
    assert (letter.payload, letter.died_ms) == (b"1", backend.clock())
    assert worker.depth().dead == 1


def test_a_frontier_keeps_all_its_dead_letters(backend: Backend) -> None:
    worker = backend.join()
    for number in range(5):
        worker.commit(push(str(number)))
        worker.commit(*map(fail, worker.lease()))
        backend.clock.advance(1)

    assert [letter.payload for letter in worker.dead_letters()] == [b"4", b"3", b"2", b"1", b"0"]


def test_a_renewed_lease_expires_later(backend: Backend) -> None:
    worker = backend.join()
    worker.commit(push("1"), push("2", 1))
    kept, lost = worker.lease(2)
    backend.clock.advance(TTL_S - 1)

    assert list(worker.renew(kept)) == []

    backend.clock.advance(1)
    assert worker.lease_payloads() == ["2"]
    backend.clock.advance(TTL_S - 2)
    assert worker.lease_payloads() == []
    backend.clock.advance(1)
    assert worker.lease_payloads() == ["1"]


def test_an_expired_lease_can_be_renewed_until_it_is_reaped(backend: Backend) -> None:
    worker = backend.join()
    worker.commit(push("1"))
    (lease,) = worker.lease()
    backend.clock.advance(2 * TTL_S)

    assert list(worker.renew(lease)) == []

    assert worker.ask(1).reaped == 0
    assert not worker.commit(ack(lease)).void


def test_renewing_returns_the_leases_that_were_lost(backend: Backend) -> None:
    worker, other = backend.join("w1"), backend.join("w2")
    worker.commit(*(push(str(number), number) for number in range(4)))
    held, acked, expired, mine = worker.lease(4)
    worker.commit(ack(acked))
    backend.clock.advance(TTL_S / 2)
    worker.renew(held, mine)
    backend.clock.advance(TTL_S / 2)
    (taken,) = other.lease()

    assert taken.lease_id == expired.lease_id
    assert list(worker.renew(held, acked, expired, mine, UNKNOWN)) == [
        acked.lease_id,
        expired.lease_id,
        UNKNOWN.lease_id,
    ]


def test_renewing_the_lease_of_another_does_not_extend_it(backend: Backend) -> None:
    holder, other = backend.join("w1"), backend.join("w2")
    holder.commit(push("1"))
    (lease,) = holder.lease()
    backend.clock.advance(TTL_S - 1)

    assert list(other.renew(lease)) == [lease.lease_id]

    backend.clock.advance(1)
    assert other.lease_payloads() == ["1"]


def test_reconciling_releases_what_this_worker_does_not_know_of(backend: Backend) -> None:
    worker, other = backend.join("w1"), backend.join("w2")
    worker.commit(*(push(str(number), number) for number in range(6)))
    known = worker.lease(2)
    worker.lease(3)
    elsewhere = other.lease(1)

    assert worker.reconcile(*known) == 3

    again = other.lease(9)
    assert [(lease.payload, lease.attempt) for lease in again] == [(b"2", 1), (b"3", 1), (b"4", 1)]
    assert not worker.commit(*map(ack, known)).void
    assert not other.commit(*map(ack, elsewhere)).void


def test_reconciling_releases_a_lease_known_by_another_attempt_only(backend: Backend) -> None:
    worker = backend.join()
    worker.commit(push("1"))
    (old,) = worker.lease()
    backend.clock.advance(TTL_S)
    worker.lease()

    assert worker.reconcile(old) == 1

    assert worker.depth().pending == 1


def test_leases_are_those_of_this_worker_with_their_attempts(backend: Backend) -> None:
    worker, other = backend.join("w1"), backend.join("w2")
    worker.commit(push("1"), push("2"), push("3"))
    (again,) = worker.lease(1)
    worker.commit(ack(again), push("4"))
    other.lease(1)
    held = worker.lease(1)
    backend.clock.advance(TTL_S)
    (expired,) = worker.lease(1)

    assert list(worker.leases()) == [(expired.lease_id, expired.attempt)]
    assert held and list(other.leases()) == []


def test_reconciling_with_all_that_is_held_gives_nothing_back(backend: Backend) -> None:
    worker = backend.join()
    worker.commit(push("1"), push("2"))
    leases = worker.lease(2)

    assert worker.reconcile(*leases) == 0

    assert not worker.commit(*map(ack, leases)).void


def test_the_next_expiry_is_that_of_the_earliest_lease(backend: Backend) -> None:
    first, second = backend.join("w1"), backend.join("w2")
    first.commit(push("1"), push("2", 1))
    before = first.ask().next_due_s
    (earliest,) = first.lease()
    backend.clock.advance(4)
    (latest,) = second.lease()

    assert before is None
    assert second.ask().next_due_s == pytest.approx(TTL_S - 4)
    first.commit(ack(earliest))
    assert first.ask().next_due_s == pytest.approx(TTL_S)
    second.commit(ack(latest))
    assert first.ask().next_due_s is None


def test_any_number_of_leases_is_renewed(backend: Backend) -> None:
    worker = backend.join("w1")
    worker.commit(*(push(str(number)) for number in range(1100)))
    leases = worker.lease(1100)
    worker.commit(ack(leases[0]), ack(leases[-1]))
    backend.clock.advance(TTL_S / 2)

    assert worker.renew(*leases) == [leases[0].lease_id, leases[-1].lease_id]

    backend.clock.advance(TTL_S / 2)
    assert worker.ask().reaped == 0


def test_leases_that_a_worker_has_left_behind_are_released_when_it_comes_back(backend: Backend) -> None:
    worker = backend.join("w1")
    backend.join("w2")
    worker.commit(push("1"), push("2"))
    worker.commit(ack(worker.lease(2)[0]))
    worker.leave()

    assert worker.join().recovered == 1
