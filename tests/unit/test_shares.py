"""Which requests a worker starts in an outage, and the limit on repeated pages."""

from __future__ import annotations

from collections import Counter

import pytest

from scrapy_prioqueue.frontier.base import Depth, Joined, Push
from scrapy_prioqueue.pump.outage import REPEATS_PER_PAGE, Repeats
from scrapy_prioqueue.pump.shares import LIST_AGAIN_S, LIST_SOONEST_S, Shares
from tests.support.clocks import Clock


def shares_of(names: list[str]) -> list[Shares]:
    fleet = [Shares(name, Clock()) for name in names]
    for shares in fleet:
        shares.note_alive(len(names))
        shares.note_workers(names)
    return fleet


def push(number: int) -> Push:
    return Push(0, "a.example", b"%d" % number, b"fingerprint %d" % number)


@pytest.mark.parametrize("workers", [2, 4, 9])
def test_each_request_is_that_of_one_worker_and_the_parts_are_equal(workers: int) -> None:
    fleet = shares_of([f"host-{number}:{4000 + number}" for number in range(workers)])

    owners = [[at for at, shares in enumerate(fleet) if shares.is_mine(push(number))] for number in range(2000)]

    assert {len(found) for found in owners} == {1}
    counts = Counter(found[0] for found in owners)
    assert min(counts.values()) > 0.75 * 2000 / workers


def test_worker_that_is_gone_leaves_the_shares_of_all_others_as_they_were() -> None:
    before, after = shares_of(["a", "b", "c"])[0], shares_of(["a", "b"])[0]

    assert all(after.is_mine(push(number)) for number in range(200) if before.is_mine(push(number)))


def test_unfiltered_requests_belong_to_their_worker_and_start_requests_are_shared() -> None:
    fleet = shares_of(["a", "b"])
    unfiltered, start = Push(0, "a.example", b"1"), Push(0, "a.example", b"1", start_mark=b"mark")

    assert [shares.is_mine(unfiltered) for shares in fleet] == [True, True]
    assert sorted(shares.is_mine(start) for shares in fleet) == [False, True]


def test_a_single_worker_takes_all_requests_and_lists_no_others() -> None:
    (shares,) = shares_of(["a"])

    assert all(shares.is_mine(push(number)) for number in range(100))
    assert not shares.must_list


def test_living_workers_are_listed_when_their_number_changes_and_now_and_then() -> None:
    clock = Clock()
    shares = Shares("a", clock)
    shares.note_alive(2)
    assert shares.must_list
    shares.note_workers(["a", "b"])
    assert not shares.must_list

    shares.note_alive(3)
    assert not shares.must_list
    clock.advance(LIST_SOONEST_S)
    assert shares.must_list
    shares.note_workers(["a", "b", "c"])
    clock.advance(LIST_AGAIN_S - 1)
    assert not shares.must_list
    clock.advance(1)
    assert shares.must_list


def begun(repeats: Repeats, most: int = 1000) -> int:
    """Start requests until no more may be, and return how many those were."""
    for count in range(most):
        if not repeats.may_start():
            return count
        repeats.note_start()
    return most


def test_worker_whose_pushes_were_all_new_starts_all_it_finds() -> None:
    repeats = Repeats()
    repeats.note_joined(Joined(Depth(), is_new=True))
    for number in range(50):
        repeats.note_pushed(push(number), was_known=False)

    assert begun(repeats) == 1000


def test_worker_that_resumes_a_crawl_starts_next_to_nothing_until_it_knows_the_site() -> None:
    repeats = Repeats()
    repeats.note_joined(Joined(Depth(), is_new=False))
    assert begun(repeats) == 0
    for _ in range(100):
        repeats.note_page()
    assert begun(repeats) == 100 * REPEATS_PER_PAGE

    repeats.note_settled()
    for number in range(500):
        repeats.note_pushed(push(number), was_known=False)
    assert begun(repeats, 500) == 500


def test_chances_are_paid_back_when_it_is_known_what_was_repeated() -> None:
    repeats = Repeats()
    for number in range(100):
        repeats.note_pushed(push(number), was_known=number % 2 == 0)
        repeats.note_page()
    expected = pytest.approx(2 * 100 * REPEATS_PER_PAGE, abs=1)
    assert begun(repeats) == expected

    repeats.note_repeats(2)
    repeats.note_settled()

    assert begun(repeats) == pytest.approx(2 * (100 * REPEATS_PER_PAGE - 2), abs=1)
