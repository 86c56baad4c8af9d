"""What a policy says, as plainly as it can be said; the part of the model that is about limits, weights and budgets."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import ceil, floor

from scrapy_prioqueue.frontier.labels import Label
from scrapy_prioqueue.frontier.operations import Spent
from scrapy_prioqueue.frontier.policy import Budget, Closing, CrawlDelay, Latency, Note, Policy, SlotLimit


@dataclass
class Shares:
    """What slots, tiers and budget keys have had in a crawl."""

    policy: Policy = Policy()
    paced_ms: dict[str, float] = field(default_factory=dict)
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
    left: int = 0
    width: int = 1
    looked_ms: int = 0

    # Slots

    @property
    def are_limited(self) -> bool:
        """Whether slots may have to wait."""
        return self.was_limited

    def limit(self, slot: str) -> SlotLimit:
        """Return the limits of a slot; its name has no dots."""
        own, every = self.policy.slots.get(slot, SlotLimit()), self.policy.slots.get("*", SlotLimit())
        return SlotLimit(
            next(value for value in (own.delay_s, every.delay_s, 0) if value is not None),
            next(value for value in (own.concurrency, every.concurrency, 0) if value is not None),
            next(value for value in (own.burst, every.burst, 1) if value is not None),
        )

    def delay_ms(self, slot: str) -> float:
        """Return the delay that a limit asks for."""
        return (self.limit(slot).delay_s or 0) * 1000

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

    def note(self, note: Note, now_ms: int) -> None:
        """Take account of what a worker has learnt."""
        slot = note.slot
        if isinstance(note, Closing):
            self.was_limited = True
            self.paced_ms[slot] = max(self.paced_ms.get(slot, 0), now_ms + note.wait_ms + self.lead_ms(slot))
        elif isinstance(note, CrawlDelay):
            self.was_limited = True
            self.crawl_delays_ms[slot] = note.delay_ms
        elif self.policy.throttle is not None:
            self._adapt(note, self.policy.throttle.target_concurrency, self.policy.throttle.max_delay_s * 1000)

    def _adapt(self, latency: Latency, concurrency: float, max_delay_ms: float) -> None:
        old, target = self.throttled(latency.slot), latency.latency_ms / concurrency
        new = min(max(target, (old + target) / 2), max_delay_ms)
        new = max(new, self.delay_ms(latency.slot))
        if latency.is_success or new > old:
            self.throttled_ms[latency.slot] = new

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

    def look(self, pending: int, leased: int, now_ms: int) -> int:
        """See whether there is a flood, and return how many discoveries may be served where nothing else can be."""
        high, low, was_flooded = self.policy.high_water, self.policy.low_water, self.is_flooded
        self.is_flooded = high > 0 and (pending > low if was_flooded else pending >= high)
        fewer = self.left - (pending + leased)
        if not was_flooded or fewer < 0:
            self.left, self.width, self.looked_ms = pending + leased, 1, now_ms
        elif fewer > 0:
            self.left, self.width, self.looked_ms = pending + leased, self.width + fewer, now_ms
        elif now_ms - self.looked_ms >= 1000:
            self.width, self.looked_ms = self.width + 1, now_ms
        return max(0, self.width - leased)

    # Budgets

    def excess(self, label: Label | None) -> tuple[str, str] | None:
        """Return the key that a request is over, and the dead letter's detail."""
        for key in label.keys if label is not None else ():
            own = (self.policy.budgets or {}).get(key, Budget())
            every = (self.policy.budgets or {}).get("*", Budget())
            costs: list[tuple[str, float, float, float | None]] = [
                ("pages", self.pages[key], 1, _first(own.pages, every.pages)),
                ("renders", self.renders[key], 1, _first(own.renders, every.renders)),
                ("bytes", self.bytes[key], 0.001, _first(own.bytes, every.bytes)),
                ("seconds", self.time_ms[key] / 1000, 0.0001, _first(own.seconds, every.seconds)),
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


def _first(*values: float | None) -> float | None:
    return next((value for value in values if value is not None), None)
