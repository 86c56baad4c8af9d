"""How a frontier shares its requests out: limits of slots, weights of tiers, budgets, water marks; plain data only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from scrapy_prioqueue.frontier.kept import Kept

STRETCH = 1.01
"""By this much the times between requests of a slot are longer than its delay.

A request that starts up to `LATE_MS` late comes into a window of 10 s that it doesn't belong to; 1 % of 10 s makes up
for that, so no such window holds more than the rate allows and one more.
"""

LATE_MS = 100
"""So much later than its time, and half the time to the next one, a request of a slot with a delay may still start."""

CATCH_UP_MS = 50
"""A slot that is served late by up to this, or half of the time to the next one, loses none of its rate."""

LINGER_MS = 10_000
"""Where only the pauses for which sites have asked are limits, slots have none any more so long after the last one."""

EVERY = "*"
"""The name that stands for all slots, or budget keys, that no other entry is about."""


@dataclass(frozen=True, slots=True)
class SlotLimit:
    """What may be fetched of a slot by all workers together; None for what a more general entry says.

    Args:
        delay_s: seconds between two requests, 0 for none.
        concurrency: requests at a time, 0 for any number.
        burst: requests that may go out at once after a pause, at least 1; 1 where nothing is said.
    """

    delay_s: float | None = None
    concurrency: int | None = None
    burst: int | None = None


def joined_limits(first: Mapping[str, SlotLimit], second: Mapping[str, SlotLimit]) -> Mapping[str, SlotLimit]:
    """Return limits by name, of each name what `first` says, or else `second`."""
    joined = dict(second)
    for name, limit in first.items():
        other = second.get(name, SlotLimit())
        joined[name] = SlotLimit(
            other.delay_s if limit.delay_s is None else limit.delay_s,
            other.concurrency if limit.concurrency is None else limit.concurrency,
            other.burst if limit.burst is None else limit.burst,
        )
    return joined


@dataclass(frozen=True, slots=True)
class Budget:
    """What requests of one budget key may cost in all; None for what a more general entry says, or no limit.

    Args:
        pages: requests fetched.
        renders: those of them that are rendered by a browser.
        bytes: of the bodies of responses, as they came.
        seconds: of downloading and processing.
    """

    pages: int | None = None
    renders: int | None = None
    bytes: int | None = None
    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Throttle:
    """How the delays of slots follow their latency; see Scrapy's AutoThrottle, whose formula it is.

    Args:
        start_delay_s: delay of a slot of which no response has come yet.
        max_delay_s: a longer one comes from limits only.
        target_concurrency: requests that a slot is to have under way on average, of all workers together.
    """

    start_delay_s: float = 5.0
    max_delay_s: float = 60.0
    target_concurrency: float = 1.0


@dataclass(frozen=True, slots=True)
class Policy:
    """Everything that a frontier enforces; of each part that of the worker which has joined last counts.

    Args:
        slots: limits by slot; `*.example.com` is about all slots below `example.com`, `*` about all.
        throttle: None for delays that don't follow the latency.
        awaits_crawl_delay: a slot is served one request at a time until a worker knows whether it asks for a crawl
            delay.
        weights: one for each tier, at least 1 each; empty for the best tier first always.
        budgets: caps by budget key, `*` for all; None where requests carry no budget keys.
        high_water: pending requests from which on nothing is discovered, 0 for any number. Only those count that can
            be served soon.
        low_water: pending requests at which that ends.
        pending_limit: pending requests, of all kinds, from which on nothing is discovered either, 0 for any number.
        memory_high_water: the same by the part of the server's `maxmemory` that is used, 0 for none. It ends at nine
            tenths of that. For a server only.
        discovery: positions of the tiers whose requests are not served meanwhile; empty where there are no marks.
        unset: parts of which this worker says nothing, so that they stay as they are; see `policy_parts.PARTS`.
    """

    slots: Mapping[str, SlotLimit] = field(default_factory=dict)
    throttle: Throttle | None = None
    awaits_crawl_delay: bool = False
    weights: Sequence[int] = ()
    budgets: Mapping[str, Budget] | None = None
    high_water: int = 0
    low_water: int = 0
    pending_limit: int = 0
    memory_high_water: float = 0.0
    discovery: Sequence[int] = ()
    unset: frozenset[str] = frozenset()

    @property
    def limits_slots(self) -> bool:
        """Some slot may have to wait."""
        return bool(self.slots) or self.throttle is not None or self.awaits_crawl_delay

    @property
    def has_marks(self) -> bool:
        """There may be too many requests to discover more."""
        return self.high_water > 0 or self.pending_limit > 0 or self.memory_high_water > 0

    @property
    def goes_by_tier(self) -> bool:
        """Requests have to be found by tier, since the best one isn't always served first."""
        return bool(self.weights or self.discovery)


def patterns_of(slot: str) -> list[str]:
    """Return the names under which a limit of a slot may be given, the most specific first.

    ``a.shop.test`` is found as ``a.shop.test``, ``*.shop.test``, ``*.test`` and ``*``.
    """
    labels = slot.split(".")
    return [slot, *("*." + ".".join(labels[first:]) for first in range(1, len(labels))), EVERY]


@dataclass(frozen=True, slots=True)
class Latency:
    """How long a response of a slot took, for `Throttle`; one that failed never shortens the delay."""

    slot: str
    latency_ms: int
    is_success: bool


@dataclass(frozen=True, slots=True)
class Closing:
    """A slot has asked to be left alone for a time."""

    slot: str
    wait_ms: int


@dataclass(frozen=True, slots=True)
class CrawlDelay:
    """A slot has said in its robots.txt how long to wait between two requests; 0 for nothing.

    Args:
        starts_now: the request that the robots.txt was fetched for is sent now, not when it was handed out.
    """

    slot: str
    delay_ms: int
    starts_now: bool = False


@dataclass(frozen=True, slots=True)
class HeldUp:
    """A page of a slot was handed out and waits in its worker for robots.txt: the delay counts from now, not before."""

    slot: str


@dataclass(frozen=True, slots=True)
class LimitsInForce:
    """What a worker has to know of the limits in force to keep them while it can't ask.

    Args:
        are_known: they are those of this worker's settings and of operators; else it can't keep them.
        closed_ms: for how long sites want to be left alone, by slot, of those that do.
    """

    are_known: bool = True
    closed_ms: Mapping[str, int] = field(default_factory=dict)


SlotNote = Latency | Closing | CrawlDelay | HeldUp
"""What a worker has learnt of a slot."""

Note = SlotNote | Kept
"""What a worker has learnt of a slot, or keeps to itself.

It goes with a demand, once; it does no harm if it is lost or comes twice.
"""
