"""In an outage the workers' shares of a limit do not exceed the limit together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import pytest

from scrapy_prioqueue.frontier.base import Lease
from scrapy_prioqueue.frontier.memory import MemoryFrontier
from scrapy_prioqueue.frontier.policy import Closing, CrawlDelay, LimitsInForce, Policy, SlotLimit
from scrapy_prioqueue.pump.inbox import Inbox
from scrapy_prioqueue.pump.leases import Leases
from scrapy_prioqueue.pump.outbox import HeldRequest, Outbox
from scrapy_prioqueue.pump.shares import LimitShares, Shares
from tests.unit.pumping import FakeDelegate, frontier_config
from tests.unit.virtual_time import in_virtual_time

STEP_S = 0.01


class Fleet:
    """Workers on one clock, of which each starts all that it may, and holds it."""

    def __init__(self, workers: int, policy: Policy, said: Mapping[str, SlotLimit] | None = None) -> None:
        self.now = 1000.0
        self.held: list[dict[int, HeldRequest]] = []
        self.rates: list[LimitShares] = []
        names = [f"w{number}" for number in range(workers)]
        for name in names:
            shares = Shares(name, lambda: self.now)
            shares.note_alive(workers)
            shares.note_workers(names)
            frontier = MemoryFrontier(frontier_config(name, policy=policy))
            frontier.operators_limits = lambda: said or {}  # type: ignore[method-assign]
            leases: Leases[str] = Leases(Inbox(lambda: self.now), Outbox(), FakeDelegate())
            self.held.append(leases.held)
            self.rates.append(LimitShares(frontier, shares, leases, lambda: self.now, lambda: None))

    def begin(self) -> None:
        """Let the server be away."""
        for rates in self.rates:
            rates.begin()

    def run(self, slot: str, seconds: float, *, lasting_s: float = 0.0) -> list[float]:
        """Return when requests of a slot start, which take so long."""
        starts: list[float] = []
        ends: list[tuple[float, dict[int, HeldRequest], int]] = []
        until = self.now + seconds
        while self.now < until:
            for at, held, number in [end for end in ends if end[0] <= self.now]:
                del held[number]
                ends.remove((at, held, number))
            for rates, held in zip(self.rates, self.held, strict=True):
                while rates.may_start(slot) and len(starts) < 1000:
                    number = len(starts)
                    rates.note_start(slot)
                    starts.append(self.now)
                    held[number] = HeldRequest(Lease(-number, 1, 0, slot, b""))
                    ends.append((self.now + lasting_s, held, number))
                    if lasting_s == 0:
                        break
            self.now += STEP_S
        for _, held, number in ends:
            del held[number]
        return starts


def gaps(starts: list[float]) -> list[float]:
    return [second - first for first, second in zip(starts, starts[1:], strict=False)]


@in_virtual_time
@pytest.mark.parametrize("workers", [1, 2, 5])
async def test_workers_together_keep_the_delay_of_a_slot(workers: int) -> None:
    fleet = Fleet(workers, Policy({"a": SlotLimit(0.5)}))
    fleet.begin()

    starts = fleet.run("a", 20)

    assert 36 <= len(starts) <= 40
    assert min(gaps(starts)) >= 0.4
    assert starts[0] >= 1000.5


@in_virtual_time
@pytest.mark.parametrize("workers, concurrency", [(1, 3), (2, 3), (3, 1), (4, 6)])
async def test_workers_together_keep_the_concurrency_of_a_slot(workers: int, concurrency: int) -> None:
    fleet = Fleet(workers, Policy({"*": SlotLimit(concurrency=concurrency)}))
    fleet.begin()

    assert Counter(fleet.run("a", 0.5, lasting_s=1)) == {1000.0: concurrency}


@in_virtual_time
async def test_operators_limits_and_learned_delays_count() -> None:
    fleet = Fleet(1, Policy({"a": SlotLimit(0.5)}), {"a": SlotLimit(2.0)})
    fleet.rates[0].note(CrawlDelay("b", 1000))
    fleet.begin()

    assert len(fleet.run("a", 20)) in (9, 10)
    assert len(fleet.run("b", 20)) in (19, 20)


@in_virtual_time
async def test_a_site_that_has_asked_for_a_pause_is_left_alone() -> None:
    fleet = Fleet(1, Policy())
    fleet.rates[0].note_in_force(LimitsInForce(closed_ms={"a": 3000}))
    fleet.begin()
    fleet.rates[0].note(Closing("b", 1000))

    assert min(fleet.run("a", 4)) == pytest.approx(1003, abs=0.02)
    assert min(fleet.run("b", 1)) == pytest.approx(1004, abs=0.02)


@in_virtual_time
async def test_without_limits_and_when_the_server_answers_nothing_waits() -> None:
    fleet = Fleet(2, Policy({"a": SlotLimit(9.0)}))
    assert fleet.rates[0].may_start("a")

    fleet.begin()
    assert fleet.rates[0].may_start("b")
    assert not fleet.rates[0].may_start("a")
    fleet.rates[0].end()

    assert fleet.rates[0].may_start("a")


def test_crawl_delays_of_the_oldest_of_very_many_slots_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scrapy_prioqueue.pump.shares.MOST_LEARNT", 2)
    fleet = Fleet(1, Policy())
    for slot in ("a", "b", "a", "c"):
        fleet.rates[0].note(CrawlDelay(slot, 1000))

    fleet.begin()

    assert [len(fleet.run(slot, 3.5)) > 4 for slot in "abc"] == [False, True, False]
