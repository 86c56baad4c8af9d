"""The queue of requests that can't be stored: its order, and which of its requests are in progress."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scrapy import Request

from scrapy_prioqueue.frontier.base import Lease
from scrapy_prioqueue.frontier.policy import Closing, Policy, SlotLimit
from scrapy_prioqueue.pump.outbox import HeldRequest
from scrapy_prioqueue.queues import kept as own
from scrapy_prioqueue.queues.kept import KeptQueue


def request(name: object) -> Request:
    return Request(f"https://shop.example/{name}")


def names(queue: KeptQueue) -> list[str]:
    found = []
    while (popped := queue.pop(None)) is not None:
        found.append(popped.url.rpartition("/")[2])
    return found


def test_request_waits_for_a_better_one_elsewhere_but_goes_before_its_equals() -> None:
    queue = KeptQueue(is_lifo=True)
    queue.push(request("a"), 5, is_start=False)

    assert queue.pop(4) is None
    assert len(queue) == 1
    assert queue.pop(5) is not None
    assert queue.pop(None) is None


def test_queue_is_busy_until_its_started_requests_are_done() -> None:
    queue = KeptQueue(is_lifo=True)
    assert not queue.unfinished

    queue.push(request("a"), 0, is_start=False)
    popped = queue.pop(None)
    assert popped is not None
    assert (len(queue), queue.unfinished) == (0, 1)

    assert queue.finish(request("a")) is None
    kept = queue.finish(popped)
    assert kept is not None
    assert (kept.roots, kept.running) == ((), popped)
    assert kept.scheduled is not popped
    assert queue.finish(popped) is None
    assert not queue.unfinished


def test_queue_knows_the_pages_that_its_requests_come_from() -> None:
    queue, page = KeptQueue(is_lifo=True), HeldRequest(Lease(1, 1, 0, "shop.example", b""))
    rooted, rootless = request("rooted"), request("rootless")
    queue.push(rooted, 0, is_start=False, roots=[page])
    queue.push(rootless, 1, is_start=False, delay_s=99)

    assert queue.has(rooted)
    assert not queue.has(request("rooted"))
    assert (queue.roots_of(rooted), queue.roots_of(rootless), queue.roots_of(request("x"))) == ([page], (), None)
    assert queue.count_rootless() == 1
    assert (list(queue.roots_in_progress()), queue.is_running) == ([], False)
    queue.pop(None)
    assert (list(queue.roots_in_progress()), queue.is_running) == ([page], True)
    kept = queue.finish(rooted)
    assert kept is not None
    assert kept.roots == [page]
    assert not queue.has(rooted)


@given(st.lists(st.tuples(st.integers(-2, 2), st.booleans())), st.booleans(), st.booleans())
def test_order_is_total_for_any_pushes(pushed: list[tuple[int, bool]], is_lifo: bool, are_starts_lifo: bool) -> None:
    queue = KeptQueue(is_lifo=is_lifo, are_starts_lifo=are_starts_lifo)
    for number, (rank, is_start) in enumerate(pushed):
        queue.push(request(number), rank, is_start=is_start)

    def place(number: int) -> tuple[int, bool, int]:
        rank, is_start = pushed[number]
        return rank, is_start, -number if (are_starts_lifo if is_start else is_lifo) else number

    assert names(queue) == [str(number) for number in sorted(range(len(pushed)), key=place)]


def test_a_delayed_request_is_there_when_it_is_due(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(own, "monotonic", lambda: now)
    queue = KeptQueue(is_lifo=True)
    queue.push(request("late"), 0, is_start=False, delay_s=5)
    queue.push(request("now"), 9, is_start=False)

    assert names(queue) == ["now"]
    assert (len(queue), queue.unfinished) == (1, 2)
    now = 105.0
    assert names(queue) == ["late"]


def test_a_request_goes_only_where_its_slot_has_room() -> None:
    full: set[str] = set()
    may_wait: set[str] = set()
    queue = KeptQueue(is_lifo=True, may_start=lambda slot: slot not in full, may_wait=may_wait.__contains__)
    for number, slot in enumerate("aab"):
        queue.push(request(number), number, is_start=False, slot=slot)
    full.add("a")

    assert names(queue) == ["2"]
    may_wait.add("a")
    assert names(queue) == ["0", "1"]


def test_requests_here_do_not_go_before_better_ones_elsewhere() -> None:
    queue = KeptQueue(is_lifo=True, may_start=lambda slot: slot == "b")
    queue.push(request("full"), 0, is_start=False, slot="a")
    queue.push(request("free"), 9, is_start=False, slot="b")

    assert queue.pop(5) is None
    assert queue.pop(9) is not None


def test_the_limits_of_slots_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(own, "monotonic", lambda: now)
    wakes: list[float] = []
    policy = Policy(slots={"slow": SlotLimit(delay=10.0), "few": SlotLimit(concurrency=1)})
    queue = KeptQueue(is_lifo=False, policy=policy, wake_later=wakes.append)
    for number, slot in enumerate(["slow", "slow", "few", "few"]):
        queue.push(request(number), 0, is_start=False, slot=slot)

    popped = [queue.pop(None), queue.pop(None)]
    assert [each.url[-1] for each in popped if each is not None] == ["0", "2"]
    assert names(queue) == []
    assert wakes == [pytest.approx(10.1, abs=0.1)]
    assert popped[1] is not None
    queue.finish(popped[1])
    assert names(queue) == ["3"]
    now = 110.2
    assert names(queue) == ["1"]


def test_a_site_that_asks_for_a_pause_gets_it(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(own, "monotonic", lambda: now)
    wakes: list[float] = []
    queue = KeptQueue(is_lifo=False, wake_later=wakes.append)
    for number in range(2):
        queue.push(request(number), 0, is_start=False, slot="a")
    running = queue.pop(None)
    assert running is not None

    queue.note(Closing("a", 5000))

    assert names(queue) == []
    assert wakes == [pytest.approx(5.0)]
    queue.finish(running)
    now = 105.1
    assert names(queue) == ["1"]
