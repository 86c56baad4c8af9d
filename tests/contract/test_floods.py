"""Past the high mark nothing is discovered, until the low one; with nothing else to do it goes on slowly."""

from __future__ import annotations

from scrapy_prioqueue.frontier.base import Push
from scrapy_prioqueue.frontier.policy import Policy, SlotLimit
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


def test_all_workers_are_told(backend: Backend) -> None:
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


def test_with_nothing_else_left_one_request_goes_on_and_more_as_the_flood_falls(backend: Backend) -> None:
    worker = join(backend)
    fill(worker, LISTING, 40)

    served = [len(serve_and_ack(worker, 9)) for _ in range(5)]

    # Each that ends without bringing another lets one more go on beside it.
    assert served == [1, 2, 4, 8, 9]
    assert is_flooded(worker)


def test_what_is_leased_counts_among_those_that_go_on(backend: Backend) -> None:
    worker = join(backend)
    fill(worker, LISTING, 40)
    for _ in range(3):
        serve_and_ack(worker, 9)

    assert len(worker.lease(5)) == 5
    assert len(worker.lease(5)) == 3
    assert not worker.lease(5)


def test_when_the_flood_rises_discovery_goes_on_one_at_a_time(backend: Backend) -> None:
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


def test_discovery_goes_on_where_all_other_slots_must_wait_or_are_full(backend: Backend) -> None:
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


def test_without_discovery_tiers_a_flood_is_only_told(backend: Backend) -> None:
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
