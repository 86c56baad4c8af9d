"""A request is leased only if it fits the budgets of all its keys; otherwise it becomes a dead letter."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from scrapy_prioqueue.frontier.base import DEAD_BY_BUDGET, Claim, Exchanged, Spent
from scrapy_prioqueue.frontier.policy import Budget, Policy, SlotLimit
from scrapy_prioqueue.rank import rank_of
from tests.contract.backends import (
    TTL_S,
    Backend,
    Worker,
    ack,
    fail,
    is_balanced,
    labelled_push,
    push,
    release,
    text_of,
)


def capped(**caps: Budget) -> Policy:
    return Policy(budgets=caps)


def fill(worker: Worker, number: int, *keys: str, is_rendered: bool = False) -> None:
    worker.commit(*(labelled_push(str(at), *keys, is_rendered=is_rendered) for at in range(number)))


def details(worker: Worker) -> list[str]:
    return [letter.detail for letter in worker.dead_letters() if letter.reason == DEAD_BY_BUDGET]


# Caps


def test_a_cap_of_pages_is_exact(backend: Backend) -> None:
    workers = [backend.join(f"w{number}", policy=capped(k=Budget(pages=100))) for number in range(20)]
    for _ in range(3):
        fill(workers[0], 50, "k")

    fetched, over = 0, 0
    for turn in range(100):
        answer = workers[turn % 20].ask(3)
        fetched += len(answer.leases)
        over += answer.over_budget.get("k", 0)
        workers[turn % 20].commit(*map(ack, answer.leases))

    assert (fetched, over) == (100, 50)
    assert set(details(workers[0])) == {"budget k: pages 100 of 100"}


def test_leased_requests_count_before_they_are_done(backend: Backend) -> None:
    first, second = (backend.join(name, policy=capped(k=Budget(pages=3))) for name in ("w1", "w2"))
    fill(first, 5, "k")

    assert len(first.lease(2)) == 2
    answer = second.ask(5)

    assert len(answer.leases) == 1
    assert answer.over_budget == {"k": 2}
    assert answer.depth.dead == 2
    assert not answer.dead_letters


def test_renders_are_counted_among_what_is_rendered(backend: Backend) -> None:
    worker = backend.join(policy=capped(k=Budget(renders=1)))
    fill(worker, 3, "k")
    fill(worker, 3, "k", is_rendered=True)

    answer = worker.ask(9)

    assert len(answer.leases) == 4
    assert answer.over_budget == {"k": 2}
    assert set(details(worker)) == {"budget k: renders 1 of 1"}


@pytest.mark.parametrize(
    ("budget", "detail"),
    [
        (Budget(bytes=1000), "budget k: bytes 1500 of 1000"),
        (Budget(seconds=2.5), "budget k: seconds 3.75 of 2.5"),
    ],
)
def test_bytes_and_seconds_count_when_a_request_is_done(backend: Backend, budget: Budget, detail: str) -> None:
    worker = backend.join(policy=capped(k=budget))
    fill(worker, 6, "k")
    half = Spent(bytes=750, time_ms=1875)
    (first, second, third) = worker.lease(3)

    worker.commit(ack(first, half))
    (fourth,) = worker.lease(1)
    worker.commit(fail(second, spent=half), ack(third), release(fourth))

    assert worker.ask(9).over_budget == {"k": 3}
    assert set(details(worker)) == {detail}


def test_a_cap_of_bytes_is_used_up_when_it_is_reached(backend: Backend) -> None:
    worker = backend.join(policy=capped(k=Budget(bytes=1000)))
    fill(worker, 2, "k")
    (lease,) = worker.lease(1)

    worker.commit(ack(lease, Spent(bytes=1000)))

    assert worker.ask(1).over_budget == {"k": 1}


def test_the_cost_of_a_request_is_counted_once(backend: Backend) -> None:
    worker = backend.join(policy=capped(k=Budget(bytes=1000)))
    fill(worker, 2, "k")
    (lease,) = worker.lease(1)

    worker.commit(ack(lease, Spent(bytes=600)))
    assert worker.commit(ack(lease, Spent(bytes=600))).void == [0]

    assert len(worker.lease(1)) == 1


def test_requests_without_a_label_have_no_budget(backend: Backend) -> None:
    worker = backend.join(policy=Policy(budgets={"*": Budget(0, 0, 0, 0)}))
    worker.commit(push("plain"), labelled_push("no keys"), labelled_push("labelled", "k"))

    answer = worker.ask(9)

    assert sorted(text_of(lease.payload) for lease in answer.leases) == ["no keys", "plain"]
    assert answer.over_budget == {"k": 1}


def test_leases_carry_their_labels(backend: Backend) -> None:
    worker = backend.join(policy=Policy(budgets={}))
    request = labelled_push("text", "k")
    worker.commit(request)

    assert [lease.payload for lease in worker.lease(1)] == [request.payload]


# What is given back


@pytest.mark.parametrize("is_rendered", [False, True])
@pytest.mark.parametrize("how", ["released", "lost", "recovered", "unknown"])
def test_a_lease_that_comes_to_nothing_costs_nothing(backend: Backend, how: str, is_rendered: bool) -> None:
    policy = capped(k=Budget(pages=2, renders=2))
    worker = backend.join(policy=policy)
    fill(worker, 2, "k", is_rendered=is_rendered)
    leases = worker.lease(2)

    if how == "released":
        worker.commit(*map(release, leases))
    elif how == "lost":
        backend.clock.advance(TTL_S)
    elif how == "recovered":
        worker = backend.join(policy=policy)
    else:
        worker.reconcile()

    answer = worker.ask(2)
    assert (len(answer.leases), answer.over_budget) == (2, {})


def test_a_request_that_dies_of_its_lost_leases_costs_nothing(backend: Backend) -> None:
    worker = backend.join(policy=capped(k=Budget(pages=1)), max_attempts=1)
    fill(worker, 2, "k")
    worker.lease(1)

    backend.clock.advance(TTL_S)

    assert len(worker.lease(1)) == 1


@pytest.mark.parametrize("end", [ack, fail])
def test_a_request_that_is_done_or_has_failed_keeps_its_page(backend: Backend, end: type) -> None:
    worker = backend.join(policy=capped(k=Budget(pages=1)))
    fill(worker, 2, "k")
    (lease,) = worker.lease(1)

    worker.commit(end(lease))

    assert worker.ask(1).over_budget == {"k": 1}


# Keys


def test_a_request_must_fit_all_of_its_keys(backend: Backend) -> None:
    worker = backend.join(policy=capped(company=Budget(pages=3), job=Budget(pages=2)))
    worker.commit(
        *(labelled_push(text, "job", "company", rank=at) for at, text in enumerate("abc")),
        *(labelled_push(text, "company", rank=at) for at, text in enumerate("de", 3)),
    )

    answer = worker.ask(9)

    assert [text_of(lease.payload) for lease in answer.leases] == ["a", "b", "d"]
    assert answer.over_budget == {"job": 1, "company": 1}
    assert sorted(details(worker)) == ["budget company: pages 3 of 3", "budget job: pages 2 of 2"]


def test_the_first_key_that_has_no_room_is_reported(backend: Backend) -> None:
    worker = backend.join(policy=capped(narrow=Budget(pages=0), wide=Budget(pages=0)))
    worker.commit(labelled_push("", "free", "wide", "narrow"))

    assert worker.ask(1).over_budget == {"wide": 1}


def test_a_request_over_one_key_costs_nothing_of_the_others(backend: Backend) -> None:
    worker = backend.join(policy=capped(job=Budget(pages=0), company=Budget(pages=1)))
    worker.commit(labelled_push("over", "job", "company", rank=0), labelled_push("fits", "company", rank=1))

    assert [text_of(lease.payload) for lease in worker.lease(2)] == ["fits"]


@pytest.mark.parametrize(
    ("budgets", "fitting"),
    [
        ({"*": Budget(pages=2)}, {"k": 2, "other": 2}),
        ({"*": Budget(pages=2), "k": Budget(pages=1)}, {"k": 1, "other": 2}),
        ({"*": Budget(pages=2), "k": Budget(pages=3)}, {"k": 3, "other": 2}),
        ({"*": Budget(pages=2), "k": Budget(bytes=1)}, {"k": 2, "other": 2}),
        ({"k": Budget(pages=1)}, {"k": 1, "other": 4}),
        ({}, {"k": 4, "other": 4}),
    ],
)
def test_each_cap_is_looked_up_by_itself(
    backend: Backend, budgets: Mapping[str, Budget], fitting: Mapping[str, int]
) -> None:
    worker = backend.join(policy=Policy(budgets=budgets))
    worker.commit(*(labelled_push(key, key) for key in ("k", "other") for _ in range(4)))

    leased = worker.lease_payloads(99)

    assert {key: leased.count(key) for key in ("k", "other")} == fitting


# Dead letters


def test_the_dead_letter_says_all(backend: Backend) -> None:
    worker = backend.join(policy=capped(k=Budget(pages=0)))
    request = labelled_push("text", "k", rank=7, slot="b.example")
    worker.commit(request)

    worker.ask(1)

    (letter,) = worker.dead_letters()
    assert (letter.reason, letter.detail) == (DEAD_BY_BUDGET, "budget k: pages 0 of 0")
    assert (letter.attempts, letter.worker, letter.lost_by, letter.traceback) == (0, "", "", "")
    assert (letter.rank, letter.slot, letter.payload) == (7, "b.example", request.payload)
    assert letter.died_ms == backend.clock()


def test_a_suspect_over_budget_dies_with_the_attempts_it_had(backend: Backend) -> None:
    worker = backend.join(policy=capped(k=Budget(pages=1)))
    worker.commit(labelled_push("suspect", "k"))
    for _ in range(2):
        worker.lease(1)
        backend.clock.advance(TTL_S)
    worker.commit(Claim(labelled_push("claimed", "k")))
    worker.commit(push("other", 1))

    answer = worker.ask(1)

    assert [lease.payload for lease in answer.leases] == [b"other"]
    assert answer.over_budget == {"k": 1}
    assert [(letter.attempts, letter.lost_by) for letter in worker.dead_letters()] == [(2, "w1, w1")]


def test_dead_letters_that_are_not_wanted_are_only_counted(backend: Backend) -> None:
    worker = backend.join(policy=capped(k=Budget(pages=0)), dead_on=("lease",))
    fill(worker, 3, "k")

    answer = worker.ask(9)

    assert answer.over_budget == {"k": 3}
    assert answer.depth.dead == 3
    assert not worker.dead_letters()


def test_requests_over_budget_take_no_place_among_leases(backend: Backend) -> None:
    worker = backend.join(policy=capped(k=Budget(pages=0)))
    fill(worker, 5, "k")
    worker.commit(push("fits", 1))

    assert worker.lease_payloads(1, slot_limit=1) == ["fits"]


def test_slots_over_budget_do_not_hide_others(backend: Backend) -> None:
    worker = backend.join(policy=capped(k=Budget(pages=0)))
    worker.commit(*(labelled_push("over", "k", slot=f"s{at}") for at in range(30)))
    worker.commit(push("later", 2, "s0"), push("last", 3, "other"), push("first", 1, "another"))

    answer = worker.ask(2)

    assert [text_of(lease.payload) for lease in answer.leases] == ["first", "later"]
    assert answer.over_budget == {"k": 30}


def test_tiers_over_budget_leave_nothing_to_others_while_they_have_more(backend: Backend) -> None:
    policy = Policy(weights=(1, 1), budgets={"k": Budget(pages=0)})
    worker = backend.join(policy=policy)
    worker.commit(*(labelled_push("over", "k", rank=rank_of(0, 1), slot=f"s{at}") for at in range(30)))
    worker.commit(push("high", rank_of(0, 0), "b"), push("low", rank_of(1, 0), "a"))

    assert worker.lease_payloads(1, slot_room={"a": 1, "c": 0}) == ["high"]


def test_requests_over_budget_take_neither_pace_nor_share(backend: Backend) -> None:
    policy = Policy({"*": SlotLimit(1.0, 1)}, weights=(1, 1), budgets={"k": Budget(pages=0)})
    worker = backend.join(policy=policy)
    worker.commit(*(labelled_push("over", "k", rank=rank_of(0, 9 - at), slot="a") for at in range(5)))
    worker.commit(push("fits", rank_of(0, 0), "a"), push("low", rank_of(1, 0), "b"), push("more", rank_of(0, 0), "c"))

    assert worker.lease_payloads(9) == ["more", "low", "fits"]


def test_a_slot_over_budget_goes_to_the_back_of_the_turns(backend: Backend) -> None:
    worker = backend.join(order="fifo", policy=capped(k=Budget(pages=0)))
    worker.commit(labelled_push("over", "k", slot="a"), push("a", 0, "a"), push("b", 0, "b"), push("c", 0, "c"))

    assert worker.lease_payloads(9) == ["b", "c", "a"]


def test_so_much_is_given_up_in_one_exchange_and_no_more(backend: Backend) -> None:
    worker = backend.join(policy=capped(k=Budget(pages=0)))
    for _ in range(3):
        fill(worker, 50, "k")
    worker.commit(push("fits", 1))

    first = worker.ask(1)
    assert (first.over_budget, len(first.leases), first.next_due_s) == ({"k": 100}, 0, 0)
    assert is_balanced(first.depth)

    second = worker.ask(1)
    assert (second.over_budget, len(second.leases)) == ({"k": 50}, 1)


def test_other_slots_are_served_while_more_is_over_budget_than_one_exchange_gives_up(backend: Backend) -> None:
    worker = backend.join(policy=capped(k=Budget(pages=0)))
    for start in range(0, 150, 50):
        worker.commit(*(labelled_push(f"{at}", "k", slot="a") for at in range(start, start + 50)))
    worker.commit(*(labelled_push(f"more{at}", "k", rank=1, slot="b") for at in range(3)))
    worker.commit(push("fits", 2, "c"), push("behind", 3, "a"))

    first, second = worker.ask(2), worker.ask(2)

    assert [text_of(lease.payload) for lease in first.leases] == ["fits"]
    assert (first.over_budget, first.next_due_s) == ({"k": 100}, 0)
    assert [text_of(lease.payload) for lease in second.leases] == ["behind"]
    assert second.over_budget == {"k": 53}
    assert is_balanced(second.depth)


def test_the_crawl_ends_with_what_is_over_budget(backend: Backend) -> None:
    worker = backend.join(policy=capped(k=Budget(pages=0)))
    fill(worker, 3, "k")

    answer: Exchanged = worker.ask(1, is_idle=True)

    assert answer.has_ended
    assert answer.over_budget == {"k": 3}


# Claims, crawls and workers that join


def test_a_claim_is_granted_beyond_the_budget_and_counted(backend: Backend) -> None:
    worker = backend.join(policy=capped(k=Budget(pages=1)))
    fill(worker, 1, "k")
    worker.lease(1)

    committed = worker.commit(Claim(labelled_push("claimed", "k")))
    fill(worker, 2, "k")
    assert len(committed.claimed) == 1
    assert worker.ask(1).over_budget == {"k": 2}

    fill(worker, 1, "k")
    worker.reconcile()
    # Two of the three that are pending now would be one too many.
    assert len(worker.lease(1)) == 1


def test_a_raised_budget_lets_more_through(backend: Backend) -> None:
    first = backend.join("w1", policy=capped(k=Budget(pages=1)))
    fill(first, 1, "k")
    first.lease(1)

    backend.join("w2", policy=capped(k=Budget(pages=2)))
    fill(first, 2, "k")
    answer = first.ask(9)

    assert (len(answer.leases), answer.over_budget) == (1, {"k": 1})


def test_a_new_crawl_has_used_nothing(backend: Backend) -> None:
    policy = capped(k=Budget(pages=1))
    worker = backend.join(policy=policy)
    fill(worker, 1, "k")
    worker.commit(*map(ack, worker.lease(1)))
    assert worker.ask(is_idle=True).has_ended

    again = backend.join(policy=policy)
    fill(again, 1, "k")

    assert len(again.lease(1)) == 1


def test_budgets_let_workers_start_nothing_by_themselves(backend: Backend) -> None:
    assert backend.join(policy=Policy(budgets={})).ask().must_ask
