"""After an outage nothing is leased and no lease expires until all workers have reported."""

from __future__ import annotations

from scrapy_prioqueue.frontier.base import Claim, Demand, Exchanged
from tests.contract.backends import TTL_S, Backend, Worker, ack, push, text_of
from tests.contract.test_claims import claim


def ask(worker: Worker, limit: int = 0, *, away_s: float = 0.0) -> Exchanged:
    return worker.exchange(demand=Demand(limit, is_fair=False, away_ms=round(away_s * 1000)))


def test_the_living_are_listed(backend: Backend) -> None:
    first, second = backend.join("w1"), backend.join("w2")
    assert sorted(first.run(first.frontier.workers())) == ["w1", "w2"]

    backend.clock.advance(TTL_S + 1)
    first.ask()
    assert list(first.run(first.frontier.workers())) == ["w1"]
    second.ask()
    second.leave()
    assert list(first.run(first.frontier.workers())) == ["w1"]


def test_pending_requests_of_a_slot_are_read_piece_by_piece_and_stay(backend: Backend) -> None:
    worker = backend.join(order="fifo")
    worker.commit(*(push(str(number), 9 - number) for number in range(5)), push("other", slot="b.example"))

    pieces = [worker.run(worker.frontier.pending("a.example", first, 2)) for first in (0, 2, 4, 6)]

    assert [[text_of(lease.payload) for lease in piece] for piece in pieces] == [["4", "3"], ["2", "1"], ["0"], []]
    assert {(lease.slot, lease.attempt) for piece in pieces for lease in piece} == {("a.example", 0)}
    assert worker.depth().pending == 6


def test_requests_read_from_a_queue_can_be_claimed(backend: Backend) -> None:
    worker = backend.join()
    worker.commit(push("1", 3, fingerprint=b"fingerprint 1"))
    assert not worker.commit(Claim(push("1", 3, fingerprint=b"fingerprint 1"))).claimed

    (found,) = worker.run(worker.frontier.pending("a.example", 0, 10))
    committed = worker.commit(claim(found._replace(attempt=1), fingerprint=b"fingerprint 1"))

    assert committed.claimed == {0: (found.lease_id, 1)}
    assert worker.depth().leased == 1


def test_nothing_is_leased_until_all_are_back(backend: Backend) -> None:
    first, second, third = backend.join("w1"), backend.join("w2"), backend.join("w3")
    first.commit(push("1"), push("2"))
    backend.clock.advance(5)

    answer = ask(first, 2, away_s=5)
    assert (list(answer.leases), answer.next_due_s) == ([], TTL_S)
    backend.clock.advance(1)
    # A worker that has nothing to tell gets nothing either.
    assert not ask(second, 2).leases
    assert not ask(third, 2, away_s=6).leases
    assert not ask(first, 2).leases
    # The last one is through with it.
    assert ask(third, 2).leases


def test_workers_that_do_not_return_are_awaited_for_some_seconds(backend: Backend) -> None:
    first, _ = backend.join("w1"), backend.join("w2")
    first.commit(push("1"))
    backend.clock.advance(5)
    ask(first, away_s=5)
    backend.clock.advance(TTL_S - 1)
    assert not ask(first, 1).leases

    backend.clock.advance(1)

    assert ask(first, 1).leases


def test_workers_that_have_left_are_not_awaited(backend: Backend) -> None:
    first, second = backend.join("w1"), backend.join("w2")
    first.commit(push("1"))
    backend.clock.advance(5)
    ask(first, away_s=5)
    second.leave()

    assert ask(first, 1).leases


def test_worker_that_was_cut_off_alone_waits_for_no_other(backend: Backend) -> None:
    first, second = backend.join("w1"), backend.join("w2")
    first.commit(push("1"))
    backend.clock.advance(5)
    second.ask()
    backend.clock.advance(1)

    assert not ask(first, 1, away_s=6).leases
    assert ask(first, 1).leases


def test_leases_that_expired_in_an_outage_are_renewed_and_acked_by_their_workers(backend: Backend) -> None:
    first, second = backend.join("w1"), backend.join("w2")
    first.commit(push("1"))
    (lease,) = first.lease()
    backend.clock.advance(2 * TTL_S)

    # The worker is too silent to be awaited, but lived when the outage began.
    assert ask(second, 1, away_s=2 * TTL_S).reaped == 0
    assert first.renew(lease) == []
    assert not first.commit(ack(lease)).void
    assert ask(second, 1).reaped == 0


def test_crawl_does_not_end_before_all_are_back(backend: Backend) -> None:
    first, second = backend.join("w1"), backend.join("w2")
    second.ask(is_idle=True)
    backend.clock.advance(5)

    idle = Demand(0, is_idle=True)
    assert not first.exchange(demand=Demand(0, is_idle=True, away_ms=5000)).has_ended
    assert not first.exchange(demand=idle).has_ended
    second.exchange(demand=idle)
    assert first.exchange(demand=idle).has_ended
