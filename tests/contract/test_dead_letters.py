"""Which dead letters are kept, for how long, and what they contain."""

from __future__ import annotations

from collections import Counter

from scrapy_prioqueue.frontier.base import DEAD_BY_BUDGET, DEAD_REASONS, Fail
from tests.contract.backends import TTL_S, Backend, Worker, push


def give_up(worker: Worker, *names: str, reason: str = "download", traceback: str = "") -> None:
    """Let requests be pushed, leased and failed one after the other."""
    for name in names:
        worker.commit(push(name))
        (lease,) = worker.lease()
        worker.commit(Fail(lease.lease_id, lease.attempt, reason, f"{name} failed", traceback))


def test_a_dead_letter_says_what_happened(backend: Backend) -> None:
    worker = backend.join()
    give_up(worker, "a", reason="callback", traceback="Traceback …\nKeyError: 'price'")

    (letter,) = worker.dead_letters()

    assert (letter.reason, letter.detail, letter.payload) == ("callback", "a failed", b"a")
    assert letter.traceback == "Traceback …\nKeyError: 'price'"
    assert (letter.worker, letter.lost_by) == ("w1", "")


def test_a_dead_letter_names_the_workers_lost_over_it_before(backend: Backend) -> None:
    backend.join("w1").commit(push("a"))
    backend.workers[0].lease()
    backend.clock.advance(TTL_S + 1)
    worker = backend.join("w2")
    (lease,) = worker.lease()
    worker.commit(Fail(lease.lease_id, lease.attempt, "download", "HTTP 503"))

    (letter,) = worker.dead_letters()

    assert (letter.worker, letter.lost_by, letter.attempts) == ("w2", "w1", 2)


def test_the_oldest_go_where_there_are_too_many(backend: Backend) -> None:
    worker = backend.join(dead_limit=3)
    for name in "abcde":
        backend.clock.advance(1)
        give_up(worker, name)

    assert [letter.payload for letter in worker.dead_letters()] == [b"e", b"d", b"c"]
    assert worker.depth().dead == 5


def test_each_reason_has_a_limit_of_its_own(backend: Backend) -> None:
    worker = backend.join(dead_limit=2)
    give_up(worker, "a", "b", reason="callback")
    for number, reason in enumerate(DEAD_REASONS):
        backend.clock.advance(1)
        give_up(worker, *(f"{reason}{number}" for number in range(3)), reason=reason)

    kept = Counter(letter.reason for letter in worker.dead_letters())

    assert kept == {**dict.fromkeys(DEAD_REASONS, 2), DEAD_BY_BUDGET: 3}
    assert worker.dead_letters()[0].reason == DEAD_REASONS[-1]


def test_dead_letters_over_budget_of_this_crawl_are_kept_beyond_the_limit(backend: Backend) -> None:
    worker = backend.join(dead_limit=2)
    give_up(worker, "a", "b", "c", reason=DEAD_BY_BUDGET)
    worker.ask(0, is_idle=True)
    worker.leave()
    backend.clock.advance(1)
    worker = backend.join(dead_limit=2)

    give_up(worker, "d", reason=DEAD_BY_BUDGET)
    first = [letter.payload for letter in worker.dead_letters()]
    give_up(worker, "e", "f", reason=DEAD_BY_BUDGET)

    assert (len(first), first[0]) == (2, b"d")
    assert sorted(letter.payload for letter in worker.dead_letters()) == [b"d", b"e", b"f"]


def test_a_worker_learns_the_reasons_of_dropped_letters(backend: Backend) -> None:
    worker = backend.join(dead_limit=1)
    give_up(worker, "a", "b", "c", reason=DEAD_BY_BUDGET)
    give_up(worker, "d", reason="decode")
    assert list(worker.ask(0).letters_dropped) == []

    give_up(worker, "e", "f", reason="decode")
    assert list(worker.ask(0).letters_dropped) == ["decode"]

    worker.ask(0, is_idle=True)
    worker.leave()
    assert list(backend.join().ask(0).letters_dropped) == []


def test_a_reason_that_is_not_asked_for_is_only_counted(backend: Backend) -> None:
    worker = backend.join(dead_on=("callback",))
    give_up(worker, "a", reason="download")
    give_up(worker, "b", reason="callback")

    assert [letter.payload for letter in worker.dead_letters()] == [b"b"]
    assert worker.depth().dead == 2
