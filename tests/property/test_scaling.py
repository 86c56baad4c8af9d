"""The number of workers that is advised, against what fleets of any size get done in a simple model."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scrapy_prioqueue.monitoring.scaling import SHRINK_AFTER_S, Advice, Goals, Scaler, SlotWork, Work, advise

PAGE_S, PLACES, DRAIN_S = 1.0, 8, 100.0
PER_WORKER = PLACES / PAGE_S
EXAMPLES = 50
GOALS = Goals(drain_s=DRAIN_S, most=1000)

SLOTS = st.builds(
    SlotWork,
    pending=st.integers(1, 20_000),
    opens_in_s=st.sampled_from([0.0, 0.5, 30.0, 1_000.0]),
    interval_s=st.sampled_from([0.0, 0.1, 1.0, 7.0]),
    concurrency=st.sampled_from([0, 1, 4]),
)
CRAWLS = st.lists(SLOTS, min_size=1, max_size=20)


def possible(slot: SlotWork) -> float:
    """Return how many requests of a slot a fleet of any size can start in the drain time."""
    if not (slot.interval_s or slot.concurrency):
        return slot.pending if slot.opens_in_s <= DRAIN_S else 0
    ends: list[float] = []
    at, started = slot.opens_in_s, 0
    while at <= DRAIN_S and started < slot.pending:
        if slot.concurrency and len(ends) == slot.concurrency:
            at = max(at, ends.pop(0))
            continue
        ends.append(at + PAGE_S)
        started, at = started + 1, at + slot.interval_s
    return started


def work_of(slots: Sequence[SlotWork], workers: int) -> Work:
    """Return the work of a fleet that crawls these slots as fast as it can."""
    wanted = sum(map(possible, slots)) / DRAIN_S
    rate = min(workers * PER_WORKER, wanted)
    return Work(
        "open",
        pending=int(sum(slot.pending for slot in slots)),
        leased=round(rate * PAGE_S),
        slots=slots,
        workers=workers,
        satisfied=workers if rate < wanted else 0,
        measured_workers=workers,
        done_per_s=rate or None,
        places=PLACES,
    )


@settings(max_examples=EXAMPLES)
@given(CRAWLS, st.integers(1, 50))
def test_that_many_workers_are_in_time_and_fewer_are_not(slots: list[SlotWork], workers: int) -> None:
    work = work_of(slots, workers)
    wanted = sum(map(possible, slots))

    advice = advise(work, GOALS, 0)

    slack = work.leased + len(slots) * PLACES
    # Workers for slots that open later are only started then.
    if all(slot.opens_in_s < PAGE_S for slot in slots):
        assert advice.workers * PER_WORKER * DRAIN_S >= 0.85 * wanted - slack
    assert (advice.workers - 1) * PER_WORKER * DRAIN_S <= 1.15 * wanted + slack


@settings(max_examples=EXAMPLES)
@given(CRAWLS, st.integers(1, 50), st.integers(1, 100_000))
def test_requests_that_only_wait_for_limits_need_no_more_workers(
    slots: list[SlotWork], workers: int, more: int
) -> None:
    work = work_of(slots, workers)
    longer = [
        replace(slot, pending=slot.pending + more) if slot.interval_s and slot.pending > possible(slot) else slot
        for slot in [*slots, closed(more)]
    ]

    pending = int(sum(slot.pending for slot in longer))
    more_work = replace(work, slots=longer, pending=pending)

    assert advise(more_work, GOALS, workers).workers == advise(work, GOALS, workers).workers


@settings(max_examples=EXAMPLES)
@given(CRAWLS, st.integers(0, 50), st.integers(0, 3), st.integers(3, 20))
def test_the_number_is_within_its_bounds_and_above_zero_while_something_is_left(
    slots: list[SlotWork], workers: int, least: int, most: int
) -> None:
    goals = replace(GOALS, least=least, most=most)

    assert max(1, least) <= advise(work_of(slots, workers), goals).workers <= most
    for phase in (None, "ended", "open"):
        assert advise(Work(phase, workers=workers), goals, 0).workers == least
    for idle in (Work("open", is_due_soon=True), Work("ended", has_seeds=True), Work("open", is_starting=True)):
        assert advise(idle, goals).workers == max(1, least)


def free(depth: int) -> SlotWork:
    return SlotWork(depth)


def slow(depth: int) -> SlotWork:
    return SlotWork(depth, interval_s=1)


def closed(depth: int) -> SlotWork:
    return SlotWork(depth, opens_in_s=3600)


def test_one_worker_stays_while_all_slots_are_closed() -> None:
    advice = advise(Work("open", pending=5, slots=[closed(5)], workers=3, done_per_s=0.0), GOALS)

    assert (advice.workers, advice.bound_by, advice.held_by_limits) == (1, "limits", 5)


@pytest.mark.parametrize("kinds", [[free], [slow], [free, slow, closed]])
def test_a_sample_of_very_many_slots_is_enough(kinds: Sequence[Callable[[int], SlotWork]]) -> None:
    dice, count = random.Random(1), 20_000
    # A few slots have most of the requests.
    slots = [dice.choice(kinds)(int(dice.paretovariate(1.1))) for _ in range(count)]
    pending = int(sum(slot.pending for slot in slots))

    def sampled() -> Work:
        return Work("open", pending=pending, slots=[replace(s, weight=count / 1000) for s in dice.sample(slots, 1000)])

    exact = Work("open", pending=pending, slots=slots).starts(600)
    estimates = [sampled().starts(600) for _ in range(10)]

    assert 0.7 * exact < min(estimates) <= max(estimates) < 1.5 * exact


# A crawl whose fleet follows the advice


class Crawl:
    """A fleet that crawls one slot, in steps of five seconds; a new worker takes a while to start.

    Args:
        rate: requests per second that the slot allows.
    """

    def __init__(self, pending: int, rate: float, workers: int = 0) -> None:
        self.pending, self.rate, self.workers = float(pending), rate, workers
        self.now_s, self.done_per_s = 0.0, 0.0
        self.numbers: list[int] = []
        self._starting: list[tuple[float, int]] = []
        self._scaler = Scaler(GOALS)

    def step(self) -> Advice:
        """Let five seconds pass, and follow the advice."""
        able = self.workers * PER_WORKER
        done_per_s = min(able, self.rate, self.pending / 5)
        self.pending -= done_per_s * 5
        self.now_s += 5
        work = Work(
            "open" if self.pending >= 1 else "ended",
            pending=int(self.pending),
            leased=round(done_per_s * PAGE_S),
            slots=[SlotWork(self.pending, interval_s=1 / self.rate)],
            workers=self.workers,
            satisfied=self.workers if done_per_s == able else 0,
            measured_workers=self.workers,
            done_per_s=done_per_s or None,
            places=PLACES,
        )
        advice = self._scaler.advise(work, self.now_s)
        self._starting.append((self.now_s + 10, advice.workers))
        while self._starting and self._starting[0][0] <= self.now_s:
            self.workers = self._starting.pop(0)[1]
        self.numbers.append(advice.workers)
        return advice


def test_a_fleet_grows_for_what_can_run_and_goes_when_nothing_is_left() -> None:
    crawl = Crawl(pending=8_000, rate=1_000)

    while crawl.step().workers:
        assert crawl.now_s < 3 * DRAIN_S

    changes = [number for number, before in zip(crawl.numbers, [0, *crawl.numbers], strict=False) if number != before]
    assert 10 <= max(changes) <= 14
    assert len(changes) < 8


def test_a_fleet_shrinks_to_one_worker_for_a_slow_slot() -> None:
    crawl = Crawl(pending=8_000, rate=2, workers=10)

    while crawl.now_s < 3 * SHRINK_AFTER_S:
        advice = crawl.step()

    assert (advice.workers, advice.bound_by, crawl.workers) == (1, "limits", 1)
    assert crawl.numbers == sorted(crawl.numbers, reverse=True)


LOST = [
    pytest.param(Work(None), id="vanished"),
    pytest.param(Work(None, has_seeds=True), id="vanished, with new seeds"),
    pytest.param(Work("ended", "earlier"), id="an earlier crawl is back, which has ended"),
    pytest.param(Work("open", "earlier", pending=1), id="an earlier crawl is back, which is open"),
    pytest.param(Work("open", "now", known=5), id="the same crawl is back without its newest writes"),
]


@pytest.mark.parametrize("outage_s", [0, 600])
@pytest.mark.parametrize("work", LOST)
@pytest.mark.parametrize("ttl_s", [10, 300])
def test_no_worker_is_sent_away_while_the_fleet_may_restore_what_the_server_has_lost(
    work: Work, outage_s: float, ttl_s: float
) -> None:
    scaler = Scaler(GOALS, ttl_s)
    busy = replace(work_of([SlotWork(4_000)], 5), epoch="now")
    at_s = 0.0
    while at_s < 30:
        number = scaler.advise(busy, at_s).workers
        at_s += 15
    assert number == 5

    lost_s = at_s = at_s + outage_s
    while at_s < lost_s + max(ttl_s, SHRINK_AFTER_S):
        assert scaler.advise(work, at_s).workers == 5
        at_s += 15
    advice = scaler.advise(work, at_s)

    assert advice.workers == (1 if work.left or work.has_seeds else 0)
    assert advice.bound_by != "lost"
    # What the workers have restored is another crawl, whose end counts at once.
    scaler.advise(replace(busy, epoch="restored"), at_s + 15)
    assert scaler.advise(Work("ended", "restored"), at_s + 30).workers == 0


def test_without_a_frontier_nothing_is_known_at_first() -> None:
    scaler = Scaler(GOALS, 100)

    assert [scaler.is_unknown(Work(None), at_s) for at_s in (7.0, 106.0, 107.0)] == [True, True, False]
    assert (scaler.advise(Work(None), 107.0).workers, scaler.is_unknown(Work(None), 108.0)) == (0, False)
    assert not Scaler(GOALS).is_unknown(Work(None, has_seeds=True), 0.0)


def test_silent_workers_count_until_it_is_known_what_they_do() -> None:
    """After an outage all workers are silent for some seconds."""
    assert advise(Work("open", pending=1_000, known=5), GOALS).workers == 5


def test_a_need_that_varies_does_not_change_the_number() -> None:
    scaler, dice = Scaler(GOALS), random.Random(1)
    work = work_of([SlotWork(8_000)], 10)

    answers = {
        scaler.advise(replace(work, pending=round(8_000 * dice.uniform(0.85, 1.05))), at_s).workers
        for at_s in range(0, 3600, 15)
    }

    assert answers == {10}
