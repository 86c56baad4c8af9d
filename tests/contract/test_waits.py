"""The reasons for which a worker without work waits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from scrapy_prioqueue.frontier.policy import Closing, Policy, SlotLimit
from scrapy_prioqueue.frontier.waits import MOST_SLOTS, Blocked, Holder, SlowPage, Waits
from tests.contract.backends import TTL_S, Backend, Worker, ack, push

HUNG = SlowPage(7, "http://a.example/ü", "parse", "its callback", 200.0)


def waits(worker: Worker) -> Waits:
    return worker.run(worker.frontier.waits())


def slow(worker: Worker, *pages: SlowPage) -> None:
    worker.run(worker.frontier.report_slow(pages))


def holders(worker: Worker) -> Sequence[Holder]:
    return waits(worker).holders


def test_of_an_empty_frontier_there_is_nothing_to_wait_for(backend: Backend) -> None:
    assert waits(backend.join()) == Waits(holders=[], busy=[], first_slots=[])


def test_leases_of_others_are_listed_by_worker_with_their_last_expiry(backend: Backend) -> None:
    worker, other = backend.join("w1"), backend.join("w2", worker_info={"host": "there"})
    third = backend.join("w3")
    worker.commit(*(push(str(number)) for number in range(5)))
    worker.lease()
    other.lease(2)
    backend.clock.advance(2)
    (late,) = other.lease()
    third.lease()
    backend.clock.advance(1)

    found = waits(worker)

    assert found.leased == 5
    assert found.holders == [Holder("w2", "there", 3, TTL_S - 1, 1.0, []), Holder("w3", "", 1, TTL_S - 1, 1.0, [])]
    other.commit(ack(late))
    assert holders(worker)[0].expires_in_s == TTL_S - 3


def test_a_holder_that_fell_silent_is_reported_until_its_leases_are_reaped(backend: Backend) -> None:
    worker, other = backend.join("w1"), backend.join("w2")
    worker.commit(push("1"))
    other.lease()
    backend.clock.advance(TTL_S + 1)

    assert holders(worker) == [Holder("w2", "", 1, -1.0, TTL_S + 1, [])]


def test_a_worker_that_has_not_reported_idle_is_listed(backend: Backend) -> None:
    worker, other = backend.join("w1"), backend.join("w2")

    before = waits(worker).busy
    other.ask(is_idle=True)

    assert (before, waits(worker).busy) == (["w2"], [])


def test_delayed_requests_are_reported_with_the_first_of_them(backend: Backend) -> None:
    worker = backend.join()
    worker.commit(push("1", delay_ms=9000), push("2", delay_ms=4000))
    backend.clock.advance(1)

    found = waits(worker)

    assert (found.pending, found.delayed, found.due_in_s) == (0, 2, 3.0)


def test_slots_that_wait_are_reported_with_when_they_open_and_why(backend: Backend) -> None:
    worker = backend.join(policy=Policy(slots={"paced.example": SlotLimit(delay=4)}))
    worker.commit(*(push(name, slot=f"{name}.example") for name in ("paced", "closed", "open", "1", "2", "3")))
    worker.commit(push("more", slot="paced.example"))
    worker.lease(1, slot_room={f"{name}.example": 0 for name in ("closed", "open", "1", "2", "3")})
    worker.ask(notes=[Closing(f"{name}.example", 9000) for name in ("closed", "1", "2", "3")])

    found = waits(worker)

    assert (found.pending, found.slots, len(found.first_slots), found.full_slots) == (6, 5, MOST_SLOTS, 0)
    assert found.first_slots[0].slot == "paced.example"
    assert 3 < found.first_slots[0].opens_in_s < 5
    assert not found.first_slots[0].is_closed
    assert found.first_slots[1].is_closed
    assert found.last_opens_in_s == 9.0


def test_a_slot_at_its_concurrency_waits_for_a_lease_to_end(backend: Backend) -> None:
    policy = Policy(slots={"a.example": SlotLimit(concurrency=1)})
    worker, other = backend.join("w1", policy=policy), backend.join("w2", policy=policy)
    worker.commit(push("1"), push("2"))
    other.lease()

    found = waits(worker)

    assert (found.full_slots, found.slots, found.first_slots) == (1, 0, [])


def test_pages_that_may_never_end_are_reported_with_their_holder(backend: Backend) -> None:
    worker, other = backend.join("w1"), backend.join("w2")
    worker.commit(push("1"))
    other.lease()

    slow(other, HUNG)
    backend.clock.advance(2)
    (told,) = holders(worker)[0].slow
    slow(other)

    assert told == SlowPage(HUNG.lease_id, HUNG.url, HUNG.callback, HUNG.stage, HUNG.age_s + 2)
    assert not holders(worker)[0].slow


@pytest.mark.parametrize("is_idle", [False, True])
def test_worker_whose_loop_is_blocked_is_listed(backend: Backend, *, is_idle: bool) -> None:
    worker, other = backend.join("w1"), backend.join("w2")
    blocked = Blocked("in parse of a.py, line 7", 200.0, is_idle)
    later = replace(blocked, age_s=202.0)

    other.run(other.frontier.report_slow([HUNG], blocked))
    backend.clock.advance(2)
    found = waits(worker)
    worker.commit(push("1"))
    other.lease()
    holder = holders(worker)[0]
    slow(other)

    assert (found.busy, found.blocked) == (([], {}) if is_idle else (["w2"], {"w2": later}))
    assert (holder.blocked, len(holder.slow)) == (later, 1)
    assert holders(worker)[0].blocked is None


def test_a_process_that_another_has_followed_reports_nothing(backend: Backend) -> None:
    worker, followed = backend.join("w1"), backend.join("w2")
    worker.commit(push("1"))
    follower = backend.join("w2")
    follower.lease()

    slow(followed, HUNG)

    assert not holders(worker)[0].slow


def test_a_worker_that_joins_learns_who_holds_requests(backend: Backend) -> None:
    first = backend.join("w1")
    assert first.join().waits is None
    first.commit(push("1"))
    first.lease()

    joined = backend.worker("w2").join()

    assert joined.waits is not None
    assert [(holder.worker, holder.leases) for holder in joined.waits.holders] == [("w1", 1)]
