"""A worker without limits removes none when it joins, and all workers are told of a changed policy."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from scrapy_prioqueue.frontier.policy import Budget, Policy, SlotLimit, Throttle
from scrapy_prioqueue.frontier.policy_parts import PARTS
from tests.contract.backends import Backend, Worker, labelled_push, push

SLOT = "a.example"
LIMITED = {SLOT: SlotLimit(delay=10, concurrency=2)}
EVERYTHING = Policy(
    slots=LIMITED,
    weights=(2, 1),
    budgets={"*": Budget(pages=3)},
    high_water=100,
    low_water=80,
    discovery=(1,),
)
NOTHING_SET = Policy(unset=frozenset(PARTS))


def setting(part: str, **fields: Any) -> Policy:
    """Return the policy of a worker that sets nothing but this part."""
    return Policy(unset=frozenset(PARTS) - {part}, **fields)


def warnings_of(worker: Worker) -> str:
    """Return what is warned of now."""
    return "\n".join(worker.ask().warnings)


def joined(backend: Backend, name: str, policy: Policy) -> tuple[Worker, str]:
    """Let a worker join; return what it is warned of, too."""
    worker = backend.worker(name, policy=policy)
    return worker, "\n".join(text for text in worker.join().warnings if "Give all workers" in text)


def test_parts_that_a_worker_does_not_set_stay_and_all_are_warned(backend: Backend) -> None:
    first, _ = joined(backend, "w1", EVERYTHING)
    first.commit(*(labelled_push(f"{number}", "key", slot=SLOT) for number in range(9)))

    stray, warned = joined(backend, "w2", NOTHING_SET)

    assert len(stray.lease(9)) == 1
    names = "PRIOQUEUE_SLOTS, PRIOQUEUE_TIER_WEIGHTS, PRIOQUEUE_BUDGETS, PRIOQUEUE_HIGH_WATER"
    assert warned.startswith("This worker has joined frontier ")
    assert f"It doesn't set {names}, so what is in force stays. Give all workers the same {names}" in warned
    assert warnings_of(first) == warned.replace("This worker", "Worker w2", 1)
    assert not warnings_of(first)
    assert not warnings_of(stray)


def test_a_worker_without_budgets_learns_that_there_are_some(backend: Backend) -> None:
    stray = backend.worker("w1", policy=NOTHING_SET)
    assert not stray.join().has_budgets
    assert not stray.ask().has_budgets

    backend.join("w2", policy=setting("budgets", budgets={}))

    assert stray.ask().has_budgets
    assert backend.worker("w3", policy=NOTHING_SET).join().has_budgets


def test_other_limits_take_effect_and_all_workers_learn_the_differences(backend: Backend) -> None:
    first, _ = joined(backend, "w1", EVERYTHING)
    second, warned = joined(backend, "w2", replace(EVERYTHING, slots={SLOT: SlotLimit(delay=1)}, high_water=200))

    assert (
        "From now on its settings apply to all workers, in place of what w1 (2023-11-14 22:13:20 UTC) has brought"
        in warned
    )
    assert f'PRIOQUEUE_SLOTS[\'{SLOT}\'] is {{"delay": 1}}, was {{"concurrency": 2, "delay": 10}}' in warned
    assert "PRIOQUEUE_HIGH_WATER is 200, was 100" in warned
    assert warned.endswith("Give all workers the same PRIOQUEUE_SLOTS, PRIOQUEUE_HIGH_WATER")
    assert warnings_of(first) == warned.replace("This worker", "Worker w2", 1)
    first.commit(push("1", slot=SLOT), push("2", slot=SLOT))
    assert len(first.lease(9)) == 1
    backend.clock.advance(1.01)
    assert len(second.lease(9)) == 1


@pytest.mark.parametrize(
    ("part", "fields", "said"),
    [
        ("slots", {"slots": {"b": SlotLimit(burst=2)}}, "PRIOQUEUE_SLOTS['b'] is {"),
        ("throttle", {"throttle": Throttle()}, "PRIOQUEUE_AUTOTHROTTLE is {"),
        ("crawl_delay", {"awaits_crawl_delay": True}, "PRIOQUEUE_ROBOTSTXT_CRAWL_DELAY is 1, was none"),
        ("weights", {"weights": (1, 3)}, "PRIOQUEUE_TIER_WEIGHTS is [1, 3], was none"),
        ("budgets", {"budgets": {"k": Budget(seconds=2)}}, "PRIOQUEUE_BUDGETS['k'] is {"),
        ("marks", {"pending_limit": 7}, "PRIOQUEUE_PENDING_LIMIT is 7, was none"),
    ],
)
def test_each_part_is_named_by_its_setting(backend: Backend, part: str, fields: dict[str, Any], said: str) -> None:
    first, _ = joined(backend, "w1", Policy())

    _, warned = joined(backend, "w2", setting(part, **fields))

    assert said in warned
    assert said in warnings_of(first)


def test_the_same_policy_is_nothing_to_warn_of(backend: Backend) -> None:
    _, at_first = joined(backend, "w1", EVERYTHING)
    _, at_second = joined(backend, "w2", EVERYTHING)
    again, at_return = joined(backend, "w1", EVERYTHING)

    assert at_first == at_second == at_return == warnings_of(again) == ""


def test_a_crawl_that_begins_has_no_policy_yet(backend: Backend) -> None:
    worker, _ = joined(backend, "w1", EVERYTHING)
    assert worker.ask(is_idle=True).has_ended
    worker.leave()

    worker, warned = joined(backend, "w1", NOTHING_SET)

    assert not warned
    worker.commit(*(push(f"{number}", slot=SLOT) for number in range(9)))
    assert len(worker.lease(9)) == 9


def test_nothing_can_be_set_on_purpose(backend: Backend) -> None:
    joined(backend, "w1", EVERYTHING)

    worker, warned = joined(backend, "w2", setting("slots", slots={}))

    assert f"PRIOQUEUE_SLOTS['{SLOT}'] is none, was {{" in warned
    worker.commit(*(push(f"{number}", slot=SLOT) for number in range(9)))
    assert len(worker.lease(9)) == 9
