"""Rates, bursts and concurrency of slots apply to all workers together, and a waiting slot delays no other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from scrapy_prioqueue.frontier.base import Claim, Lease
from scrapy_prioqueue.frontier.policy import Policy, SlotLimit
from scrapy_prioqueue.rank import rank_of
from tests.contract.backends import TTL_S, Backend, Worker, ack, fail, push, release

HORIZON_MS = 250


def limited(delay_s: float | None = None, concurrency: int | None = None, burst: int | None = None) -> Policy:
    return Policy({"*": SlotLimit(delay_s, concurrency, burst)})


def fill(worker: Worker, slots: str, number: int = 1) -> None:
    worker.commit(*(push(f"{slot}{at}", 0, slot) for at in range(number) for slot in slots))


def timings(leases: Sequence[Lease]) -> list[tuple[str, int, int | None]]:
    return [(lease.slot, lease.start_in_ms, lease.late_ms) for lease in leases]


def serve_and_ack(worker: Worker, limit: int = 1000) -> str:
    """Lease what may start now, ack it, and return its slots."""
    leases = worker.lease(limit)
    worker.commit(*map(ack, leases))
    return "".join(lease.slot for lease in leases)


# Rates


def test_a_slot_with_a_delay_is_served_once_per_delay(backend: Backend) -> None:
    worker = backend.join(policy=limited(1.0))
    fill(worker, "a", 10)

    served = []
    for _ in range(31):
        served.append(serve_and_ack(worker))
        backend.clock.advance(0.1)

    # The first interval is shorter by what a slot may catch up on: 50 ms of 1,010.
    assert [at for at, slots in enumerate(served) if slots] == [0, 10, 20, 30]
    assert set(served) <= {"", "a"}


def test_the_rate_is_that_of_all_workers_together(backend: Backend) -> None:
    workers = [backend.join(f"w{number}", policy=limited(0.5)) for number in range(4)]
    fill(workers[0], "a", 100)

    served = 0
    for tick in range(1000):
        served += len(serve_and_ack(workers[tick % 4]))
        backend.clock.advance(0.01)

    # 10 s, at one each 505 ms, the first one at once and the second one 50 ms early.
    assert served == 20


def test_a_late_worker_costs_the_slot_no_more_than_it_can_catch_up_on(backend: Backend) -> None:
    worker = backend.join(policy=limited(1.0))
    fill(worker, "a", 10)
    worker.lease()
    backend.clock.advance(0.96)
    assert len(worker.lease()) == 1

    backend.clock.advance(1.040)
    assert len(worker.lease()) == 1

    # It was served 30 ms late, so the next one may come 30 ms sooner.
    backend.clock.advance(0.979)
    assert not worker.lease()
    backend.clock.advance(0.001)
    assert len(worker.lease()) == 1


def test_a_slot_that_has_rested_gives_no_more_than_its_burst_at_once(backend: Backend) -> None:
    worker = backend.join(policy=limited(1.0, burst=3))
    fill(worker, "a", 20)

    assert serve_and_ack(worker) == "aaa"
    backend.clock.advance(1.0)
    assert serve_and_ack(worker) == "a"
    backend.clock.advance(100)
    assert serve_and_ack(worker) == "aaa"


def test_short_delays_let_more_than_one_request_pass_between_two_exchanges_only_with_a_burst(backend: Backend) -> None:
    worker = backend.join(policy=Policy({"a": SlotLimit(0.01), "b": SlotLimit(0.01, burst=5)}))
    fill(worker, "ab", 20)
    backend.clock.advance(1.0)

    assert "".join(sorted(serve_and_ack(worker))) == "abbbbb"


def test_slots_that_wait_delay_no_others(backend: Backend) -> None:
    worker = backend.join(policy=Policy({"a": SlotLimit(1000.0)}))
    worker.commit(*(push("", -1, "a") for _ in range(3)), *(push("", 0, slot) for slot in "bcbc"))

    assert [lease.slot for lease in worker.lease(10)] == ["a", "b", "c", "b", "c"]


def test_a_thousand_slots_that_wait_delay_no_other(backend: Backend) -> None:
    worker = backend.join(policy=Policy({"*": SlotLimit(1000.0), "z": SlotLimit(0)}))
    worker.commit(*(push("", -1, f"slot {number}") for _ in range(2) for number in range(1000)))
    assert len(worker.lease(2000)) == 1000

    worker.commit(push("last", 0, "z"))

    assert worker.lease_payloads() == ["last"]


def test_a_slot_that_opens_keeps_its_turn(backend: Backend) -> None:
    worker = backend.join(policy=Policy({"a": SlotLimit(1.0)}))
    fill(worker, "abc", 3)
    assert "".join(lease.slot for lease in worker.lease(3)) == "abc"
    assert "".join(lease.slot for lease in worker.lease(2)) == "bc"

    backend.clock.advance(1.0)

    assert "".join(lease.slot for lease in worker.lease(3)) == "abc"


def test_slots_that_open_together_go_by_rank_then_turn(backend: Backend) -> None:
    worker = backend.join(policy=limited(1.0))
    fill(worker, "abc")
    worker.lease(3)
    worker.commit(push("", 0, "c"), push("", 0, "b"), push("", -1, "a"))
    assert not worker.lease(3)

    backend.clock.advance(1.0)

    assert "".join(lease.slot for lease in worker.lease(3)) == "acb"


def test_an_empty_slot_keeps_its_pace(backend: Backend) -> None:
    worker = backend.join(policy=limited(1.0))
    fill(worker, "a")
    assert serve_and_ack(worker) == "a"

    fill(worker, "a")

    assert serve_and_ack(worker) == ""
    backend.clock.advance(0.96)
    assert serve_and_ack(worker) == "a"


def test_a_released_lease_gives_no_pace_back(backend: Backend) -> None:
    worker = backend.join(policy=limited(1.0))
    fill(worker, "a")
    (lease,) = worker.lease()

    worker.commit(release(lease))

    assert not worker.lease()
    backend.clock.advance(0.96)
    assert len(worker.lease()) == 1


# Leases that may start soon


def test_requests_of_slots_that_open_soon_are_leased_with_their_start_time(backend: Backend) -> None:
    worker = backend.join(policy=limited(0.1))
    fill(worker, "a", 10)

    leases = worker.lease(10, later_limit=10, horizon_ms=HORIZON_MS)

    # The interval is 101 ms. After a rest the first one counts as one that could have come 50 ms sooner.
    assert timings(leases) == [("a", 0, 150), ("a", 51, 150), ("a", 152, 150)]


def test_requests_that_start_later_take_only_places_left_by_those_that_start_now(backend: Backend) -> None:
    worker = backend.join(policy=Policy({"a": SlotLimit(0.1), "b": SlotLimit(0)}))
    fill(worker, "ab", 10)

    leases = worker.lease(3, later_limit=5, horizon_ms=HORIZON_MS)

    assert timings(leases) == [("a", 0, 150), ("b", 0, None), ("a", 51, 150), ("b", 0, None), ("a", 152, 150)]


def test_nothing_that_starts_now_is_leased_for_later(backend: Backend) -> None:
    worker = backend.join(policy=Policy({"a": SlotLimit(0.1), "b": SlotLimit(0)}))
    fill(worker, "ab", 10)
    worker.lease(1)

    leases = worker.lease(0, later_limit=1, horizon_ms=HORIZON_MS)

    assert timings(leases) == [("a", 51, 150)]


def test_a_slot_with_a_later_start_is_skipped_if_it_took_the_place_of_one_that_is_ready(backend: Backend) -> None:
    worker = backend.join(policy=Policy({"a": SlotLimit(0.1)}))
    worker.commit(*(push("", -1, "a") for _ in range(5)), push("", 0, "b"))

    leases = worker.lease(2, later_limit=3, horizon_ms=HORIZON_MS)

    assert [lease.slot for lease in leases] == ["a", "a", "b"]


def test_an_equal_share_is_one_of_what_starts_now(backend: Backend) -> None:
    worker = backend.join("w1", policy=Policy({"a": SlotLimit(0.1)}))
    backend.join("w2", policy=Policy({"a": SlotLimit(0.1)}))
    fill(worker, "a", 3)
    fill(worker, "b", 1)

    leases = worker.lease(10, is_fair=True, later_limit=10, horizon_ms=HORIZON_MS)

    assert [lease.slot for lease in leases] == ["a", "b", "a", "a"]


def test_a_slot_without_a_delay_may_start_at_any_time_after(backend: Backend) -> None:
    worker = backend.join(policy=Policy({"a": SlotLimit(concurrency=1)}))
    fill(worker, "a")

    assert timings(worker.lease()) == [("a", 0, None)]


# Places that are kept

BETTER = rank_of(0, 0)
WORSE = rank_of(1, 0)
RESERVE_MS = 800


@pytest.fixture(params=["one lane", "lanes"])
def kept(backend: Backend, request: pytest.FixtureRequest) -> Worker:
    """A slot of the better tier that was served just now and opens again in 455 ms; others of the worse are open."""
    policy = Policy({"a": SlotLimit(0.5)})
    if request.param == "lanes":
        policy = replace(policy, high_water=1000, low_water=900, discovery=(1,))
    worker = backend.join(tiers=("high", "low"), policy=policy)
    worker.commit(*(push("", BETTER, "a") for _ in range(9)), *(push("", WORSE, "b") for _ in range(9)))
    (lease,) = worker.lease(1)
    worker.commit(ack(lease))
    return worker


def test_the_last_place_is_kept_for_a_better_tier(kept: Worker) -> None:
    assert timings(kept.lease(1, reserve_ms=RESERVE_MS)) == [("a", 455, 352)]


def test_no_place_is_kept_for_what_starts_too_late(kept: Worker) -> None:
    assert timings(kept.lease(1, reserve_ms=400)) == [("b", 0, None)]


def test_only_one_place_is_kept_for_a_slot_whose_pages_are_done_before_the_next_is_due(kept: Worker) -> None:
    assert [lease.slot for lease in kept.lease(3, reserve_ms=2000)] == ["a", "b", "b"]


def test_as_many_places_are_kept_for_a_slot_as_pages_of_it_are_under_way(kept: Worker, backend: Backend) -> None:
    for _ in range(3):
        backend.clock.advance(0.51)
        kept.lease(1)

    assert [lease.slot for lease in kept.lease(4, reserve_ms=2000)] == ["a", "a", "a", "b"]


def test_no_place_is_kept_where_nothing_could_have_it_at_once(kept: Worker) -> None:
    kept.lease_payloads(9)

    assert kept.lease(1, reserve_ms=RESERVE_MS) == []


def test_no_place_is_kept_within_a_tier(backend: Backend) -> None:
    worker = backend.join(policy=Policy({"a": SlotLimit(0.5)}))
    worker.commit(push("", -1, "a"), push("", -1, "a"), push("", 0, "b"))
    worker.lease(1)

    assert [lease.slot for lease in worker.lease(1, reserve_ms=RESERVE_MS)] == ["b"]


# Concurrency


def test_no_more_requests_of_a_slot_are_leased_than_may_run(backend: Backend) -> None:
    first, second = (backend.join(name, policy=limited(concurrency=2)) for name in ("w1", "w2"))
    fill(first, "ab", 5)

    assert "".join(lease.slot for lease in first.lease(3)) == "aba"
    assert "".join(lease.slot for lease in second.lease(3)) == "b"


@pytest.mark.parametrize("end", [ack, fail, release])
def test_a_full_slot_opens_when_a_lease_ends(backend: Backend, end: type) -> None:
    worker = backend.join(policy=limited(concurrency=1))
    fill(worker, "a", 3)
    (lease,) = worker.lease(3)
    assert not worker.lease(3)

    answer = worker.send(end(lease), demand=None)

    assert answer.rejection is None
    assert len(worker.lease(3)) == 1


def test_a_full_slot_opens_when_a_lease_expires(backend: Backend) -> None:
    first, second = (backend.join(name, policy=limited(concurrency=1)) for name in ("w1", "w2"))
    fill(first, "a", 3)
    first.lease(3)
    assert not second.lease(3)

    backend.clock.advance(TTL_S)

    assert len(second.lease(3)) == 1


def test_a_full_slot_opens_when_its_worker_returns(backend: Backend) -> None:
    worker = backend.join(policy=limited(concurrency=1))
    fill(worker, "a", 3)
    worker.lease(3)

    again = backend.join(policy=limited(concurrency=1))

    assert len(again.lease(3)) == 1


def test_a_full_slot_opens_when_a_worker_does_not_know_a_lease(backend: Backend) -> None:
    worker = backend.join(policy=limited(concurrency=1))
    fill(worker, "a", 3)
    worker.lease(3)

    worker.reconcile()

    assert len(worker.lease(3)) == 1


def test_a_full_slot_that_opens_has_no_earlier_turn_in_other_tiers(backend: Backend) -> None:
    policy = replace(limited(concurrency=1), discovery=(1,))
    worker = backend.join(order="fifo", max_attempts=1, policy=policy)
    worker.commit(push("lost", rank_of(1, 0), "b"))
    worker.lease()
    worker.commit(
        push("low", rank_of(1, 0), "b"), push("first", 0, "a", delay_ms=1), push("second", 0, "b", delay_ms=1)
    )
    backend.clock.advance(TTL_S)

    assert worker.lease_payloads() == ["first", "second"]


def test_a_full_slot_that_must_wait_as_well_does_both(backend: Backend) -> None:
    worker = backend.join(policy=limited(1.0, concurrency=1))
    fill(worker, "a", 3)
    (lease,) = worker.lease(3)
    backend.clock.advance(0.5)
    worker.commit(ack(lease))
    assert not worker.lease(3)

    backend.clock.advance(0.5)

    assert len(worker.lease(3)) == 1


# Which limit counts


@pytest.mark.parametrize(
    ("slot", "served"),
    [("a.shop.test", 1), ("b.shop.test", 2), ("x.b.shop.test", 2), ("shop.test", 3), ("y.test", 3), ("other", 4)],
)
def test_the_most_specific_entry_that_says_something_counts(backend: Backend, slot: str, served: int) -> None:
    slots = {
        "a.shop.test": SlotLimit(concurrency=1),
        "*.shop.test": SlotLimit(concurrency=2),
        "*.test": SlotLimit(concurrency=3),
        "*": SlotLimit(concurrency=4),
    }
    worker = backend.join(policy=Policy(slots))
    worker.commit(*(push("", 0, slot) for _ in range(10)))

    assert len(worker.lease(10)) == served


def test_each_limit_is_looked_up_by_itself(backend: Backend) -> None:
    slots = {"a.test": SlotLimit(burst=2), "*.test": SlotLimit(concurrency=5), "*": SlotLimit(1.0, 1, 4)}
    worker = backend.join(policy=Policy(slots))
    worker.commit(*(push("", 0, slot) for slot in ("a.test", "b.test", "c") for _ in range(10)))

    slots_served = [lease.slot for lease in worker.lease(100)]

    assert {slot: slots_served.count(slot) for slot in slots_served} == {"a.test": 2, "b.test": 4, "c": 1}


def test_a_limit_of_nothing_lifts_a_more_general_one(backend: Backend) -> None:
    worker = backend.join(policy=Policy({"a": SlotLimit(0.0, 0), "*": SlotLimit(5.0, 1)}))
    fill(worker, "ab", 5)

    assert "".join(sorted(lease.slot for lease in worker.lease(10))) == "aaaaab"


def test_the_limits_of_the_worker_that_joined_last_count(backend: Backend) -> None:
    first = backend.join("w1", policy=limited(concurrency=1))
    fill(first, "a", 10)
    first.lease(10)
    assert not first.lease(10)

    backend.join("w2", policy=limited(concurrency=3))
    assert len(first.lease(10)) == 2

    backend.join("w3")
    assert len(first.lease(10)) == 7


def test_a_slot_in_line_that_has_to_wait_by_limits_of_a_later_worker_is_known_to_wait(backend: Backend) -> None:
    first = backend.join("w1", policy=limited(0.4, burst=3))
    fill(first, "a", 3)
    first.lease(1)
    worker = backend.join("w2", policy=limited(0.4))
    fill(worker, "b")
    worker.commit(push("best", -1, "c"))

    answer = worker.ask(1, later_limit=2, horizon_ms=HORIZON_MS)
    backend.clock.advance(0.3)
    later = worker.ask(1, later_limit=2, horizon_ms=HORIZON_MS)

    assert ([lease.slot for lease in answer.leases], answer.next_due_s) == (["c"], 0.229)
    assert timings(later.leases) == [("a", 54, 302), ("b", 0, 302)]


def test_limits_that_come_with_a_later_worker_count_what_is_leased(backend: Backend) -> None:
    first = backend.join("w1")
    fill(first, "ab", 5)
    first.lease(3)

    second = backend.join("w2", policy=limited(concurrency=2))

    assert [lease.slot for lease in second.lease(10)] == ["b"]


def test_a_new_crawl_owes_nothing_to_the_last_one(backend: Backend) -> None:
    worker = backend.join(policy=limited(100.0))
    fill(worker, "a")
    assert serve_and_ack(worker) == "a"
    assert worker.ask(is_idle=True).has_ended

    again = backend.join(policy=limited(100.0))
    fill(again, "a")

    assert serve_and_ack(again) == "a"


# Suspects and claims


def test_a_claim_is_granted_beyond_the_limits_and_counted(backend: Backend) -> None:
    worker = backend.join(policy=limited(1.0, concurrency=2))
    fill(worker, "a", 3)
    worker.lease(1)

    committed = worker.commit(Claim(push("claimed", 0, "a")))

    assert len(committed.claimed) == 1
    backend.clock.advance(1.0)
    assert not worker.lease(3)
    worker.reconcile()
    assert not worker.lease(3)
    backend.clock.advance(0.97)
    assert len(worker.lease(3)) == 1


def test_a_suspect_waits_for_its_slot(backend: Backend) -> None:
    worker = backend.join(policy=limited(1.0))
    worker.commit(push("suspect", 0, "a"))
    for _ in range(2):
        worker.lease(1)
        backend.clock.advance(TTL_S)
    worker.commit(push("other", 1, "a"))
    worker.commit(Claim(push("claimed", 0, "a")))

    early = worker.ask(2, later_limit=2, horizon_ms=1000)
    backend.clock.advance(2.0)

    assert [lease.payload for lease in early.leases] == [b"other"]
    assert worker.lease_payloads() == ["suspect"]


def test_a_suspect_lets_others_of_its_slot_be_had_for_later(backend: Backend) -> None:
    worker = backend.join(policy=Policy({"a": SlotLimit(0.1)}))
    worker.commit(push("suspect", 0, "a"))
    for _ in range(2):
        worker.lease(1)
        backend.clock.advance(TTL_S)
    worker.commit(push("of a", 2, "a"))
    fill(worker, "bcdef")

    assert worker.lease_payloads(1, later_limit=2, horizon_ms=HORIZON_MS) == ["suspect", "of a"]


def test_a_suspect_counts_against_the_limits_of_its_slot(backend: Backend) -> None:
    worker = backend.join(policy=limited(concurrency=1))
    worker.commit(push("suspect", 0, "a"))
    for _ in range(2):
        worker.lease(1)
        backend.clock.advance(TTL_S)
    worker.commit(push("other", 1, "a"))

    assert worker.lease_payloads() == ["suspect"]
    assert not worker.lease(10)


# What workers are told


def test_a_worker_learns_when_a_slot_opens(backend: Backend) -> None:
    worker = backend.join(policy=limited(1.0))
    fill(worker, "a", 3)

    assert worker.ask(10).next_due_s == 0.96
    backend.clock.advance(0.5)
    assert worker.ask(10).next_due_s == 0.46


def test_a_worker_that_looks_ahead_asks_in_the_middle_of_that_time(backend: Backend) -> None:
    worker = backend.join(policy=limited(1.0))
    fill(worker, "a", 3)

    answer = worker.ask(10, later_limit=10, horizon_ms=HORIZON_MS)

    assert answer.next_due_s == pytest.approx(0.96 - 0.125)


def test_a_slot_without_requests_or_without_room_is_nothing_to_wait_for(backend: Backend) -> None:
    worker = backend.join(policy=Policy({"a": SlotLimit(1.0), "b": SlotLimit(1.0, 1)}))
    fill(worker, "a", 1)
    fill(worker, "b", 2)

    assert worker.ask(10).next_due_s == TTL_S


def test_limits_let_workers_start_nothing_by_themselves(backend: Backend) -> None:
    plain = backend.join("w1")
    assert not plain.ask().must_ask

    limits = backend.join("w2", policy=limited(concurrency=1))

    assert limits.ask().must_ask
    assert plain.ask().must_ask
