"""Tiers share leases by their weights; without weights the best tier comes first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest

from scrapy_prioqueue.frontier.base import Push
from scrapy_prioqueue.frontier.policy import Policy, SlotLimit
from scrapy_prioqueue.rank import rank_of, tier_of
from tests.contract.backends import TTL_S, Backend, Worker, ack, push

TIERS = ("urgent", "high", "normal", "low")
WEIGHTS = (8, 4, 2, 1)


def of_tier(tier: int, slot: str = "a", priority: int = 0) -> Push:
    return push(f"{tier}{slot}{priority}", rank_of(tier, priority), slot)


def fill(worker: Worker, tiers: Sequence[int], number: int, slot: str = "a") -> None:
    worker.commit(*(of_tier(tier, slot) for tier in tiers for _ in range(number)))


def tiers_served(worker: Worker, limit: int, **demand: object) -> list[int]:
    leases = worker.lease(limit, **demand)
    worker.commit(*map(ack, leases))
    return [tier_of(lease.rank) for lease in leases]


def test_without_weights_the_best_tier_goes_first(backend: Backend) -> None:
    worker = backend.join(tiers=TIERS)
    fill(worker, (3, 1, 2, 0), 3)

    assert tiers_served(worker, 12) == [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3]


def test_tiers_that_have_work_share_by_weight(backend: Backend) -> None:
    worker = backend.join(tiers=TIERS, policy=Policy(weights=WEIGHTS))
    fill(worker, range(4), 600)

    shares = Counter(tier for _ in range(50) for tier in tiers_served(worker, 20))

    # Within 1 % of the weights over any 1,000 leases.
    for tier, weight in enumerate(WEIGHTS):
        assert shares[tier] == pytest.approx(1000 * weight / 15, abs=10)


def test_weights_count_from_the_first_lease_on_in_a_crawl_of_many_slots_that_had_none(backend: Backend) -> None:
    first = backend.join("w1", tiers=TIERS)
    for tier in range(4):
        for part in range(5):
            first.commit(*(of_tier(tier, f"slot-{tier}-{part}-{number}") for number in range(100)))

    worker = backend.join("w2", tiers=TIERS, policy=Policy(weights=WEIGHTS))

    assert Counter(tiers_served(worker, 150)) == {0: 80, 1: 40, 2: 20, 3: 10}


def test_one_demand_takes_all_there_is_of_tiers_with_different_numbers_of_slots(backend: Backend) -> None:
    worker = backend.join(tiers=TIERS, policy=Policy(weights=WEIGHTS))
    fill(worker, (0,), 100)
    for slot in "bc":
        fill(worker, (0,), 1, slot)

    assert len(worker.lease(150)) == 102


def test_any_window_holds_the_shares(backend: Backend) -> None:
    worker = backend.join(tiers=TIERS, policy=Policy(weights=WEIGHTS))
    fill(worker, range(4), 300)

    served = [tier for _ in range(50) for tier in tiers_served(worker, 7)]

    for start in range(len(served) - 150):
        window = Counter(served[start : start + 150])
        assert [window[tier] for tier in range(4)] == pytest.approx([80, 40, 20, 10], abs=2)


def test_equal_weights_take_turns_and_the_better_tier_goes_first(backend: Backend) -> None:
    worker = backend.join(tiers=TIERS, policy=Policy(weights=(1, 1, 1, 1)))
    fill(worker, (3, 1, 0), 3)

    assert tiers_served(worker, 9) == [0, 1, 3, 0, 1, 3, 0, 1, 3]


def test_the_shares_continue_from_one_worker_and_exchange_to_the_next(backend: Backend) -> None:
    workers = [backend.join(name, tiers=TIERS, policy=Policy(weights=WEIGHTS)) for name in ("w1", "w2")]
    fill(workers[0], range(4), 100)

    shares = Counter(tier for turn in range(150) for tier in tiers_served(workers[turn % 2], 1))

    assert [shares[tier] for tier in range(4)] == pytest.approx([80, 40, 20, 10], abs=1)


def test_a_tier_without_requests_leaves_its_share_to_the_others_for_good(backend: Backend) -> None:
    worker = backend.join(tiers=TIERS, policy=Policy(weights=(1, 1, 1, 1)))
    fill(worker, (0, 1), 100)
    assert Counter(tiers_served(worker, 100)) == {0: 50, 1: 50}

    fill(worker, (2,), 100)

    assert Counter(tiers_served(worker, 30)) == {0: 10, 1: 10, 2: 10}


def test_a_tier_whose_slots_are_full_leaves_its_share_to_the_others(backend: Backend) -> None:
    worker = backend.join(tiers=TIERS, policy=Policy(weights=WEIGHTS))
    fill(worker, (0,), 10, "a")
    fill(worker, (3,), 10, "b")

    assert tiers_served(worker, 5, slot_room={"a": 1}) == [0, 3, 3, 3, 3]


def test_a_tier_whose_slots_must_wait_leaves_its_share_to_the_others(backend: Backend) -> None:
    worker = backend.join(tiers=TIERS, policy=Policy({"a": SlotLimit(1.0)}, weights=WEIGHTS))
    fill(worker, (0,), 10, "a")
    fill(worker, (3,), 10, "b")

    assert tiers_served(worker, 5) == [0, 3, 3, 3, 3]
    backend.clock.advance(1)
    assert tiers_served(worker, 1) == [0]


def test_a_served_slot_goes_last_in_its_other_tiers_too(backend: Backend) -> None:
    worker = backend.join(tiers=TIERS, policy=Policy({"a": SlotLimit(0.1)}, weights=(1, 1, 1, 1)))
    fill(worker, (0,), 5, "a")
    worker.commit(*(of_tier(1, slot, priority=5) for slot in "bcdef"), of_tier(1, "a"))

    # What starts now is of the first tier, so the next is of the second, where others go before but can't start later.
    assert tiers_served(worker, 1, later_limit=3, horizon_ms=250) == [0, 1, 0]


def test_within_a_tier_rank_and_turn_decide(backend: Backend) -> None:
    worker = backend.join(tiers=TIERS, policy=Policy(weights=(1, 1, 1, 1)))
    worker.commit(
        *(of_tier(0, slot) for slot in "aabb"), of_tier(0, "b", priority=5), *(of_tier(1, slot) for slot in "ab")
    )

    assert worker.lease_payloads(7) == ["0b5", "1a0", "0a0", "1b0", "0b0", "0a0", "0b0"]


def test_a_slot_has_a_turn_of_its_own_in_each_tier(backend: Backend) -> None:
    worker = backend.join(tiers=TIERS, policy=Policy(weights=(1, 1, 1, 1)))
    worker.commit(*(of_tier(0, "a") for _ in range(4)), *(of_tier(1, slot) for slot in "aabb"))

    assert worker.lease_payloads(6) == ["0a0", "1a0", "0a0", "1b0", "0a0", "1a0"]


@pytest.mark.parametrize("suspect_tier", [0, 3])
def test_a_suspect_goes_before_anything_else(backend: Backend, suspect_tier: int) -> None:
    worker = backend.join(tiers=TIERS, policy=Policy(weights=WEIGHTS))
    fill(worker, (suspect_tier,), 1, "suspect")
    for _ in range(2):
        worker.lease(1)
        backend.clock.advance(TTL_S)
    fill(worker, (0, 1), 2)

    assert [lease.slot for lease in worker.lease(3)] == ["suspect", "a", "a"]


def test_weights_that_come_with_a_later_worker_hold_for_what_is_pending(backend: Backend) -> None:
    first = backend.join("w1", tiers=TIERS)
    worker_slots = "abc"
    first.commit(*(of_tier(tier, slot) for _ in range(4) for tier in (0, 1) for slot in worker_slots))
    assert first.lease_payloads(2) == ["0a0", "0b0"]

    backend.join("w2", tiers=TIERS, policy=Policy(weights=(1, 1, 1, 1)))
    served = first.lease(6)
    assert [tier_of(lease.rank) for lease in served] == [0, 1, 0, 1, 0, 1]
    assert "".join(lease.slot for lease in served if tier_of(lease.rank) == 0) == "cab"

    backend.join("w3", tiers=TIERS)
    rest = first.lease(100)
    assert [tier_of(lease.rank) for lease in rest] == [0] * 7 + [1] * 9
    assert len(rest) == 16


def test_without_the_weights_a_slot_has_the_first_of_its_turns_at_once(backend: Backend) -> None:
    first = backend.join("w1", order="fifo", tiers=TIERS, policy=Policy(weights=WEIGHTS))
    first.commit(of_tier(3, "a"), of_tier(2, "c"), of_tier(1, "c"), of_tier(0, "b"), of_tier(0, "a"))

    worker = backend.join("w2", order="fifo", tiers=TIERS)

    assert [lease.slot for lease in worker.lease(2, is_fair=False)] == ["a", "b"]


def test_other_weights_of_a_later_worker_count(backend: Backend) -> None:
    first = backend.join("w1", tiers=TIERS, policy=Policy(weights=(1, 1, 1, 1)))
    fill(first, range(2), 200)
    tiers_served(first, 10)

    backend.join("w2", tiers=TIERS, policy=Policy(weights=(9, 1, 1, 1)))

    assert Counter(tiers_served(first, 100))[0] == pytest.approx(90, abs=1)


def test_shares_begin_again_with_a_new_crawl(backend: Backend) -> None:
    weights = Policy(weights=(1, 9, 1, 1))
    worker = backend.join(tiers=TIERS, policy=weights)
    fill(worker, (0, 1), 1)
    assert tiers_served(worker, 2) == [0, 1]
    assert worker.ask(is_idle=True).has_ended

    again = backend.join(tiers=TIERS, policy=weights)
    fill(again, (0, 1), 5)

    assert tiers_served(again, 3) == [0, 1, 1]
