"""Invariant 6, the beginning: which worker begins a crawl, which resumes it, and which is rejected."""

from __future__ import annotations

import pytest

from scrapy_prioqueue.errors import CrawlEnded, LayoutMismatch, NotPermitted
from scrapy_prioqueue.frontier.base import Depth, OnFinish
from tests.contract.backends import TTL_S, Backend, Worker, ack, fail, push


def end_crawl(worker: Worker) -> None:
    """Let a worker do all that is left and end the crawl, which it must be alone in."""
    while leases := worker.lease(100):
        worker.commit(*map(ack, leases))
    assert worker.ask(1, is_idle=True).has_ended


# Beginning and resuming


def test_the_first_worker_begins_a_new_crawl(backend: Backend) -> None:
    joined = backend.worker().join()

    assert joined.is_new
    assert (joined.depth, joined.seen, joined.recovered) == (Depth(workers=1), 0, 0)


def test_the_second_worker_joins_what_the_first_began(backend: Backend) -> None:
    first = backend.join("w1")
    first.commit(push("1", fingerprint=b"fingerprint 1"), push("2", fingerprint=b"fingerprint 2"))
    first.lease()

    joined = backend.worker("w2").join()

    assert not joined.is_new
    assert (joined.depth, joined.seen) == (Depth(accepted=2, pending=1, leased=1, workers=2), 2)


def test_an_interrupted_crawl_is_resumed(backend: Backend) -> None:
    killed = backend.join("w1")
    killed.commit(push("1", fingerprint=b"fingerprint 1", start_mark=b"mark 1"))
    backend.clock.advance(3600)

    worker = backend.worker("w2")
    joined = worker.join()

    assert not joined.is_new
    committed = worker.commit(
        push("1", fingerprint=b"fingerprint 1"),
        push("1", start_mark=b"mark 1"),
        push("2", fingerprint=b"fingerprint 2"),
    )
    assert (list(committed.duplicates), list(committed.repeated_starts)) == ([0], [1])
    assert worker.lease_payloads() == ["2", "1"]


def test_a_crawl_whose_workers_have_left_is_resumed(backend: Backend) -> None:
    worker = backend.join("w1")
    worker.commit(push("1"))
    worker.leave()

    assert not backend.worker("w2").join().is_new


def test_leases_of_a_worker_that_returns_are_recovered_at_once(backend: Backend) -> None:
    killed, other = backend.join("w1"), backend.join("w2")
    killed.commit(*(push(str(number), number) for number in range(5)))
    leases = killed.lease(3)
    elsewhere = other.lease(1)

    returned = backend.worker("w1")
    joined = returned.join()

    assert joined.recovered == 3
    assert (joined.depth.pending, joined.depth.leased) == (4, 1)
    again = returned.lease(9)
    assert [(lease.lease_id, lease.attempt) for lease in again[:3]] == [(lease.lease_id, 2) for lease in leases]
    assert not other.commit(*map(ack, elsewhere)).void


def test_a_worker_that_joins_reaps_expired_leases(backend: Backend) -> None:
    killed = backend.join("w1", max_attempts=2)
    killed.commit(push("1"), push("2", 1))
    killed.lease()
    backend.clock.advance(TTL_S)
    killed.lease(2)
    backend.clock.advance(TTL_S + 1)

    depth = backend.worker("w2", max_attempts=2).join().depth

    assert (depth.pending, depth.leased, depth.dead) == (1, 0, 1)


def test_the_ack_of_an_earlier_session_is_void(backend: Backend) -> None:
    worker = backend.join()
    worker.commit(push("1"))
    (lease,) = worker.lease()
    worker.join()

    assert list(worker.commit(ack(lease)).void) == [0]
    worker.lease()
    assert list(worker.commit(ack(lease)).void) == [0]


def test_a_request_that_kills_its_worker_again_and_again_becomes_a_dead_letter(backend: Backend) -> None:
    worker = backend.join(max_attempts=2)
    worker.commit(push("poison"))
    for _ in range(2):
        assert worker.depth().dead == 0
        worker.lease()
        worker.join()

    (letter,) = worker.dead_letters()
    assert (letter.reason, letter.attempts, letter.worker) == ("lease", 2, "w1")
    assert worker.depth().dead == 1


def test_leases_are_recovered_in_any_number(backend: Backend) -> None:
    worker = backend.join()
    worker.commit(*(push(str(number), number % 3, f"{number % 5}.example") for number in range(700)))
    worker.lease(650)

    assert worker.join().recovered == 650

    assert worker.depth().pending == 700


# The next crawl


def test_a_crawl_that_has_ended_is_followed_by_a_new_one(backend: Backend) -> None:
    worker = backend.join()
    worker.commit(push("1", fingerprint=b"fingerprint 1", start_mark=b"mark 1"))
    end_crawl(worker)

    joined = worker.join()

    assert joined.is_new
    assert (joined.depth, joined.seen) == (Depth(workers=1), 0)
    committed = worker.commit(push("1", fingerprint=b"fingerprint 1", start_mark=b"mark 1"))
    assert (list(committed.duplicates), list(committed.repeated_starts)) == ([], [])


def test_the_next_crawl_can_keep_the_fingerprints_but_not_the_start_marks(backend: Backend) -> None:
    worker = backend.join(on_finish="keep")
    worker.commit(push("1", fingerprint=b"fingerprint 1", start_mark=b"mark 1"))
    end_crawl(worker)

    joined = worker.join()

    assert joined.is_new
    assert (joined.depth, joined.seen) == (Depth(workers=1), 1)
    committed = worker.commit(push("1", fingerprint=b"fingerprint 1", start_mark=b"mark 1"))
    assert (list(committed.duplicates), list(committed.repeated_starts)) == ([0], [])


@pytest.mark.parametrize(("on_finish", "duplicates"), [("restart", []), ("keep", [0])])
def test_the_last_worker_to_leave_a_crawl_that_has_ended_clears_it(
    backend: Backend, on_finish: OnFinish, duplicates: list[int]
) -> None:
    worker = backend.join("w1", on_finish=on_finish)
    worker.commit(push("1", fingerprint=b"fingerprint 1"))
    end_crawl(worker)
    worker.leave()

    following = backend.worker("w2", on_finish=on_finish)
    joined = following.join()

    assert joined.is_new
    assert (joined.depth, joined.seen) == (Depth(workers=1), len(duplicates))
    assert list(following.commit(push("1", fingerprint=b"fingerprint 1")).duplicates) == duplicates


def test_a_worker_that_leaves_before_the_others_clears_nothing(backend: Backend) -> None:
    first, second = backend.join("w1"), backend.join("w2")
    first.commit(push("1", fingerprint=b"fingerprint 1", start_mark=b"mark 1"))
    first.commit(*map(ack, first.lease()))
    first.ask(0, is_idle=True)
    assert second.ask(0, is_idle=True).has_ended

    first.leave()

    committed = second.commit(push("1", fingerprint=b"fingerprint 1"), push("1", start_mark=b"mark 1"))
    assert (list(committed.duplicates), list(committed.repeated_starts)) == ([0], [1])


def test_leaving_a_crawl_that_continues_clears_nothing(backend: Backend) -> None:
    worker = backend.join("w1")
    worker.commit(push("1", fingerprint=b"fingerprint 1"))
    worker.leave()

    other = backend.join("w2")

    assert list(other.commit(push("1", fingerprint=b"fingerprint 1")).duplicates) == [0]


def test_dead_letters_outlive_their_crawl_but_do_not_count_in_the_next(backend: Backend) -> None:
    worker = backend.join()
    worker.commit(push("1"))
    worker.commit(*map(fail, worker.lease()))
    end_crawl(worker)
    worker.leave()

    joined = worker.join()

    assert joined.depth.dead == 0
    assert [letter.payload for letter in worker.dead_letters()] == [b"1"]


# Crawl ids


def test_workers_with_the_same_crawl_id_work_on_one_crawl(backend: Backend) -> None:
    assert backend.worker("w1", crawl_id="monday").join().is_new
    assert not backend.worker("w2", crawl_id="monday").join().is_new


def test_a_worker_without_a_crawl_id_joins_any_crawl(backend: Backend) -> None:
    backend.join("w1", crawl_id="monday")

    assert not backend.worker("w2").join().is_new


def test_a_worker_with_the_id_of_an_ended_crawl_is_rejected(backend: Backend) -> None:
    end_crawl(backend.join("w1", crawl_id="monday"))

    with pytest.raises(CrawlEnded, match="monday"):
        backend.worker("w2", crawl_id="monday").join()


def test_the_id_of_a_crawl_that_has_ended_is_remembered_through_later_crawls(backend: Backend) -> None:
    for crawl_id in ("monday", "tuesday", None, "wednesday"):
        worker = backend.join("w1", crawl_id=crawl_id)
        end_crawl(worker)
        worker.leave()

    for crawl_id in ("monday", "tuesday", "wednesday"):
        with pytest.raises(CrawlEnded, match=crawl_id):
            backend.worker("w2", crawl_id=crawl_id).join()


def test_a_reopened_crawl_can_be_joined_by_its_id(backend: Backend) -> None:
    worker = backend.join("w1", crawl_id="monday")
    end_crawl(worker)
    worker.commit(push("late"))

    assert not backend.worker("w2", crawl_id="monday").join().is_new


def test_another_crawl_id_is_refused_while_requests_are_left(backend: Backend) -> None:
    worker = backend.join("w1", crawl_id="monday")
    worker.commit(push("1"))
    backend.clock.advance(3600)

    with pytest.raises(NotPermitted, match=r"(?s)tuesday.*monday|monday.*tuesday"):
        backend.worker("w2", crawl_id="tuesday").join()

    assert worker.lease_payloads() == ["1"]


def test_another_crawl_id_is_refused_while_requests_are_leased(backend: Backend) -> None:
    worker = backend.join("w1", crawl_id="monday")
    worker.commit(push("1"))
    worker.lease()
    backend.clock.advance(3600)

    with pytest.raises(NotPermitted):
        backend.worker("w2", crawl_id="tuesday").join()


def test_another_crawl_id_is_refused_while_workers_are_alive(backend: Backend) -> None:
    backend.join("w1", crawl_id="monday")

    with pytest.raises(NotPermitted, match=r"(?s)tuesday.*monday|monday.*tuesday"):
        backend.worker("w2", crawl_id="tuesday").join()


def test_a_crawl_with_an_id_is_refused_while_one_without_is_unfinished(backend: Backend) -> None:
    backend.join("w1").commit(push("1"))

    with pytest.raises(NotPermitted, match="tuesday"):
        backend.worker("w2", crawl_id="tuesday").join()


def test_an_empty_crawl_without_workers_gives_way_to_another_id(backend: Backend) -> None:
    worker = backend.join("w1", crawl_id="monday")
    worker.commit(push("1", fingerprint=b"fingerprint 1"))
    worker.commit(*map(ack, worker.lease()))
    backend.clock.advance(2 * TTL_S)

    joined = backend.worker("w2", crawl_id="tuesday").join()

    assert joined.is_new
    assert (joined.depth, joined.seen) == (Depth(workers=1), 0)


def test_a_new_crawl_id_begins_where_the_last_crawl_has_ended(backend: Backend) -> None:
    worker = backend.join("w1", crawl_id="monday")
    end_crawl(worker)

    assert backend.worker("w2", crawl_id="tuesday").join().is_new


# Flush


def test_a_flush_drops_all_that_the_frontier_holds(backend: Backend) -> None:
    worker = backend.join("w1")
    worker.commit(*(push(str(n), n, fingerprint=b"fingerprint %d" % n, start_mark=b"mark %d" % n) for n in range(4)))
    leased, failed = worker.lease(2)
    worker.commit(fail(failed))
    worker.leave()

    flushing = backend.worker("w2", flush=True)
    joined = flushing.join()

    assert joined.is_new
    assert (joined.depth, joined.seen, joined.recovered) == (Depth(workers=1), 0, 0)
    assert not flushing.dead_letters()
    assert not flushing.lease(5)
    committed = flushing.commit(push("1", fingerprint=b"fingerprint 1", start_mark=b"mark 1"), ack(leased))
    assert (list(committed.duplicates), list(committed.repeated_starts), list(committed.void)) == ([], [], [1])
    assert flushing.lease_payloads() == ["1"]


def test_a_flush_is_refused_while_others_are_alive_and_names_them(backend: Backend) -> None:
    first, second = backend.join("w1"), backend.join("w2")
    first.commit(push("1"))

    with pytest.raises(NotPermitted, match=r"w1.*w2"):
        backend.worker("w3", flush=True).join()

    assert second.lease_payloads() == ["1"]


def test_a_worker_that_flushes_if_alone_joins_others_without(backend: Backend) -> None:
    backend.join("w1").commit(push("1"))

    joined = backend.worker("w2", flush=True, flush_if_alone=True).join()

    assert (joined.is_new, joined.depth.pending) == (False, 1)


def test_a_flush_is_allowed_once_the_others_heartbeats_have_lapsed(backend: Backend) -> None:
    backend.join("w1").commit(push("1"))
    backend.clock.advance(TTL_S + 1)

    assert backend.worker("w2", flush=True).join().depth.pending == 0


def test_a_worker_may_flush_what_its_own_last_session_left(backend: Backend) -> None:
    backend.join("w1").commit(push("1"))

    joined = backend.worker("w1", flush=True).join()

    assert joined.is_new
    assert joined.depth == Depth(workers=1)


def test_a_flush_of_an_empty_frontier_begins_a_crawl(backend: Backend) -> None:
    assert backend.worker("w1", flush=True).join().is_new


def test_a_flush_happens_once_and_not_with_every_exchange(backend: Backend) -> None:
    worker = backend.join("w1", flush=True)
    worker.commit(push("1"))
    worker.leave()

    assert backend.join("w2").lease_payloads() == ["1"]


# Tiers


def test_other_tiers_are_refused_while_requests_are_pending(backend: Backend) -> None:
    worker = backend.join("w1", tiers=("high", "low"))
    worker.commit(push("1"))

    with pytest.raises(LayoutMismatch, match="high"):
        backend.worker("w2", tiers=("low", "high")).join()

    assert worker.lease_payloads() == ["1"]


def test_other_tiers_are_refused_while_requests_are_leased(backend: Backend) -> None:
    worker = backend.join("w1", tiers=("high", "low"))
    worker.commit(push("1"))
    worker.lease()

    with pytest.raises(LayoutMismatch):
        backend.worker("w2", tiers=("high", "normal", "low")).join()


def test_other_tiers_are_taken_over_where_nothing_is_left(backend: Backend) -> None:
    worker = backend.join("w1", tiers=("high", "low"))
    worker.commit(push("1"))
    worker.commit(*map(ack, worker.lease()))
    with pytest.raises(LayoutMismatch, match="high"):
        # The first one could push to a tier that the other one doesn't have.
        backend.worker("w2", tiers=("only",)).join()

    worker.leave()
    other = backend.join("w2", tiers=("only",))

    other.commit(push("2"))
    with pytest.raises(LayoutMismatch):
        backend.worker("w3", tiers=("high", "low")).join()


def test_the_next_crawl_may_have_other_tiers(backend: Backend) -> None:
    worker = backend.join("w1", tiers=("high", "low"))
    worker.commit(push("1"))
    end_crawl(worker)

    assert backend.worker("w2", tiers=("only",)).join().is_new


def test_a_flush_drops_the_tiers_too(backend: Backend) -> None:
    worker = backend.join("w1", tiers=("high", "low"))
    worker.commit(push("1"))
    worker.leave()

    assert backend.worker("w2", tiers=("only",), flush=True).join().is_new


def test_tiers_may_be_a_list_or_a_tuple(backend: Backend) -> None:
    backend.join("w1", tiers=["high", "low"]).commit(push("1"))

    assert not backend.worker("w2", tiers=("high", "low")).join().is_new


# What requests are crawled with


def test_a_worker_gets_the_description_of_the_first_one(backend: Backend) -> None:
    first, second = backend.worker("w1", spider="fr"), backend.worker("w2", spider="de")

    assert first.join().spider == "fr"
    assert second.join().spider == "fr"
    assert first.join().spider == "fr"


def test_a_new_crawl_knows_nothing_of_what_the_last_one_was_crawled_with(backend: Backend) -> None:
    first = backend.worker("w1", spider="fr")
    first.join()
    assert first.ask(0, is_idle=True).has_ended
    first.leave()

    assert backend.worker("w2", spider="de").join().spider == "de"
