"""A worker claims a request in progress, and gets the lease unless another worker has it or it is done."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from scrapy_prioqueue.frontier.base import Batch, Claim, Committed, Demand, Depth, Lease, Push
from tests.contract.backends import TTL_S, Backend, Worker, ack, fail, push, release


def claim(lease: Lease, **fields: object) -> Claim:
    """Return the claim to a lease, with the fingerprint of its request if that is given."""
    return Claim(
        Push(lease.rank, lease.slot, lease.payload, **fields),  # type: ignore[arg-type]
        lease.lease_id,
        lease.attempt,
    )


def granted(committed: Committed, push: Push, at: int = 0) -> Lease:
    """Return the lease that a claim has brought."""
    lease_id, attempt = committed.claimed[at]
    return Lease(lease_id, attempt, push.rank, push.slot, push.payload)


def is_refused(committed: Committed) -> bool:
    """Return whether nothing was granted."""
    return not committed.claimed


def lost(backend: Backend, worker: Worker) -> Lease:
    """Let a worker lease the only request and be silent until that has expired and is pending again."""
    (lease,) = worker.lease()
    backend.clock.advance(TTL_S)
    assert worker.ask().reaped == 1
    return lease


# Requests that the frontier doesn't know


def test_unknown_request_is_stored_and_leased_to_the_claiming_worker(backend: Backend) -> None:
    worker = backend.join()
    request = push("found while the server was away", 3, "b.example", fingerprint=b"fingerprint 1")

    committed = worker.commit(Claim(request))

    assert worker.depth() == Depth(accepted=1, leased=1, workers=1)
    assert granted(committed, request).attempt == 1
    assert not worker.commit(ack(granted(committed, request))).void
    assert worker.depth() == Depth(accepted=1, done=1, workers=1)


def test_claimed_request_is_seen_by_all(backend: Backend) -> None:
    first, second = backend.join("w1"), backend.join("w2")
    first.commit(Claim(push("1", fingerprint=b"fingerprint 1", start_mark=b"mark 1")))

    committed = second.commit(push("1", start_mark=b"mark 1"), push("1", fingerprint=b"fingerprint 1"))

    assert (list(committed.repeated_starts), list(committed.duplicates)) == ([0], [1])


def test_request_that_another_worker_has_pushed_meanwhile_is_a_duplicate_and_not_granted(backend: Backend) -> None:
    first, second = backend.join("w1"), backend.join("w2")
    first.commit(push("1", fingerprint=b"fingerprint 1"))

    committed = second.commit(Claim(push("1", fingerprint=b"fingerprint 1")))

    assert is_refused(committed)
    assert list(committed.duplicates) == [0]
    assert second.depth() == Depth(accepted=1, pending=1, workers=2)


def test_start_request_that_another_worker_has_pushed_meanwhile_is_repeated_and_not_granted(backend: Backend) -> None:
    first, second = backend.join("w1"), backend.join("w2")
    first.commit(push("1", start_mark=b"mark 1"))

    committed = second.commit(Claim(push("1", start_mark=b"mark 1", fingerprint=b"fingerprint 1")))

    assert is_refused(committed)
    assert (list(committed.repeated_starts), list(committed.duplicates)) == ([0], [])
    assert not second.commit(push("1", fingerprint=b"fingerprint 1")).duplicates


def test_pushes_and_claims_of_a_batch_are_carried_out_in_their_order(backend: Backend) -> None:
    worker = backend.join()

    committed = worker.commit(
        push("1", fingerprint=b"fingerprint 1"),
        Claim(push("2", fingerprint=b"fingerprint 2")),
        Claim(push("1", fingerprint=b"fingerprint 1")),
        push("2", fingerprint=b"fingerprint 2"),
        Claim(push("3")),
    )

    assert list(committed.duplicates) == [2, 3]
    assert sorted(committed.claimed) == [1, 4]
    assert worker.lease_payloads() == ["1"]
    assert worker.depth().leased == 3


@pytest.mark.parametrize("order, expected", [("lifo", ["new", "claimed", "old"]), ("fifo", ["old", "claimed", "new"])])
def test_claimed_request_that_is_released_has_the_place_of_one_pushed_then(
    backend: Backend, order: str, expected: Sequence[str]
) -> None:
    worker = backend.join(order=order)
    request = push("claimed")
    committed = worker.commit(push("old"), Claim(request), push("new"))

    worker.commit(release(granted(committed, request, 1)))

    assert worker.lease_payloads() == expected


def test_claimed_start_request_that_is_released_comes_after_others_of_its_rank(backend: Backend) -> None:
    worker = backend.join(order="fifo")
    request = push("start", is_start=True)
    committed = worker.commit(Claim(request), push("link"))

    worker.commit(release(granted(committed, request)))

    assert worker.lease_payloads() == ["link", "start"]


def test_claimed_request_expires_as_any_other(backend: Backend) -> None:
    worker = backend.join()
    committed = worker.commit(Claim(push("1")))
    backend.clock.advance(TTL_S - 1)
    assert worker.renew(granted(committed, push("1"))) == []
    backend.clock.advance(TTL_S - 1)
    assert worker.ask().reaped == 0

    backend.clock.advance(1)
    answer = worker.ask(1)

    assert answer.reaped == 1
    assert [(lease.payload, lease.attempt) for lease in answer.leases] == [(b"1", 2)]


def test_claim_opens_a_crawl_that_has_ended_again(backend: Backend) -> None:
    worker = backend.join()
    assert worker.ask(is_idle=True).has_ended

    request = push("1")
    committed = worker.commit(Claim(request))

    assert not worker.ask(is_idle=True).has_ended
    worker.commit(ack(granted(committed, request)))
    assert worker.ask(is_idle=True).has_ended


# Requests that it knows


def test_pending_request_is_taken_out_of_its_queue_and_its_attempt_counts(backend: Backend) -> None:
    worker = backend.join()
    worker.commit(push("1", 2, "b.example", fingerprint=b"fingerprint 1"))
    lease = lost(backend, worker)

    committed = worker.commit(claim(lease, fingerprint=b"fingerprint 1"))

    assert committed.claimed == {0: (lease.lease_id, 2)}
    assert not committed.duplicates
    assert worker.depth() == Depth(accepted=1, leased=1, workers=1)
    assert worker.lease() == []
    assert not worker.commit(ack(granted(committed, push("1")))).void


def test_pending_request_whose_lease_the_server_never_heard_of_is_taken_at_its_first_attempt(backend: Backend) -> None:
    worker = backend.join()
    worker.commit(push("1"))
    (lease,) = worker.lease()
    worker.commit(release(lease))

    committed = worker.commit(claim(lease))

    assert committed.claimed == {0: (lease.lease_id, 1)}
    assert worker.depth() == Depth(accepted=1, leased=1, workers=1)


def test_suspect_is_taken_out_of_the_suspects(backend: Backend) -> None:
    worker = backend.join(max_attempts=4)
    worker.commit(push("1"))
    lost(backend, worker)
    lease = lost(backend, worker)
    assert lease.attempt == 2

    committed = worker.commit(claim(lease))

    assert committed.claimed == {0: (lease.lease_id, 3)}
    assert worker.lease() == []
    assert worker.depth() == Depth(accepted=1, leased=1, workers=1)
    worker.commit(release(granted(committed, push("1"))))
    assert [lease.attempt for lease in worker.lease()] == [3]


def test_request_that_another_worker_has_lost_more_often_since_is_not_granted(backend: Backend) -> None:
    first, second = backend.join("w1"), backend.join("w2")
    first.commit(push("1", fingerprint=b"fingerprint 1"))
    lease = lost(backend, first)
    lost(backend, second)

    committed = first.commit(claim(lease, fingerprint=b"fingerprint 1"))

    assert is_refused(committed)
    assert first.depth().pending == 1


def test_request_that_is_leased_to_another_worker_is_not_granted(backend: Backend) -> None:
    first, second = backend.join("w1"), backend.join("w2")
    first.commit(push("1", fingerprint=b"fingerprint 1"))
    lease = lost(backend, first)
    (theirs,) = second.lease()

    committed = first.commit(claim(lease, fingerprint=b"fingerprint 1"))

    assert is_refused(committed)
    assert second.renew(theirs) == []
    assert first.depth() == Depth(accepted=1, leased=1, workers=2)


def test_request_that_is_leased_to_who_claims_it_is_granted_again_and_renewed(backend: Backend) -> None:
    worker = backend.join()
    worker.commit(push("1", fingerprint=b"fingerprint 1"))
    (lease,) = worker.lease()
    backend.clock.advance(TTL_S - 1)

    committed = worker.commit(claim(lease, fingerprint=b"fingerprint 1"))

    assert committed.claimed == {0: (lease.lease_id, 1)}
    backend.clock.advance(TTL_S - 1)
    assert worker.ask().reaped == 0
    assert worker.depth() == Depth(accepted=1, leased=1, workers=1)


@pytest.mark.parametrize("end", [ack, fail], ids=["done", "dead"])
def test_request_that_is_done_or_dead_is_not_granted(backend: Backend, end: type) -> None:
    worker = backend.join()
    worker.commit(push("1", fingerprint=b"fingerprint 1"))
    (lease,) = worker.lease()
    worker.commit(end(lease))

    committed = worker.commit(claim(lease, fingerprint=b"fingerprint 1"))

    assert is_refused(committed)
    assert list(committed.duplicates) == [0]
    assert worker.depth().accepted == 1
    assert worker.depth().leased == 0


@pytest.mark.parametrize("is_leased", [False, True])
def test_id_that_belongs_to_another_request_by_now_does_no_harm(backend: Backend, is_leased: bool) -> None:
    first, second = backend.join("w1"), backend.join("w2")
    second.commit(push("theirs"))
    (theirs,) = second.lease()
    if not is_leased:
        second.commit(release(theirs))

    request = push("mine", fingerprint=b"fingerprint 1")
    committed = first.commit(Claim(request, theirs.lease_id, theirs.attempt))

    mine = granted(committed, request)
    assert mine.lease_id != theirs.lease_id
    assert first.depth() == Depth(accepted=2, pending=1 - is_leased, leased=1 + is_leased, workers=2)
    assert list(first.commit(ack(mine)).void) == []


# Order and turns


def test_slot_whose_head_is_claimed_has_the_rank_of_its_next_request(backend: Backend) -> None:
    worker = backend.join(order="fifo")
    worker.commit(push("a0", 0, "a.example"))
    head = lost(backend, worker)
    worker.commit(push("a9", 9, "a.example"), push("b5", 5, "b.example"))

    worker.commit(claim(head))

    assert worker.lease_payloads() == ["b5", "a9"]


def test_slot_whose_last_request_is_claimed_returns_at_the_end_of_the_turns(backend: Backend) -> None:
    worker = backend.join(order="fifo")
    worker.commit(push("a1", slot="a.example"))
    only = lost(backend, worker)
    worker.commit(push("b1", slot="b.example"))

    worker.commit(claim(only))
    assert worker.lease_payloads(1) == ["b1"]
    worker.commit(push("b2", slot="b.example"), push("a2", slot="a.example"))

    assert worker.lease_payloads() == ["b2", "a2"]


def test_claim_from_the_middle_of_a_queue_leaves_slot_and_turns_as_they_were(backend: Backend) -> None:
    worker = backend.join(order="fifo")
    worker.commit(push("a5", 5, "a.example"))
    middle = lost(backend, worker)
    worker.commit(*(push(f"a{rank}", rank, "a.example") for rank in (0, 9)), push("b0", 0, "b.example"))

    worker.commit(claim(middle))

    assert worker.lease_payloads() == ["a0", "b0", "a9"]


# Batches that come again


def test_repeated_batch_returns_its_claims_again_and_applies_nothing(backend: Backend) -> None:
    worker = backend.join()
    batch = Batch(1, [push("0"), Claim(push("1")), Claim(push("2"))])

    first = worker.exchange(batch, demand=Demand(0))
    second = worker.exchange(batch, demand=Demand(0))

    assert sorted(first.committed[0].claimed) == [1, 2]
    assert second.committed[0].claimed == first.committed[0].claimed
    assert second.depth == first.depth == Depth(accepted=3, pending=1, leased=2, workers=1)


def test_claims_of_the_last_batch_only_are_reported_again(backend: Backend) -> None:
    worker = backend.join()
    claims, next_batch = Batch(1, [Claim(push("1"))]), Batch(2, [push("2")])
    worker.exchange(claims, demand=None)
    worker.exchange(next_batch, demand=None)

    answer = worker.exchange(claims, next_batch, demand=None)

    assert [dict(committed.claimed) for committed in answer.committed] == [{}, {}]


def test_next_session_of_a_worker_gets_no_claims_of_the_last(backend: Backend) -> None:
    worker = backend.join()
    worker.commit(Claim(push("1")))
    joined = worker.join()
    assert joined.recovered == 1

    committed = worker.commit(push("2"))

    assert is_refused(committed)
