"""How many workers are useful now: a pure function of the work that a frontier has."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from heapq import nlargest
from math import ceil, inf
from typing import Literal

from scrapy_prioqueue.printable import counted

# fmt: off
Bound = Literal[
    "nothing", "ended", "lost", "paused", "waiting", "unknown rate", "drain time", "places", "limits", "budgets",
    "flood", "minimum", "maximum",
]
# fmt: on
"""What determines the number of workers; see docs/reference/commands.md."""

HOLDING: Mapping[Bound, str] = {
    "limits": "slots wait for their limits, which more workers would not change",
    "budgets": "budgets are exhausted",
    "flood": "a flood holds discovery back",
}
"""What may hold back requests, as text."""

GROW_ABOVE, SHRINK_BELOW = 1.1, 0.75
"""The number changes if the workers needed, divided by the current ones, are above the first or below the second."""

SHRINK_AFTER_S = 60.0
"""Minimum seconds for which fewer workers must have been needed before the number is reduced."""

LONG_PART = 100
"""One of this many slots of a sample has a long queue, which is counted as shorter."""

USUAL_PAGE_S = 1.0
"""Seconds from lease to end of a request, while that isn't known."""


@dataclass(frozen=True, slots=True)
class SlotWork:
    """The requests of a slot, and how fast they may be served.

    Args:
        pending: number of requests in its queue.
        flooded: number of those that are held back by a flood.
        over_budget: number of those that exceed a budget.
        opens_in_s: seconds until its rate allows the next request; negative if it allows more than one at once.
        interval_s: seconds between two requests, 0 for no delay.
        concurrency: number of requests that may be leased, 0 for any.
        running: number of leased requests; only with a concurrency.
        weight: number of slots for which it stands; more than 1 in a sample.
    """

    pending: float
    flooded: float = 0
    over_budget: float = 0
    opens_in_s: float = 0
    interval_s: float = 0
    concurrency: int = 0
    running: int = 0
    weight: float = 1

    @property
    def served(self) -> float:
        """Number of requests that aren't held back."""
        return max(0.0, self.pending - self.flooded - self.over_budget)

    @property
    def is_free(self) -> bool:
        """Whether its requests may start at any time."""
        return not (self.interval_s or self.concurrency or self.opens_in_s > 0) and self.served == self.pending

    def starts(self, within_s: float, page_s: float) -> float:
        """Return how many of its requests may start within this time.

        Args:
            page_s: seconds that a request takes.
        """
        found = self.served
        if self.opens_in_s > within_s:
            return 0.0
        if self.interval_s:
            found = min(found, (within_s - self.opens_in_s) // self.interval_s + 1)
        if self.concurrency:
            rounds = max(1.0, (within_s - max(0.0, self.opens_in_s)) / page_s)
            found = min(found, max(0.0, self.concurrency * rounds - self.running))
        return found


@dataclass(frozen=True)
class Work:
    """The requests of a frontier, and how fast its workers have done requests lately.

    Args:
        phase: of the crawl; None if there is no frontier of this name.
        epoch: identifies the crawl.
        is_lost: the crawl of the last reading has vanished, so the server has probably lost it.
        is_paused: by an operator.
        is_due_soon: a delayed request is due, or will be soon.
        has_seeds: seeds wait for a worker.
        is_starting: a worker has joined just now, hasn't read all start requests, or runs handlers of signals.
        slots: those with pending requests, or a random sample of them; empty if all requests can start at any time.
        workers: number of workers at work.
        known: number of workers that the frontier knows, with silent ones: after an outage all are silent for a while.
        satisfied: number of those that got as many requests as they asked for.
        measured_workers: average number of workers while the rate was measured.
        done_per_s: requests done per second; None if unknown.
        places: number of requests that a worker can have in progress.
    """

    phase: str | None
    epoch: str = ""
    is_lost: bool = False
    is_paused: bool = False
    pending: int = 0
    leased: int = 0
    is_due_soon: bool = False
    has_seeds: bool = False
    is_starting: bool = False
    slots: Sequence[SlotWork] = ()
    workers: int = 0
    known: int = 0
    satisfied: int = 0
    measured_workers: float = 0
    done_per_s: float | None = None
    places: int = 16

    @property
    def left(self) -> int:
        """Number of requests that are stored and may be served once."""
        return self.pending + self.leased

    @property
    def page_s(self) -> float:
        """Average seconds from lease to end of a request (Little's law)."""
        return self.leased / self.done_per_s if self.leased and self.done_per_s else USUAL_PAGE_S

    @property
    def per_worker_per_s(self) -> float | None:
        """Requests per second of a worker that always has enough requests; None if unknown.

        Workers that wait for slots do less than they could. So the rate is divided by the number of workers that got
        as many requests as they asked for, or by the number that the leases keep busy if that is larger.
        """
        if not (self.done_per_s and self.workers and self.measured_workers):
            return None
        busy = min(self.workers, max(self.satisfied, self.leased / self.places))
        return self.done_per_s / (self.measured_workers * busy / self.workers) if busy else None

    @property
    def is_sampled(self) -> bool:
        """Whether some slots stand for others."""
        return any(slot.weight > 1 for slot in self.slots)

    @cached_property
    def _free(self) -> float:
        """Number of pending requests that may start at any time.

        A sample may miss the few slots with the most requests, or contain one that then stands for many slots. So the
        longest queues of the sample are counted as shorter; the total is known, and the rest of it is divided by slots.
        """
        sample = [slot for slot in self.slots if slot.weight > 1]
        longest = nlargest(max(1, len(sample) // LONG_PART), (slot.pending for slot in sample))[-1] if sample else inf
        free = in_slots = free_slots = slots = 0.0
        for slot in self.slots:
            count = slot.weight * (min(slot.pending, longest) if slot.weight > 1 else slot.pending)
            in_slots, slots = in_slots + count, slots + slot.weight
            if slot.is_free:
                free, free_slots = free + count, free_slots + slot.weight
        if in_slots > self.pending:
            return free * self.pending / in_slots
        return free + (self.pending - in_slots) * (free_slots / slots if slots else 1.0)

    def starts(self, within_s: float) -> float:
        """Return how many pending requests may start within this time."""
        held = sum(slot.starts(within_s, self.page_s) * slot.weight for slot in self.slots if not slot.is_free)
        return min(float(self.pending), self._free + held)

    def held_by(self, count: Callable[[SlotWork], float]) -> float:
        """Return how many pending requests are held back, given how many of a slot are."""
        return min(float(self.pending), sum(count(slot) * slot.weight for slot in self.slots))


@dataclass(frozen=True, slots=True)
class Goals:
    """What the operators want, from the settings.

    Args:
        drain_s: seconds in which the requests that can start should be done.
        least: minimum number of workers, also without work.
        most: maximum number of workers.
    """

    drain_s: float = 600.0
    least: int = 0
    most: int = 10


@dataclass(frozen=True, slots=True)
class Advice:
    """How many workers are useful now, and why.

    Args:
        workers: the answer.
        bound_by: what determines it.
        why: a sentence about that.
        running: number of workers at work now.
        needed: number of workers that are needed by the present numbers alone.
        left: number of pending and leased requests.
        runnable: number of those that are in progress or can start within the drain time.
        held_by_limits: number of those that slots can't serve within that time.
        held_by_budgets: number of those that exceed a budget.
        held_by_flood: number of those that a flood holds back.
        done_per_s: requests done per second; None if unknown.
        per_worker_per_s: requests per second of a worker that always has enough requests; None if unknown.
        drain_s: the drain time wanted, in seconds.
        least: the minimum wanted.
        most: the maximum wanted.
        is_sampled: numbers of requests are estimated from a sample of the slots.
    """

    workers: int
    bound_by: Bound
    why: str
    running: int
    needed: float
    left: int
    runnable: int
    held_by_limits: int
    held_by_budgets: int
    held_by_flood: int
    done_per_s: float | None
    per_worker_per_s: float | None
    drain_s: float
    least: int
    most: int
    is_sampled: bool


class Scaler:
    """Gives advice repeatedly, so that the number doesn't follow every change.

    The number grows when two successive readings need more workers. It shrinks when all readings of the last
    `SHRINK_AFTER_S` seconds need fewer, or of the last `lease_ttl_s` if that is longer: within that time the workers
    restore what a server has lost.

    Args:
        lease_ttl_s: seconds for which a silent worker counts as alive.
    """

    def __init__(self, goals: Goals, lease_ttl_s: float = 0.0) -> None:
        self._goals = goals
        self._hold_s = max(SHRINK_AFTER_S, lease_ttl_s)
        self._needed: deque[tuple[float, float]] = deque()
        self._last: int | None = None
        self._epoch: str | None = None
        self._missing_since_s: float | None = None

    def advise(self, work: Work, now_s: float) -> Advice:
        """Return how many workers are useful.

        Args:
            now_s: seconds that never go back.
        """
        # The number needed at one reading counts until the next reading, even if the server was unavailable in between.
        while len(self._needed) > 1 and now_s - self._needed[1][0] >= self._hold_s:
            self._needed.popleft()
        work = replace(work, is_lost=self._has_lost(work, now_s))
        advice = advise(work, self._goals, self._last, [needed for _, needed in self._needed])
        self._needed.append((now_s, advice.needed))
        self._last = advice.workers
        return advice

    def is_unknown(self, work: Work, now_s: float) -> bool:
        """Return whether there is no frontier, and nothing is known about an earlier one that the server may have lost.

        Args:
            now_s: seconds that never go back.
        """
        if work.phase is not None or work.has_seeds or self._last is not None:
            return False
        self._missing_since_s = now_s if self._missing_since_s is None else self._missing_since_s
        return now_s - self._missing_since_s < self._hold_s

    def _has_lost(self, work: Work, now_s: float) -> bool:
        """Return whether the open crawl has vanished, or an earlier one that has ended is there in its place."""
        if work.phase not in (None, "ended"):
            self._epoch = work.epoch
        if self._epoch in (None, work.epoch):
            self._missing_since_s = None
            return False
        since_s = now_s if self._missing_since_s is None else self._missing_since_s
        is_lost = now_s - since_s < self._hold_s
        self._missing_since_s = since_s if is_lost else None
        self._epoch = self._epoch if is_lost else None
        return is_lost


def advise(work: Work, goals: Goals, current: int | None = None, lately: Sequence[float] = ()) -> Advice:
    """Return how many workers are useful.

    Args:
        current: number of workers of the last advice; None to use those at work.
        lately: numbers of workers needed at the readings of the last `SHRINK_AFTER_S` seconds, the latest one last.
    """
    current = max(work.workers, work.known) if current is None else current
    found = _Finding(work, goals, current)
    needed, bound, why = found.needed()
    workers = 0 if bound == "ended" else _steadied(needed, current, lately)
    if ceil(needed) != workers:
        why += f"; {needed:.1f} are needed now, but small and short changes are ignored"
    if workers > goals.most:
        workers, bound, why = goals.most, "maximum", f"the maximum, less than the {needed:.1f} needed: {why}"
    elif workers < goals.least:
        workers, bound, why = goals.least, "minimum", f"the minimum: {why}"
    return Advice(
        workers=workers,
        bound_by=bound,
        why=why,
        running=work.workers,
        needed=round(needed, 2),
        left=work.left,
        runnable=round(found.runnable),
        held_by_limits=round(found.held["limits"]),
        held_by_budgets=round(found.held["budgets"]),
        held_by_flood=round(found.held["flood"]),
        done_per_s=work.done_per_s,
        per_worker_per_s=work.per_worker_per_s,
        drain_s=goals.drain_s,
        least=goals.least,
        most=goals.most,
        is_sampled=work.is_sampled,
    )


def _steadied(needed: float, current: int, lately: Sequence[float]) -> int:
    """Return the next number of workers: the current one, unless clearly more or fewer are needed for some time."""
    # The first worker is needed at once.
    most = max(1, current) if lately and lately[-1] <= current * GROW_ABOVE else needed
    steady = max(min(needed, most), min(max(lately, default=0.0), current))
    return current if current * SHRINK_BELOW < steady <= current * GROW_ABOVE else ceil(steady)


class _Finding:
    """Computes how many workers are needed by the present numbers, and why."""

    def __init__(self, work: Work, goals: Goals, current: int) -> None:
        self._work, self._goals, self._current = work, goals, current
        starts = work.starts(goals.drain_s)
        flood, budgets = work.held_by(lambda slot: slot.flooded), work.held_by(lambda slot: slot.over_budget)
        self.runnable = starts + work.leased
        self.held: Mapping[Bound, float] = {
            "limits": max(0.0, work.pending - starts - flood - budgets),
            "budgets": budgets,
            "flood": flood,
        }

    def needed(self) -> tuple[float, Bound, str]:
        """Return the number, what determines it, and a sentence about that."""
        work, drain_s = self._work, self._goals.drain_s
        if not work.left:
            return self._without_requests()
        if work.is_paused:
            return 1.0, "paused", "the crawl is paused; one worker waits until it is resumed"
        if self.runnable < 1:
            none = f"none of {counted(work.left, 'request')} can start in time"
            return 1.0, self._holding, f"{HOLDING[self._holding]}; {none}"
        per_worker, by_places = work.per_worker_per_s, (work.leased + work.starts(work.page_s)) / work.places
        if per_worker is None:
            needed = max(1.0, min(self._current, by_places))
            return needed, "unknown rate", "it is not known yet how fast a worker is"
        by_time = self.runnable / drain_s / per_worker
        needed = max(1.0, min(by_time, by_places))
        rate = f"in {drain_s:,.0f} s, at {per_worker:,.1f} per second and worker"
        without_limits = min(work.left / drain_s / per_worker, work.left / work.places)
        if without_limits * SHRINK_BELOW > needed:
            can = f"{self.runnable:,.0f} of {counted(work.left, 'request')} can be done {rate}"
            return needed, self._holding, f"{HOLDING[self._holding]}; {can}"
        if by_places < by_time:
            left = counted(work.left, "request")
            return needed, "places", f"each worker can have {work.places} of {left} in progress"
        return needed, "drain time", f"{counted(round(self.runnable), 'request')} {rate}"

    @property
    def _holding(self) -> Bound:
        """What holds back most requests."""
        return max(self.held, key=lambda what: self.held[what])

    def _without_requests(self) -> tuple[float, Bound, str]:
        work = self._work
        if work.has_seeds:
            return 1.0, "waiting", "seeds wait for a worker"
        if work.is_lost:
            return 0.0, "lost", "the server has probably lost the crawl, which its workers restore"
        if work.phase in (None, "ended"):
            return 0.0, "ended", "the crawl has ended" if work.phase else "no crawl has begun"
        if work.is_due_soon:
            return 1.0, "waiting", "a delayed request is due soon"
        if work.is_starting:
            return 1.0, "waiting", "a worker has just started, reads start requests, or runs handlers of signals"
        return 0.0, "nothing", "no request can start now or soon"
