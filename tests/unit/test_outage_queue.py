"""The outage queue offers requests of the outbox in the frontier's order."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from scrapy_prioqueue.frontier.base import Claim, Lease, Order, Push
from scrapy_prioqueue.frontier.memory import MemoryFrontier
from scrapy_prioqueue.pump.inbox import Inbox
from scrapy_prioqueue.pump.leases import Leases
from scrapy_prioqueue.pump.outage import OutageQueue, Repeats
from scrapy_prioqueue.pump.outbox import HeldRequest, Outbox
from scrapy_prioqueue.pump.shares import LimitShares, Shares
from tests.contract.backends import MemoryBackend
from tests.unit.pumping import FakeDelegate, frontier_config


class Bench:
    """An outbox with its outage queue, which is on."""

    def __init__(self, order: Order = "lifo") -> None:
        self.outbox: Outbox[str] = Outbox()
        shares = Shares("w1", lambda: 0.0)
        leases = Leases(Inbox(lambda: 0.0), self.outbox, FakeDelegate())
        rates = LimitShares(MemoryFrontier(frontier_config("w1")), shares, leases, lambda: 0.0, lambda: None)
        self.queue = OutageQueue(self.outbox, order, shares, Repeats(), rates)
        self.queue.begin()

    def find(self, name: str, rank: int = 0, slot: str = "a.example", **fields: Any) -> None:
        """Push a request as the pump does."""
        self.queue.offer(self.outbox.push(Push(rank, slot, name.encode(), **fields), name))

    def take(self, *slots: str) -> str | None:
        """Take a request, of these slots if any are named, and return its name."""
        hold = self.queue.take(lambda slot: not slots or slot in slots)
        return None if hold is None else hold.lease.payload.decode()

    def take_all(self) -> list[str]:
        """Take requests until there are none."""
        names = []
        while (name := self.take()) is not None:
            names.append(name)
        return names


def test_slots_of_equal_rank_take_turns_and_full_ones_wait() -> None:
    bench = Bench("fifo")
    for name in ("a1", "a2", "b1", "c1"):
        bench.find(name, slot=name[0])

    assert [bench.take("a", "c") for _ in range(3)] == ["a1", "c1", "a2"]
    assert bench.take("a", "c") is None
    assert bench.take("b") == "b1"


def test_request_with_a_fingerprint_offered_before_is_not_offered() -> None:
    bench = Bench("fifo")
    bench.find("1", fingerprint=b"fingerprint 1")
    bench.find("1 again", fingerprint=b"fingerprint 1")
    bench.find("unfiltered")
    bench.find("unfiltered")

    assert bench.take_all() == ["1", "unfiltered", "unfiltered"]


def test_request_whose_first_was_started_is_not_offered_after_more_has_come_free() -> None:
    bench = Bench("fifo")
    bench.find("1", fingerprint=b"fingerprint 1")
    bench.find("1 again", fingerprint=b"fingerprint 1")
    assert bench.take() == "1"

    bench.queue.begin()

    assert bench.take() is None


def test_request_whose_first_may_have_been_sent_is_not_offered() -> None:
    bench = Bench("fifo")
    bench.find("1", fingerprint=b"fingerprint 1")
    bench.outbox.batches()
    bench.outbox.note_failure(was_sent=True)
    bench.find("1 again", fingerprint=b"fingerprint 1")

    bench.queue.begin()

    assert bench.take() is None


def test_a_taken_request_is_claimed_with_a_lease_id_that_no_server_uses() -> None:
    bench = Bench("fifo")
    bench.find("1", rank=3, slot="b.example")
    bench.find("2")
    holds = [bench.queue.take(lambda _: True) for _ in range(2)]

    assert [hold and hold.lease for hold in holds] == [
        Lease(-1, 1, 0, "a.example", b"2"),
        Lease(-2, 1, 3, "b.example", b"1"),
    ]
    assert all(hold is not None and hold.is_claiming for hold in holds)
    (batch,) = bench.outbox.batches()
    assert batch.operations == [Claim(Push(3, "b.example", b"1")), Claim(Push(0, "a.example", b"2"))]


def test_ids_continue_counting_in_the_next_outage() -> None:
    bench = Bench()
    bench.find("1")
    first = bench.queue.take(lambda _: True)
    bench.queue.end()
    bench.queue.begin()
    bench.find("2")
    second = bench.queue.take(lambda _: True)

    assert first is not None and second is not None
    assert first.lease.lease_id != second.lease.lease_id


def test_nothing_is_offered_before_it_begins_and_after_it_ends() -> None:
    bench = Bench()
    bench.queue.end()
    bench.find("1")
    assert (bench.queue.best_rank(), bench.take()) == (None, None)

    bench.queue.begin()
    bench.find("2")
    assert bench.take() == "2"
    bench.queue.end()

    assert (bench.queue.is_on, bench.take()) == (False, None)


def test_a_new_outage_offers_released_requests_once_and_at_their_rank() -> None:
    bench = Bench("fifo")
    bench.find("1")
    bench.outbox.batches()
    bench.find("2")
    bench.find("3")
    bench.queue.begin()
    assert bench.take() == "2"

    bench.outbox.note_failure(was_sent=False)
    bench.queue.begin()

    assert bench.take_all() == ["1", "3"]
    assert bench.take() is None


def test_claims_of_forgotten_leases_are_not_offered() -> None:
    bench = Bench()
    bench.outbox.claim(Push(0, "a.example", b"1"), HeldRequest(Lease(5, 1, 0, "a.example", b"1")))

    bench.queue.begin()

    assert bench.take() is None


FINDS = st.lists(st.tuples(st.integers(0, 2), st.sampled_from("abc"), st.booleans()), max_size=20)


@given(FINDS, st.sampled_from(["lifo", "fifo"]), st.integers(0, 20))
def test_order_is_that_of_the_frontier(finds: list[tuple[int, str, bool]], order: Order, offered_at_once: int) -> None:
    bench = Bench(order)
    worker = MemoryBackend("frontier").join(order=order)
    pushes = [Push(rank, slot, b"%d" % at, is_start=start) for at, (rank, slot, start) in enumerate(finds)]
    for push in pushes[:offered_at_once]:
        bench.outbox.push(push, "")
    bench.queue.begin()
    for push in pushes[offered_at_once:]:
        bench.queue.offer(bench.outbox.push(push, ""))
    worker.commit(*pushes)

    assert bench.queue.best_rank() == min((rank for rank, _, _ in finds), default=None)
    assert bench.take_all() == worker.lease_payloads()
