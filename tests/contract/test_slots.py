"""Invariant 3 between slots: slots of equal rank take turns, and full slots are skipped."""

from __future__ import annotations

from collections import Counter

import pytest

from scrapy_prioqueue.frontier.base import Order
from scrapy_prioqueue.frontier.policy import Policy, SlotLimit
from tests.contract.backends import TTL_S, Backend, Worker, ack, push, release


def slots_served(worker: Worker, limit: int, **demand: object) -> str:
    return "".join(lease.slot for lease in worker.lease(limit, **demand))


def test_slots_of_equal_rank_take_turns_in_the_order_in_which_they_came(backend: Backend) -> None:
    worker = backend.join()
    worker.commit(*(push("", 0, slot) for slot in "aaabbbccc"))

    assert slots_served(worker, 9) == "abcabcabc"


def test_turns_continue_from_one_exchange_and_worker_to_the_next(backend: Backend) -> None:
    first, second = backend.join("w1"), backend.join("w2")
    first.commit(*(push("", 0, slot) for slot in "aaabbbccc"))

    assert slots_served(first, 2) + slots_served(second, 2) + slots_served(first, 1) == "abcab"


def test_a_new_slot_joins_the_turns_at_the_back(backend: Backend) -> None:
    worker = backend.join()
    worker.commit(*(push("", 0, slot) for slot in "aabb"))
    served = slots_served(worker, 1)

    worker.commit(push("", 0, "c"))

    assert served + slots_served(worker, 4) == "abacb"


def test_a_slot_that_was_empty_joins_the_turns_at_the_back(backend: Backend) -> None:
    worker = backend.join()
    worker.commit(*(push("", 0, slot) for slot in "abbcc"))
    served = slots_served(worker, 1)

    worker.commit(push("", 0, "a"))

    assert served + slots_served(worker, 5) == "abcabc"


def test_a_slot_that_gets_a_request_back_joins_the_turns_at_the_back(backend: Backend) -> None:
    worker = backend.join()
    worker.commit(*(push("", 0, slot) for slot in "abbcc"))
    (lease,) = worker.lease(1)

    worker.commit(release(lease))

    assert slots_served(worker, 5) == "bcabc"


@pytest.mark.parametrize(("order", "expected"), [("fifo", "abcd"), ("lifo", "dcba")])
@pytest.mark.parametrize("loss", ["expiry", "return", "reconciliation"])
def test_slots_that_get_requests_back_together_join_the_turns_in_the_order_of_the_requests(
    backend: Backend, order: Order, expected: str, loss: str
) -> None:
    worker = backend.join(order=order)
    worker.commit(*(push("", 0, slot) for slot in "abcd"))
    for slot in "cadb":
        worker.lease(1, slot_room={other: 0 for other in "abcd" if other != slot})

    if loss == "expiry":
        backend.clock.advance(TTL_S)
    elif loss == "return":
        worker.join()
    else:
        worker.reconcile()

    assert slots_served(worker, 4) == expected


def test_a_push_to_a_slot_that_waits_does_not_change_its_turn(backend: Backend) -> None:
    worker = backend.join()
    worker.commit(*(push("", 0, slot) for slot in "ab"))

    worker.commit(push("", 0, "a"), push("", -1, "b"), push("", -1, "a"))

    assert slots_served(worker, 2) == "ab"
    assert slots_served(worker, 3) == "aba"


def test_a_lower_rank_goes_first_whoever_has_the_turn(backend: Backend) -> None:
    worker = backend.join()
    worker.commit(*(push("", 1, slot) for slot in "aabbcc"))
    worker.commit(push("", 0, "c"), push("", 0, "c"))

    assert slots_served(worker, 8) == "ccabcabc"


def test_the_slot_that_waited_longest_goes_first_even_if_it_waited_at_a_higher_rank(backend: Backend) -> None:
    worker = backend.join()
    worker.commit(push("", 1, "a"), push("", 0, "b"), push("", 0, "b"), push("", 1, "b"))

    assert slots_served(worker, 4) == "bbab"


def test_a_long_queue_does_not_hold_back_short_ones(backend: Backend) -> None:
    worker = backend.join()
    worker.commit(*(push("", 0, "large") for _ in range(500)))
    worker.commit(*(push("", 0, f"small {number}") for number in range(40) for _ in range(2)))

    first, second = worker.lease(41), worker.lease(41)

    for leases in (first, second):
        assert [lease.slot for lease in leases] == ["large", *(f"small {number}" for number in range(40))]
    assert {lease.slot for lease in worker.lease(500)} == {"large"}


def test_many_slots_get_equal_shares(backend: Backend) -> None:
    worker = backend.join()
    worker.commit(*(push("", 0, f"{number}.example") for number in range(60) for _ in range(5)))

    served = Counter(lease.slot for _ in range(10) for lease in worker.lease(18))

    assert served == {f"{number}.example": 3 for number in range(60)}


def test_a_full_slot_is_skipped(backend: Backend) -> None:
    worker = backend.join()
    worker.commit(*(push("", rank, "a") for rank in range(3)), push("", 9, "b"))

    assert slots_served(worker, 5, slot_room={"a": 0}) == "b"


def test_a_slot_that_was_skipped_keeps_its_turn(backend: Backend) -> None:
    worker = backend.join()
    worker.commit(*(push("", 0, slot) for slot in "aabbcc"))

    assert slots_served(worker, 3, slot_room={"a": 0}) == "bcb"
    assert slots_served(worker, 3) == "aca"


def test_a_slot_that_is_full_here_is_served_elsewhere(backend: Backend) -> None:
    here, there = backend.join("w1"), backend.join("w2")
    here.commit(*(push("", 0, "a") for _ in range(3)))

    assert slots_served(here, 3, slot_room={"a": 0}) == ""
    assert slots_served(there, 3) == "aaa"


def test_no_more_of_a_slot_is_leased_than_it_has_room(backend: Backend) -> None:
    worker = backend.join()
    worker.commit(*(push("", 0, slot) for slot in "aaaabbbb"))

    assert slots_served(worker, 8, slot_room={"a": 1, "b": 3}) == "abbb"


def test_the_slot_limit_holds_where_no_room_is_given(backend: Backend) -> None:
    worker = backend.join()
    worker.commit(*(push("", rank, slot) for rank, slot in enumerate("aaaabbbbcccc")))

    assert slots_served(worker, 12, slot_limit=2, slot_room={"b": 3, "c": 1}) == "aabbbc"


def test_the_slot_limit_counts_within_one_exchange(backend: Backend) -> None:
    worker = backend.join()
    worker.commit(*(push("", 0, "a") for _ in range(5)))

    assert [slots_served(worker, 5, slot_limit=2) for _ in range(3)] == ["aa", "aa", "a"]


def test_many_full_slots_do_not_hide_one_with_room(backend: Backend) -> None:
    worker = backend.join()
    full = [f"full {number}" for number in range(50)]
    worker.commit(*(push("", 0, slot) for slot in full), push("", 0, "free"))

    assert slots_served(worker, 1, slot_room=dict.fromkeys(full, 0)) == "free"


def test_room_may_be_given_for_slots_without_requests(backend: Backend) -> None:
    worker = backend.join()
    worker.commit(push("", 0, "a"))

    assert slots_served(worker, 5, slot_room={"nothing here": 3, "full": 0}) == "a"


@pytest.mark.parametrize(
    "slot", ["", " ", "two words", ":", "a:b:c", "{a}", "{}", "*?[a]", "bücher.example", "網站", "🕷", "\0", "\n", "%s"]
)
def test_any_text_can_be_the_name_of_a_slot(backend: Backend, slot: str) -> None:
    worker = backend.join()
    worker.commit(push("1", 0, slot), push("2", 0, "plain.example"), push("3", 1, slot))

    assert slots_served(worker, 3, slot_room={slot: 0}) == "plain.example"
    leases = worker.lease(3)
    assert [(lease.slot, lease.payload) for lease in leases] == [(slot, b"1"), (slot, b"3")]
    assert not worker.commit(ack(leases[0]), release(leases[1])).void
    assert slots_served(worker, 3) == slot


def test_slots_whose_names_begin_alike_are_different_slots(backend: Backend) -> None:
    worker = backend.join()
    names = ["", "a", "a:", "a:b", "A", "a "]
    worker.commit(*(push(name, 0, name) for name in names))

    assert [(lease.slot, lease.payload.decode()) for lease in worker.lease(9)] == [(name, name) for name in names]


def one_round(worker: Worker, slots: int) -> list[str]:
    """Lease and ack as many requests as there are slots; return their slots."""
    served: list[str] = []
    while len(served) < slots:
        leases = worker.lease(min(77, slots - len(served)))
        worker.commit(*map(ack, leases))
        served += [lease.slot for lease in leases]
    return served


def test_no_slot_waits_for_more_than_one_round_beside_one_with_many_requests(backend: Backend) -> None:
    worker = backend.join()
    many, few = 3000, 1000
    for _ in range(3):
        worker.commit(*(push("", 0, "large") for _ in range(many // 3)))
    for _ in range(3):
        worker.commit(*(push("", 0, f"slot {number}") for number in range(few)))

    for _ in range(3):
        assert len(set(one_round(worker, few + 1))) == few + 1


@pytest.mark.parametrize("policy", [Policy({"*": SlotLimit(1.0, 2)}), Policy(weights=(2, 1))])
def test_no_slot_waits_for_more_than_one_round_under_a_policy(backend: Backend, policy: Policy) -> None:
    worker = backend.join(policy=policy)
    few = 300
    worker.commit(*(push("", 0, "large") for _ in range(1000)))
    for _ in range(3):
        worker.commit(*(push("", 0, f"slot {number}") for number in range(few)))

    for _ in range(3):
        assert len(set(one_round(worker, few + 1))) == few + 1
        backend.clock.advance(1.0)
