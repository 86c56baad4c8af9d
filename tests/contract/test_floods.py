"""Above the high mark nothing is discovered until the low mark; if only discovery is left, it continues slowly."""

from __future__ import annotations

from dataclasses import replace

from scrapy_prioqueue.frontier.base import Orders, Push
from scrapy_prioqueue.frontier.policy import Closing, Policy, SlotLimit
from scrapy_prioqueue.rank import rank_of
from tests.contract.backends import TTL_S, Backend, Worker, ack, push

TIERS = ("urgent", "detail", "listing")
LISTING = 2
MARKS = Policy(high_water=10, low_water=5, discovery=(LISTING,))


def of_tier(tier: int, slot: str = "a") -> Push:
    return push(str(tier), rank_of(tier, 0), slot)


def fill(worker: Worker, tier: int, number: int, slot: str = "a") -> None:
    worker.commit(*(of_tier(tier, slot) for _ in range(number)))


def join(backend: Backend, worker_id: str = "w1", policy: Policy = MARKS) -> Worker:
    return backend.join(worker_id, tiers=TIERS, policy=policy)


def is_flooded(worker: Worker) -> bool:
    return worker.ask().orders.is_flooded


def serve_and_ack(worker: Worker, limit: int = 1) -> list[str]:
    leases = worker.lease(limit)
    worker.commit(*map(ack, leases))
    return [lease.payload.decode() for lease in leases]


def test_a_flood_begins_at_the_high_mark_and_ends_at_the_low_one(backend: Backend) -> None:
    worker = join(backend)
    fill(worker, 0, 9)
    assert not is_flooded(worker)
    fill(worker, 0, 1)
    assert is_flooded(worker)

    for pending in (9, 8, 7, 6):
        serve_and_ack(worker)
        assert is_flooded(worker), pending
    serve_and_ack(worker)

    assert not is_flooded(worker)
    fill(worker, 0, 4)
    assert not is_flooded(worker)


def test_all_workers_are_informed(backend: Backend) -> None:
    first, second = join(backend, "w1"), join(backend, "w2")
    fill(first, 0, 10)

    assert is_flooded(second)


def test_a_demand_is_served_as_of_the_moment_before(backend: Backend) -> None:
    worker = join(backend)
    fill(worker, 0, 10)

    assert worker.ask(10).orders.is_flooded
    assert not is_flooded(worker)


def test_discovery_is_not_served_in_a_flood(backend: Backend) -> None:
    worker = join(backend)
    fill(worker, 1, 6)
    fill(worker, LISTING, 3)
    assert serve_and_ack(worker, 3) == ["1"] * 3
    fill(worker, LISTING, 4)

    assert serve_and_ack(worker, 3) == ["1"] * 3
    assert not serve_and_ack(worker, 0)


def test_a_better_tier_that_is_discovery_waits_as_well(backend: Backend) -> None:
    worker = join(backend, policy=Policy(high_water=4, low_water=1, discovery=(0,)))
    fill(worker, 0, 2)
    fill(worker, 1, 2)

    assert [lease.payload.decode() for lease in worker.lease(2)] == ["1", "1"]


def test_with_nothing_else_left_one_request_continues_and_more_as_the_flood_falls(backend: Backend) -> None:
    worker = join(backend)
    fill(worker, LISTING, 40)

    served = [len(serve_and_ack(worker, 9)) for _ in range(5)]

    # Each that ends without bringing another lets one more go on beside it.
    assert served == [1, 2, 4, 8, 9]
    assert is_flooded(worker)


def test_leases_count_among_the_requests_that_continue(backend: Backend) -> None:
    worker = join(backend)
    fill(worker, LISTING, 40)
    for _ in range(3):
        serve_and_ack(worker, 9)

    assert len(worker.lease(5)) == 5
    assert len(worker.lease(5)) == 3
    assert not worker.lease(5)


def test_when_the_flood_rises_discovery_continues_one_at_a_time(backend: Backend) -> None:
    worker = join(backend)
    fill(worker, LISTING, 20)
    for _ in range(2):
        serve_and_ack(worker, 9)
    (*_, last) = worker.lease(9)
    fill(worker, LISTING, 5)

    assert not worker.lease(9)
    worker.commit(*map(ack, [last]))
    assert not worker.lease(9)


def test_a_request_that_brings_as_many_as_itself_changes_nothing(backend: Backend) -> None:
    worker = join(backend)
    fill(worker, LISTING, 20)
    serve_and_ack(worker, 9)

    for _ in range(3):
        (first, second) = worker.lease(9)
        fill(worker, LISTING, 2)
        worker.commit(ack(first), ack(second))


def test_discovery_continues_where_all_other_slots_must_wait_or_are_full(backend: Backend) -> None:
    policy = Policy({"slow": SlotLimit(100.0)}, high_water=10, low_water=5, discovery=(LISTING,))
    worker = join(backend, policy=policy)
    fill(worker, 0, 5, "slow")
    fill(worker, 0, 5, "full")
    fill(worker, LISTING, 5)

    leases = worker.lease(3, slot_room={"full": 0})

    assert [lease.payload.decode() for lease in leases] == ["0", "2"]


def test_tiers_with_weights_share_what_a_flood_leaves(backend: Backend) -> None:
    policy = Policy(weights=(1, 1, 1), high_water=10, low_water=5, discovery=(LISTING,))
    worker = join(backend, policy=policy)
    for tier in range(3):
        fill(worker, tier, 4)

    payloads = [lease.payload.decode() for lease in worker.lease(9)]

    assert payloads == ["0", "1"] * 4 + ["2"]


def test_a_suspect_of_a_discovery_tier_goes_as_others_do(backend: Backend) -> None:
    worker = join(backend)
    fill(worker, LISTING, 1)
    for _ in range(2):
        worker.lease(1)
        backend.clock.advance(TTL_S)
    fill(worker, 0, 1)
    fill(worker, LISTING, 10)
    assert [lease.payload for lease in worker.lease(1)] == [b"0"]
    fill(worker, LISTING, 2)

    (suspect,) = worker.lease(9)
    assert suspect.attempt == 3


def test_without_discovery_tiers_a_flood_is_only_reported(backend: Backend) -> None:
    worker = join(backend, policy=Policy(high_water=10, low_water=5))
    fill(worker, LISTING, 12)

    answer = worker.ask(12)

    assert answer.orders.is_flooded
    assert len(answer.leases) == 12
    assert not answer.must_ask


def test_delayed_requests_make_no_flood(backend: Backend) -> None:
    worker = join(backend)
    worker.commit(*(push("", delay_ms=1000) for _ in range(20)))
    assert not is_flooded(worker)

    backend.clock.advance(1)

    assert is_flooded(worker)


def test_a_later_worker_without_marks_ends_the_flood(backend: Backend) -> None:
    first = join(backend, "w1")
    fill(first, LISTING, 20)
    assert is_flooded(first)

    backend.join("w2", tiers=TIERS)

    assert not is_flooded(first)
    assert len(first.lease(20)) == 20


def test_the_crawl_ends_for_all_the_marks(backend: Backend) -> None:
    worker = join(backend)
    fill(worker, LISTING, 20)
    served = 0
    while payloads := serve_and_ack(worker, 3):
        served += len(payloads)

    assert served == 20
    assert worker.ask(is_idle=True).has_ended


def test_a_flood_that_stands_still_is_widened_with_time(backend: Backend) -> None:
    worker = join(backend)
    fill(worker, 0, 1)
    fill(worker, LISTING, 20)
    # The one of another tier takes its time, or its worker is lost.
    (slow,) = worker.lease(1)
    assert not worker.lease(9)

    backend.clock.advance(1)

    assert len(worker.lease(9)) == 1
    assert not worker.lease(9)
    backend.clock.advance(1)
    assert len(worker.lease(9)) == 1
    worker.commit(ack(slow))


def close(worker: Worker, slot: str, seconds: float) -> None:
    worker.ask(notes=[Closing(slot, round(seconds * 1000))])


def test_requests_of_a_closed_slot_do_not_count(backend: Backend) -> None:
    worker = join(backend)
    close(worker, "closed", 3600)
    fill(worker, 0, 30, "closed")
    fill(worker, LISTING, 9)

    answer = worker.ask(9)

    assert not answer.orders.is_flooded
    assert answer.held_back == 30
    assert len(answer.leases) == 9


def test_a_slot_that_opens_within_a_minute_counts_in_full(backend: Backend) -> None:
    worker = join(backend)
    close(worker, "closed", 70)
    fill(worker, 0, 10, "closed")
    assert not is_flooded(worker)

    backend.clock.advance(10)

    assert is_flooded(worker)


def test_of_a_slow_slot_what_starts_within_a_minute_counts(backend: Backend) -> None:
    worker = join(backend, policy=replace(MARKS, slots={"slow": SlotLimit(delay=15)}))
    fill(worker, 0, 20, "slow")
    # At once, and after 15.15, 30.3 and 45.45 s: 4 of 20.
    fill(worker, 1, 5)
    assert not is_flooded(worker)
    fill(worker, 1, 1)
    # As of a moment ago, so another moment has to pass.
    backend.clock.advance(0.05)

    answer = worker.ask()

    assert (answer.orders.is_flooded, answer.held_back) == (True, 16)


def test_with_weights_a_slow_slot_counts_once(backend: Backend) -> None:
    policy = replace(MARKS, slots={"slow": SlotLimit(delay=15)}, weights=(1, 1, 1))
    worker = join(backend, policy=policy)
    fill(worker, 0, 10, "slow")
    fill(worker, 1, 10, "slow")

    answer = worker.ask()

    assert (answer.orders.is_flooded, answer.held_back) == (False, 16)


def test_a_flood_ends_when_the_rest_can_not_be_served_soon(backend: Backend) -> None:
    worker = join(backend)
    fill(worker, 0, 8, "closed")
    fill(worker, 0, 6)
    assert is_flooded(worker)

    close(worker, "closed", 3600)
    serve_and_ack(worker)
    backend.clock.advance(0.5)

    assert not is_flooded(worker)


def test_all_pending_requests_together_are_limited(backend: Backend) -> None:
    worker = join(backend, policy=replace(MARKS, pending_limit=20))
    close(worker, "closed", 3600)
    fill(worker, 0, 19, "closed")
    assert not is_flooded(worker)
    fill(worker, 0, 1)

    assert worker.ask().orders == Orders(is_flooded=True, is_at_limit=True)
    serve_and_ack(worker)
    assert worker.ask().orders == Orders()


def test_with_very_many_slots_what_is_held_back_is_estimated(backend: Backend) -> None:
    worker = join(backend, policy=replace(MARKS, high_water=1000, slots={"*.slow": SlotLimit(delay=100)}))
    for number in range(300):
        fill(worker, 0, 2, f"{number}.slow")
        fill(worker, 0, 2, f"{number}.fast")

    # Half of all places, and of each of those one of two: 300 by expectation.
    assert 150 < worker.ask().held_back < 450
