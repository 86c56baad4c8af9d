"""The policy of a frontier as plain data: limits of slots, weights of tiers, budgets, water marks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from scrapy_prioqueue.frontier.kept import Kept

STRETCH = 1.01
"""Factor by which the interval between requests of a slot is longer than its delay.

A request that starts up to `LATE_MS` late falls into a later window of 10 s. The extra 1 % of 10 s makes up for that,
so no such window holds more requests than the rate allows, plus one.
"""

LATE_MS = 100
"""A request of a slot with a delay may start late by this much plus half the interval."""

CATCH_UP_MS = 50
"""A slot that is served late by up to this, or half the interval, loses none of its rate."""

LINGER_MS = 10_000
"""If pauses that sites asked for are the only limits, limits are switched off this long after the last pause."""

EVERY = "*"
"""Stands for all slots, or budget keys, without a more specific entry."""


@dataclass(frozen=True, slots=True)
class SlotLimit:
    """Limits of a slot for all workers together; None takes the value of a more general entry.

    Settings, commands and the server use the names of these fields.

    Args:
        delay: seconds between two requests, 0 for none.
        concurrency: requests at a time, 0 for any number.
        burst: requests that may start at once after a pause, at least 1.
    """

    delay: float | None = None
    concurrency: int | None = None
    burst: int | None = None


@dataclass(frozen=True, slots=True)
class LimitInForce:
    """The limit of a slot after all entries are merged; fields that no entry sets have their defaults."""

    delay: float = 0.0
    concurrency: int = 0
    burst: int = 1


@dataclass(frozen=True, slots=True)
class Budget:
    """Cap on the total cost of the requests of a budget key; None takes the value of a more general entry, or no limit.

    Args:
        pages: requests fetched.
        renders: those of them that are rendered by a browser.
        bytes: of the bodies of responses, as received.
        seconds: of downloading and processing.
    """

    pages: int | None = None
    renders: int | None = None
    bytes: int | None = None
    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Throttle:
    """How the delays of slots follow their latency, by the formula of Scrapy's AutoThrottle.

    Args:
        start_delay_s: delay of a slot without a response so far.
        max_delay_s: maximum of the computed delay.
        target_concurrency: average number of requests in progress for a slot, of all workers together.
    """

    start_delay_s: float = 5.0
    max_delay_s: float = 60.0
    target_concurrency: float = 1.0


@dataclass(frozen=True, slots=True)
class Policy:
    """All rules that a frontier enforces; each part is that of the last worker that joined and sets it.

    Args:
        slots: limits by slot; `*.example.com` applies to all slots below `example.com`, `*` to all.
        throttle: None if delays don't follow the latency.
        awaits_crawl_delay: a slot is served one request at a time until its `Crawl-delay` is known.
        weights: one for each tier, at least 1 each; empty to serve the best tier first.
        budgets: caps by budget key, `*` for all; None if requests have no budget keys.
        high_water: number of pending requests at which a flood begins, 0 for no mark. Only requests that can be served
            soon count.
        low_water: number of pending requests at which a flood ends.
        pending_limit: number of pending requests of all kinds at which a flood begins, 0 for no limit.
        memory_high_water: used part of the server's `maxmemory` at which a flood begins, 0 for no mark. It ends at
            nine tenths of that. Only on a server.
        discovery: indexes of the tiers that are not served in a flood; empty without marks.
        unset: parts that this worker doesn't set, so that they stay unchanged; see `policy_parts.PARTS`.
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
        """Whether some slot may have to wait."""
        return bool(self.slots) or self.throttle is not None or self.awaits_crawl_delay

    @property
    def has_marks(self) -> bool:
        """Whether there may be a flood."""
        return self.high_water > 0 or self.pending_limit > 0 or self.memory_high_water > 0

    @property
    def goes_by_tier(self) -> bool:
        """Whether requests must be found by tier, since the best one isn't always served first."""
        return bool(self.weights or self.discovery)


Entry = TypeVar("Entry", SlotLimit, Budget)


def values_of(entry: SlotLimit | Budget) -> dict[str, Any]:
    """Return the fields that an entry sets, with their values."""
    return {name: value for name in entry.__slots__ if (value := getattr(entry, name)) is not None}


def merged(first: Entry, *others: Entry) -> Entry:
    """Return an entry with the first value set for each field."""
    found: dict[str, Any] = {}
    for entry in others[::-1]:
        found |= values_of(entry)
    return type(first)(**(found | values_of(first)))


def merged_by_name(first: Mapping[str, Entry], second: Mapping[str, Entry]) -> Mapping[str, Entry]:
    """Return the entries of both mappings; under a common name, values of `first` take precedence."""
    both = {name: merged(entry, second[name]) for name, entry in first.items() if name in second}
    return {**second, **first, **both}


def limit_of(slot: str, limits: Mapping[str, SlotLimit]) -> LimitInForce:
    """Return the limit in force for a slot: for each field the value of the most specific entry that sets it.

    `lua/lib/limits.lua` has the same rule.
    """
    found = merged(SlotLimit(), *(limits[pattern] for pattern in patterns_of(slot) if pattern in limits))
    return LimitInForce(**values_of(found))


def patterns_of(slot: str) -> list[str]:
    """Return the patterns that apply to a slot, the most specific first.

    For ``a.shop.test`` these are ``a.shop.test``, ``*.shop.test``, ``*.test`` and ``*``.
    """
    labels = slot.split(".")
    return [slot, *("*." + ".".join(labels[first:]) for first in range(1, len(labels))), EVERY]


@dataclass(frozen=True, slots=True)
class Latency:
    """The latency of a response of a slot, for `Throttle`; that of a failed one never shortens the delay."""

    slot: str
    latency_ms: int
    is_success: bool


@dataclass(frozen=True, slots=True)
class Closing:
    """A pause that a site has asked for."""

    slot: str
    wait_ms: int


@dataclass(frozen=True, slots=True)
class CrawlDelay:
    """The `Crawl-delay` in a site's robots.txt; 0 for none.

    Args:
        starts_now: the request for which the robots.txt was fetched starts now, later than it was leased.
    """

    slot: str
    delay_ms: int
    starts_now: bool = False


@dataclass(frozen=True, slots=True)
class HeldUp:
    """A leased page of a slot has waited for robots.txt; the slot's delay counts from now."""

    slot: str


@dataclass(frozen=True, slots=True)
class LimitsInForce:
    """The limits that a worker must keep while it can't reach the server.

    Args:
        are_known: whether they are those of this worker's settings and of operators; otherwise it can't keep them.
        closed_ms: remaining pauses that sites have asked for, by slot.
    """

    are_known: bool = True
    closed_ms: Mapping[str, int] = field(default_factory=dict)


SlotNote = Latency | Closing | CrawlDelay | HeldUp
"""What a worker has learned about a slot."""

Note = SlotNote | Kept
"""What a worker has learned about a slot, or its report of requests that stay in it.

It is sent with one demand; losing or repeating it does no harm.
"""
