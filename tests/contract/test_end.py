"""Invariant 6, the end: a crawl ends when no request is left and every living worker is idle."""

from __future__ import annotations

from scrapy_prioqueue.errors import CrawlEnded
from scrapy_prioqueue.frontier.base import Batch, Demand
from tests.contract.backends import TTL_S, Backend, Worker, ack, fail, push


def is_over_for(worker: Worker) -> bool:
    """Let a worker say that it is idle; return whether the crawl has ended."""
    return worker.ask(0, is_idle=True).has_ended


def test_a_crawl_without_requests_ends_as_soon_as_its_worker_is_idle(backend: Backend) -> None:
    worker = backend.join()

    assert not worker.ask(1).has_ended
    assert worker.ask(1, is_idle=True).has_ended


def test_a_crawl_does_not_end_while_a_request_is_pending(backend: Backend) -> None:
    worker = backend.join()
    worker.commit(push("1"))

    assert not is_over_for(worker)


def test_a_crawl_does_not_end_while_a_request_is_leased(backend: Backend) -> None:
    worker, other = backend.join("w1"), backend.join("w2")
    worker.commit(push("1"))
    other.lease()

    assert not is_over_for(other)
    assert not is_over_for(worker)


def test_a_crawl_ends_in_the_exchange_that_brings_the_last_ack(backend: Backend) -> None:
    worker = backend.join()
    worker.commit(push("1"))
    (lease,) = worker.lease()

    answer = worker.exchange(Batch(2, [ack(lease)]), demand=Demand(5, is_idle=True))

    assert answer.has_ended


def test_a_crawl_continues_if_the_last_ack_comes_with_a_child(backend: Backend) -> None:
    worker = backend.join()
    worker.commit(push("1"))
    (lease,) = worker.lease()

    answer = worker.exchange(Batch(2, [push("child"), ack(lease)]), demand=Demand(5, is_idle=True))

    assert not answer.has_ended
    assert [lease.payload for lease in answer.leases] == [b"child"]


def test_a_worker_that_gets_a_request_is_not_idle(backend: Backend) -> None:
    worker, other = backend.join("w1"), backend.join("w2")
    other.commit(push("1"))
    (lease,) = worker.lease(1, is_idle=True)
    worker.commit(ack(lease))

    assert not is_over_for(other)
    assert is_over_for(worker)


def test_dead_letters_do_not_keep_a_crawl_open(backend: Backend) -> None:
    worker = backend.join()
    worker.commit(push("1"))
    worker.commit(*map(fail, worker.lease()))

    assert is_over_for(worker)


def test_a_crawl_ends_in_the_exchange_that_gives_its_last_request_up(backend: Backend) -> None:
    worker = backend.join(max_attempts=1)
    worker.commit(push("1"))
    worker.lease()
    backend.clock.advance(TTL_S)

    answer = worker.ask(1, is_idle=True)

    assert (answer.reaped, answer.depth.dead, answer.has_ended) == (1, 1, True)


def test_a_crawl_does_not_end_while_another_worker_is_busy(backend: Backend) -> None:
    first, second, third = (backend.join(name) for name in ("w1", "w2", "w3"))

    assert [is_over_for(worker) for worker in (first, second, first, third)] == [False, False, False, True]


def test_a_worker_is_idle_until_it_says_otherwise(backend: Backend) -> None:
    first, second = backend.join("w1"), backend.join("w2")
    is_over_for(first)
    first.ask(1, is_idle=False)

    assert not is_over_for(second)
    assert is_over_for(first)


def test_an_exchange_without_a_demand_leaves_a_worker_as_idle_as_it_was(backend: Backend) -> None:
    first, second = backend.join("w1"), backend.join("w2")
    is_over_for(first)

    first.exchange(demand=None)

    assert is_over_for(second)


def test_a_worker_that_joins_is_not_idle(backend: Backend) -> None:
    first, second = backend.join("w1"), backend.join("w2")
    is_over_for(first)
    first.join()

    assert not is_over_for(second)


def test_a_worker_that_has_left_is_not_waited_for(backend: Backend) -> None:
    first, second = backend.join("w1"), backend.join("w2")
    assert not is_over_for(first)

    second.leave()

    assert is_over_for(first)


def test_a_dead_worker_is_waited_for_until_its_heartbeat_lapses(backend: Backend) -> None:
    worker, _dead = backend.join("w1"), backend.join("w2")
    backend.clock.advance(TTL_S - 1)

    assert not is_over_for(worker)
    backend.clock.advance(2)
    assert is_over_for(worker)


def test_a_dead_workers_requests_are_done_by_others_before_the_end(backend: Backend) -> None:
    worker, dead = backend.join("w1"), backend.join("w2")
    worker.commit(push("1"))
    dead.lease()
    backend.clock.advance(TTL_S - 1)
    assert not is_over_for(worker)

    backend.clock.advance(2)
    answer = worker.ask(1, is_idle=True)

    assert not answer.has_ended
    worker.commit(*map(ack, answer.leases))
    assert is_over_for(worker)


def test_renewing_leases_is_a_sign_of_life(backend: Backend) -> None:
    worker, busy = backend.join("w1"), backend.join("w2")
    backend.clock.advance(TTL_S - 1)
    busy.renew()
    backend.clock.advance(2)

    assert not is_over_for(worker)
    assert worker.depth().workers == 2


def test_an_exchange_without_a_demand_is_a_sign_of_life(backend: Backend) -> None:
    worker, busy = backend.join("w1"), backend.join("w2")
    backend.clock.advance(TTL_S - 1)
    busy.exchange(Batch(1, []), demand=None)
    backend.clock.advance(2)

    assert not is_over_for(worker)
    assert worker.depth().workers == 2


def test_a_worker_whose_heartbeat_had_lapsed_can_continue(backend: Backend) -> None:
    worker, silent = backend.join("w1"), backend.join("w2")
    silent.commit(push("1"))
    backend.clock.advance(2 * TTL_S)
    assert worker.depth().workers == 1

    silent.commit(push("2"))

    assert silent.lease_payloads() == ["2", "1"]
    assert worker.depth().workers == 2


def test_all_workers_of_a_crawl_hear_of_its_end(backend: Backend) -> None:
    first, second = backend.join("w1"), backend.join("w2")
    is_over_for(first)
    assert is_over_for(second)

    assert first.ask(3, is_idle=False).has_ended
    assert second.ask(0, is_idle=False).has_ended


def test_a_worker_that_is_not_idle_does_not_undo_the_end(backend: Backend) -> None:
    worker, other = backend.join("w1"), backend.join("w2")
    is_over_for(worker)
    is_over_for(other)
    worker.ask(1, is_idle=False)

    assert other.ask(1, is_idle=False).has_ended


def test_a_push_reopens_a_crawl_that_has_ended(backend: Backend) -> None:
    worker = backend.join()
    assert is_over_for(worker)

    answer = worker.exchange(Batch(1, [push("late")]), demand=Demand(0))

    assert not answer.has_ended
    assert worker.lease_payloads() == ["late"]


def test_a_duplicate_does_not_reopen_a_crawl(backend: Backend) -> None:
    worker = backend.join()
    worker.commit(push("1", fingerprint=b"fingerprint 1"))
    worker.commit(*map(ack, worker.lease()))
    assert is_over_for(worker)

    answer = worker.exchange(Batch(3, [push("1", fingerprint=b"fingerprint 1")]), demand=Demand(0))

    assert answer.has_ended


def test_a_reopened_crawl_keeps_its_books_and_ends_again(backend: Backend) -> None:
    worker = backend.join()
    worker.commit(push("1", fingerprint=b"fingerprint 1"))
    worker.commit(*map(ack, worker.lease()))
    assert is_over_for(worker)

    committed = worker.commit(push("2"), push("1", fingerprint=b"fingerprint 1"))
    worker.commit(*map(ack, worker.lease()))

    assert list(committed.duplicates) == [1]
    assert worker.depth().done == 2
    assert is_over_for(worker)


def test_a_worker_of_a_crawl_that_has_been_followed_by_another_takes_no_part_in_it(backend: Backend) -> None:
    late, prompt = backend.join("w1"), backend.join("w2")
    is_over_for(late)
    assert is_over_for(prompt)
    prompt.join()
    prompt.commit(push("new", fingerprint=b"fingerprint 1"))

    answer = late.exchange(Batch(1, [push("old", fingerprint=b"fingerprint 2")]), demand=Demand(5, is_fair=False))

    assert answer.has_ended
    assert isinstance(answer.rejection, CrawlEnded)
    assert not answer.committed
    assert not answer.leases
    assert late.ask(5).has_ended
    assert late.ask(5).rejection is None
    depth = prompt.depth()
    assert (depth.accepted, depth.pending, depth.workers) == (1, 1, 1)


def test_a_worker_of_an_earlier_crawl_changes_nothing_in_the_next(backend: Backend) -> None:
    late, prompt = backend.join("w1"), backend.join("w2")
    is_over_for(late)
    assert is_over_for(prompt)
    prompt.join()
    prompt.commit(push("1"))
    (lease,) = prompt.lease()

    assert list(late.renew(lease)) == [lease.lease_id]
    assert late.reconcile() == 0
    late.leave()

    assert (prompt.depth().leased, prompt.depth().workers) == (1, 1)
    assert not prompt.commit(ack(lease)).void


def test_no_worker_is_waited_for_that_did_not_join_the_next_crawl(backend: Backend) -> None:
    late, prompt = backend.join("w1"), backend.join("w2")
    is_over_for(late)
    assert is_over_for(prompt)
    prompt.join()
    late.ask(1, is_idle=False)

    assert is_over_for(prompt)


def test_a_worker_that_repeats_its_last_batch_keeps_the_crawl_open(backend: Backend) -> None:
    worker, other = backend.join("w1"), backend.join("w2")
    worker.commit(push("a"))
    (lease,) = worker.lease()
    worker.commit(ack(lease))
    backend.clock.advance(0.6 * TTL_S)
    worker.exchange(worker.last_batch, demand=None)
    backend.clock.advance(0.6 * TTL_S)

    assert not other.ask(is_idle=True).has_ended
