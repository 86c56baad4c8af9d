"""The part of the model for limits, weights and budgets."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from math import ceil, floor, inf
from typing import TypeVar

from scrapy_prioqueue.frontier.labels import Label
from scrapy_prioqueue.frontier.operations import Spent
from scrapy_prioqueue.frontier.policy import (
    LINGER_MS,
    Budget,
    Closing,
    CrawlDelay,
    HeldUp,
    Latency,
    Policy,
    SlotLimit,
    SlotNote,
)

Number = TypeVar("Number", int, float)


@dataclass
class Shares:
    """What slots, tiers and budget keys have had in a crawl."""

    policy: Policy = Policy()
    said_limits: dict[str, SlotLimit] = field(default_factory=dict)
    said_budgets: dict[str, Budget] = field(default_factory=dict)
    paced_ms: dict[str, float] = field(default_factory=dict)
    closed_ms: dict[str, float] = field(default_factory=dict)
    crawl_delays_ms: dict[str, float] = field(default_factory=dict)
    throttled_ms: dict[str, float] = field(default_factory=dict)
    was_limited: bool = False
    has_budgets: bool = False
    passes: Counter[int] = field(default_factory=Counter)
    pass_of_last: float = 0.0
    pages: Counter[str] = field(default_factory=Counter)
    renders: Counter[str] = field(default_factory=Counter)
    bytes: Counter[str] = field(default_factory=Counter)
    time_ms: Counter[str] = field(default_factory=Counter)
    is_flooded: bool = False
    is_at_limit: bool = False
    left: int = 0
    width: int = 1
    looked_ms: int = 0
    held: int = 0
    counted_ms: int | None = None
    held_back: int = 0

    # Slots

    @property
    def are_limited(self) -> bool:
        """Whether slots may have to wait."""
        return self.was_limited

    def limit(self, slot: str) -> SlotLimit:
        """Return the limits of a slot; its name has no dots."""
        said, policy = self.said_limits, self.policy.slots
        return _resolved(said.get(slot), policy.get(slot), said.get("*"), policy.get("*"))

    def say_limit(self, name: str, limit: SlotLimit | None, now_ms: int) -> None:
        """Go by what an operator says of a slot, or of all; None takes it back."""
        befores = {slot: (self.limit(slot).burst or 1, self.interval_ms(slot)) for slot in self.paced_ms}
        if limit is None:
            self.said_limits.pop(name, None)
        else:
            old, self.was_limited = self.said_limits.get(name, SlotLimit()), True
            self.said_limits[name] = SlotLimit(
                _first(limit.delay, old.delay),
                _first(limit.concurrency, old.concurrency),
                _first(limit.burst, old.burst),
            )
        for slot, before in befores.items():
            if name in (slot, "*"):
                self._pace_anew(slot, *before, now_ms)

    def _pace_anew(self, slot: str, old_burst: int, old_ms: float, now_ms: int) -> None:
        """Let what was served count as so many requests of the new rate; a slot that is closed stays so."""
        burst, interval_ms = self.limit(slot).burst or 1, self.interval_ms(slot)
        ahead_ms = self.paced_ms[slot] - now_ms
        if ahead_ms <= 0 or (burst, interval_ms) == (old_burst, old_ms):
            return
        if ahead_ms <= old_burst * old_ms:
            self.paced_ms[slot] = now_ms + min(ahead_ms / old_ms, burst) * interval_ms
        else:
            self.paced_ms[slot] += (burst - 1) * interval_ms - (old_burst - 1) * old_ms
        if self.closed_ms.get(slot, 0) > now_ms:
            self.paced_ms[slot] = max(self.paced_ms[slot], self.closed_ms[slot] + self.lead_ms(slot))

    def open(self, slot: str) -> None:
        """Let a slot be served at once."""
        self.paced_ms.pop(slot, None)
        self.closed_ms.pop(slot, None)

    def delay_ms(self, slot: str) -> float:
        """Return the delay that a limit asks for."""
        return (self.limit(slot).delay or 0) * 1000

    def throttled(self, slot: str) -> float:
        """Return the delay that latencies ask for."""
        throttle = self.policy.throttle
        return 0 if throttle is None else self.throttled_ms.get(slot, throttle.start_delay_s * 1000)

    def interval_ms(self, slot: str) -> float:
        """Return the time between two requests of a slot."""
        throttled = self.throttled(slot)
        if self.policy.throttle is not None:
            throttled = min(throttled, self.policy.throttle.max_delay_s * 1000)
        return max(self.delay_ms(slot), self.crawl_delays_ms.get(slot, 0), throttled) * 1.01

    def lead_ms(self, slot: str) -> float:
        """Return how long before its pace is due a slot opens, for its burst."""
        return ((self.limit(slot).burst or 1) - 1) * self.interval_ms(slot)

    def opens_ms(self, slot: str) -> float:
        """Return when the next request of a slot may start."""
        return self.paced_ms[slot] - self.lead_ms(slot) if slot in self.paced_ms and self.are_limited else 0

    def concurrency(self, slot: str) -> int:
        """Return how many requests of a slot may be leased at a time, 0 for any number."""
        return (self.limit(slot).concurrency or 0) if self.are_limited else 0

    def pace(self, slot: str, now_ms: int) -> tuple[int, int | None]:
        """Count a lease of a slot, and return in how many milliseconds it may start, and how much later at most."""
        start, interval = max(now_ms, self.opens_ms(slot)), self.interval_ms(slot)
        if not self.are_limited or not interval:
            return ceil(start - now_ms), None
        self.paced_ms[slot] = max(self.paced_ms.get(slot, 0), start - min(50, interval / 2)) + interval
        return ceil(start - now_ms), floor(100 + interval / 2)

    def note(self, note: SlotNote, now_ms: int) -> None:
        """Take account of what a worker has learnt."""
        slot = note.slot
        if isinstance(note, Closing):
            self.was_limited = True
            self.paced_ms[slot] = max(self.paced_ms.get(slot, 0), now_ms + note.wait_ms + self.lead_ms(slot))
            self.closed_ms[slot] = max(self.closed_ms.get(slot, 0), now_ms + note.wait_ms)
        elif isinstance(note, CrawlDelay):
            self.was_limited = True
            self.crawl_delays_ms[slot] = note.delay_ms
            if note.starts_now:
                self._start_anew(slot, now_ms)
        elif isinstance(note, HeldUp):
            self._start_anew(slot, now_ms)
        elif self.policy.throttle is not None:
            self._adapt(note, self.policy.throttle.target_concurrency, self.policy.throttle.max_delay_s * 1000)

    def _start_anew(self, slot: str, now_ms: int) -> None:
        interval = self.interval_ms(slot)
        if interval:
            self.paced_ms[slot] = max(self.paced_ms.get(slot, 0), now_ms + interval + self.lead_ms(slot))

    def _adapt(self, latency: Latency, concurrency: float, max_delay_ms: float) -> None:
        old, target = self.throttled(latency.slot), latency.latency_ms / concurrency
        new = min(max(target, (old + target) / 2), max_delay_ms)
        if latency.is_success or new > old:
            self.throttled_ms[latency.slot] = new

    def end_limits(self, now_ms: int, slots: Iterable[str]) -> None:
        """Limit nothing any more where only sites have asked for pauses, and these are over for long.

        Args:
            slots: those that have requests.
        """
        said = self.policy.limits_slots or self.said_limits or self.crawl_delays_ms or self.throttled_ms
        closed = any(at + LINGER_MS > now_ms for at in self.closed_ms.values())
        if not (said or closed or any(self.opens_ms(slot) > now_ms for slot in slots)):
            self.was_limited = False
            self.paced_ms.clear()
            self.closed_ms.clear()

    # Tiers

    def next_tier(self, tiers: Sequence[int]) -> int:
        """Return which of these tiers is served."""
        if not self.policy.weights:
            return min(tiers)
        return min(tiers, key=lambda tier: (max(self.passes[tier], self.pass_of_last), tier))

    def step(self, tier: int) -> None:
        """Count that a tier was served."""
        if self.policy.weights:
            self.pass_of_last = max(self.passes[tier], self.pass_of_last)
            self.passes[tier] = self.pass_of_last + 1 / self.policy.weights[tier]  # type: ignore[assignment]

    # Floods

    def look(self, pending: int, leased: int, now_ms: int, positions: Mapping[tuple[int, str], int]) -> int:
        """See whether there is a flood, and return how many discoveries may be served where nothing else can be.

        Args:
            positions: how many requests, suspects aside, wait in each lane and slot.
        """
        high, low, was_flooded = self.policy.high_water, self.policy.low_water, self.is_flooded
        least = inf if not high else low + 1 if was_flooded else high
        if pending >= least:
            age_ms = inf if self.counted_ms is None else now_ms - self.counted_ms
            if age_ms >= (500 if was_flooded or pending - self.held < high else 50):
                self.held, self.counted_ms = self._count_held(positions, now_ms), now_ms
        self.is_at_limit = 0 < self.policy.pending_limit <= pending
        self.held_back = self.held if pending >= least else 0
        self.is_flooded = self.is_at_limit or pending - self.held_back >= least
        fewer = self.left - (pending + leased)
        if not was_flooded or fewer < 0:
            self.left, self.width, self.looked_ms = pending + leased, 1, now_ms
        elif fewer > 0:
            self.left, self.width, self.looked_ms = pending + leased, self.width + fewer, now_ms
        elif now_ms - self.looked_ms >= 1000:
            self.width, self.looked_ms = self.width + 1, now_ms
        return max(0, self.width - leased)

    def _count_held(self, positions: Mapping[tuple[int, str], int], now_ms: int) -> int:
        """Count the requests of slots that can't serve them within a minute."""
        held, by_slot = 0, Counter[str]()
        for (_, slot), count in positions.items():
            by_slot[slot] += count
        for (_, slot), count in positions.items():
            excess = by_slot[slot] - self._startable(slot, now_ms)
            held += int(count * excess) // by_slot[slot] if excess > 0 else 0
        return held

    def _startable(self, slot: str, now_ms: int) -> float:
        """Return how many requests of a slot may start within a minute."""
        if not self.are_limited:
            return inf
        first, interval = max(self.paced_ms.get(slot, 0), now_ms) - self.lead_ms(slot), self.interval_ms(slot)
        if first > now_ms + 60_000:
            return 0
        return floor((now_ms + 60_000 - first) / interval) + 1 if interval else inf

    # Budgets

    def budget(self, key: str) -> Budget:
        """Return the budget of a key."""
        names = [(said, name) for name in (key, "*") for said in (self.said_budgets, self.policy.budgets or {})]
        return _joined(said.get(name, Budget()) for said, name in names)

    def say_budget(self, name: str, budget: Budget | None) -> None:
        """Go by what an operator allows a key, or all; None takes it back."""
        if budget is None:
            self.said_budgets.pop(name, None)
        else:
            self.said_budgets[name] = _joined([budget, self.said_budgets.get(name, Budget())])

    def excess(self, label: Label | None) -> tuple[str, str] | None:
        """Return the key that a request is over, and the dead letter's detail."""
        for key in label.keys if label is not None and self.has_budgets else ():
            budget = self.budget(key)
            costs: list[tuple[str, float, float, float | None]] = [
                ("pages", self.pages[key], 1, budget.pages),
                ("renders", self.renders[key], 1, budget.renders),
                ("bytes", self.bytes[key], 0.001, budget.bytes),
                ("seconds", self.time_ms[key] / 1000, 0.0001, budget.seconds),
            ]
            for what, used, least, cap in costs:
                counts = what != "renders" or (label is not None and label.is_rendered)
                if cap is not None and counts and used + least > cap:
                    return key, f"budget {key}: {what} {used:g} of {cap:g}"
        return None

    def hold(self, label: Label | None, change: int) -> None:
        """Count a request that is leased, or that was and comes to nothing."""
        for key in label.keys if label is not None and self.has_budgets else ():
            self.pages[key] += change
            self.renders[key] += change if label is not None and label.is_rendered else 0

    def spend(self, label: Label | None, spent: Spent) -> None:
        """Count what a request has cost that is done or has failed."""
        for key in label.keys if label is not None and self.has_budgets else ():
            self.bytes[key] += spent.bytes
            self.time_ms[key] += spent.time_ms


def _joined(entries: Iterable[Budget]) -> Budget:
    """Return what the first entry says of each cap that says something."""
    caps = [(each.pages, each.renders, each.bytes, each.seconds) for each in entries]
    pages, renders, size, seconds = zip(*caps, strict=True)
    return Budget(_first(*pages), _first(*renders), _first(*size), _first(*seconds))


@cache
def _resolved(*limits: SlotLimit | None) -> SlotLimit:
    entries = [limit for limit in limits if limit is not None]
    return SlotLimit(
        _first(*(entry.delay for entry in entries), 0),
        _first(*(entry.concurrency for entry in entries), 0),
        _first(*(entry.burst for entry in entries), 1),
    )


def _first(*values: Number | None) -> Number | None:
    return next((value for value in values if value is not None), None)
