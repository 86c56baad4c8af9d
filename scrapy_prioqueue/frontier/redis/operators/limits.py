"""Reads limits of slots: their values, where these were set, and which slots wait; nothing is changed here."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil, inf
from typing import Any, Literal

from scrapy_prioqueue.frontier.policy import EVERY, STRETCH, SlotLimit, patterns_of
from scrapy_prioqueue.frontier.redis.keys import Keys
from scrapy_prioqueue.frontier.redis.link import Link
from scrapy_prioqueue.frontier.redis.wire import slot_text

Source = Literal["operator", "settings", "robots.txt", "throttle"]
"""Where a limit was set."""

OPERATOR = "!"
"""Prefix of the names of operators' entries."""

FIELDS = ("delay", "concurrency", "burst")

SLOTS_PER_CALL = 500

LEARNT_LIMIT = 10_000
"""Maximum number of delays from robots.txt or latency that are listed."""

_LEARNT: Mapping[bytes, Source] = {b"c": "robots.txt", b"t": "throttle"}


@dataclass(frozen=True, slots=True)
class LimitFound:
    """One entry about a slot, or about all slots that match a pattern.

    Args:
        pattern: a slot, `*.suffix`, or `*` for all.
        limit: its values; None takes the value of a more general entry.
    """

    pattern: str
    source: Source
    limit: SlotLimit


@dataclass(frozen=True, slots=True)
class LimitInForce:
    """The limit in force for a slot.

    Args:
        delay_s: seconds between two requests, 0 for none.
        concurrency: requests at a time, 0 for any number.
        burst: requests that may start at once after a pause.
        delay_by: where the delay was set; None without one.
    """

    delay_s: float = 0.0
    concurrency: int = 0
    burst: int = 1
    delay_by: Source | None = None

    @property
    def is_any(self) -> bool:
        """Whether anything is limited."""
        return self.delay_s > 0 or self.concurrency > 0

    @property
    def interval_ms(self) -> float:
        """Milliseconds from one request to the next."""
        return self.delay_s * 1000 * STRETCH


@dataclass(frozen=True, slots=True)
class SlotClock:
    """The state of a slot's limits.

    Args:
        running: number of leased requests, if limits count them.
        opens_ms: when its rate allows the next request; may be in the past, 0 if it doesn't wait.
        is_full: it is at its concurrency.
        closed_until_ms: end of the pause that its site has asked for (`Retry-After`); may be in the past, 0 for none.
    """

    limit: LimitInForce
    running: int = 0
    opens_ms: float = 0.0
    is_full: bool = False
    closed_until_ms: int = 0


@dataclass(frozen=True, slots=True)
class WaitingFound:
    """How many slots wait.

    Args:
        by_rate: slots with pending requests that wait for their rate.
        by_leases: those at their concurrency.
        closed: those that wait because of `Retry-After`.
        all_closed: the same including slots without requests.
    """

    by_rate: int
    by_leases: int
    closed: int
    all_closed: int


class Limits:
    """Reads the limits of one frontier."""

    def __init__(self, link: Link, keys: Keys) -> None:
        self._link = link
        self._keys = keys

    def entries(self) -> Sequence[LimitFound]:
        """Return the entries of settings and operators by name, and the initial delay if delays follow latency."""
        found = [_entry(field, value) for field, value in self._said().items()]
        throttle = self._throttle()
        if throttle is not None:
            found.append(LimitFound(EVERY, "throttle", SlotLimit(delay_s=throttle["start_delay"])))
        return sorted(found, key=lambda entry: (entry.pattern, entry.source))

    def learnt(self) -> Sequence[LimitFound]:
        """Return the delays from robots.txt and latency, by slot."""
        found: list[LimitFound] = []
        cursor = 0
        while len(found) < LEARNT_LIMIT:
            ((cursor, part),) = self._link.pipe(("HSCAN", self._keys.of("delays"), cursor, "COUNT", SLOTS_PER_CALL))
            found += [_learnt(field, delay_ms) for field, delay_ms in part.items()]
            if not cursor:
                break
        return sorted(found, key=lambda entry: (entry.pattern, entry.source))

    def about(self, slot: str) -> Sequence[LimitFound]:
        """Return the entries about a slot, the most specific first, then its delays from robots.txt and latency; for a
        pattern only the entries under that name."""
        entries = self._said()
        patterns = [slot] if "*" in slot else patterns_of(slot)
        names = [name for pattern in patterns for name in (OPERATOR + pattern, pattern)]
        found = [_entry(name, entries[name]) for name in names if name in entries]
        fields = [letter + slot.encode("utf-8", "surrogatepass") for letter in _LEARNT]
        (learnt,) = self._link.pipe(("HMGET", self._keys.of("delays"), *fields))
        for field, delay_ms in zip(fields, learnt, strict=True):
            if delay_ms is not None:
                found.append(_learnt(field, delay_ms))
        return found

    def knows(self, slot: str) -> bool:
        """Return whether a slot has requests, was served or closed lately, or has an entry of its own."""
        name = slot.encode("utf-8", "surrogatepass")
        found = self._link.pipe(
            ("EXISTS", self._keys.queue(name)),
            ("HEXISTS", self._keys.of("running"), name),
            ("ZSCORE", self._keys.of("paced"), name),
            ("ZSCORE", self._keys.of("closed"), name),
            ("HEXISTS", self._keys.of("limits"), OPERATOR.encode() + name),
        )
        return any(one not in (0, None) for one in found)

    def of(self, slots: Sequence[str]) -> Sequence[SlotClock]:
        """Return the limits in force and the state of slots."""
        entries, throttle = self._said(), self._throttle()
        found: list[SlotClock] = []
        for first in range(0, len(slots), SLOTS_PER_CALL):
            part = slots[first : first + SLOTS_PER_CALL]
            names = [slot.encode("utf-8", "surrogatepass") for slot in part]
            learnt, running, paced, closed = self._link.pipe(
                ("HMGET", self._keys.of("delays"), *(letter + name for name in names for letter in _LEARNT)),
                ("HMGET", self._keys.of("running"), *names),
                ("ZMSCORE", self._keys.of("paced"), *names),
                ("ZMSCORE", self._keys.of("closed"), *names),
            )
            for at, slot in enumerate(part):
                said = [_of_slot(entries, slot, field) for field in FIELDS]
                limit = _in_force(said, learnt[2 * at : 2 * at + 2], throttle)
                found.append(_clock(limit, int(running[at] or 0), float(paced[at] or 0), float(closed[at] or 0)))
        return found

    def waiting(self, now_ms: int) -> WaitingFound:
        """Return how many slots wait."""
        waiting = self._keys.of("waiting")
        by_time, by_leases, closed = self._link.pipe(
            ("ZCOUNT", waiting, f"({now_ms}", "(+inf"),
            ("ZCOUNT", waiting, "+inf", "+inf"),
            ("ZRANGEBYSCORE", self._keys.of("closed"), f"({now_ms}", "+inf"),
        )
        closed_waiting = 0
        for first in range(0, len(closed), SLOTS_PER_CALL):
            (times,) = self._link.pipe(("ZMSCORE", waiting, *closed[first : first + SLOTS_PER_CALL]))
            closed_waiting += sum(at is not None and now_ms < float(at) < inf for at in times)
        return WaitingFound(int(by_time) - closed_waiting, int(by_leases), closed_waiting, len(closed))

    def opening_ms(self, now_ms: int) -> tuple[int, int]:
        """Return when the first and the last slot opens that waits for its rate, 0 and 0 if none does."""
        waiting, later, first = self._keys.of("waiting"), f"({now_ms}", ("LIMIT", 0, 1, "WITHSCORES")
        found = self._link.pipe(
            ("ZRANGEBYSCORE", waiting, later, "(+inf", *first), ("ZREVRANGEBYSCORE", waiting, "(+inf", later, *first)
        )
        soonest, latest = (ceil(slots[0][1]) if slots else 0 for slots in found)
        return soonest, latest

    def counts(self) -> tuple[int, int]:
        """Return the numbers of entries of settings and operators, and of delays from robots.txt and latency."""
        said, learnt = self._link.pipe(("HLEN", self._keys.of("limits")), ("HLEN", self._keys.of("delays")))
        return int(said), int(learnt)

    def _said(self) -> Mapping[str, Mapping[str, Any]]:
        (found,) = self._link.pipe(("HGETALL", self._keys.of("limits")))
        return {slot_text(field): json.loads(value) for field, value in found.items()}

    def _throttle(self) -> Mapping[str, float] | None:
        (found,) = self._link.pipe(("HGET", self._keys.state, "throttle"))
        parsed: Mapping[str, float] | None = None if found is None else json.loads(found)
        return parsed


def _entry(field: str, value: Mapping[str, Any]) -> LimitFound:
    source: Source = "operator" if field.startswith(OPERATOR) else "settings"
    limit = SlotLimit(value.get("delay"), value.get("concurrency"), value.get("burst"))
    return LimitFound(field.removeprefix(OPERATOR), source, limit)


def _learnt(field: bytes, delay_ms: bytes) -> LimitFound:
    return LimitFound(slot_text(field[1:]), _LEARNT[field[:1]], SlotLimit(delay_s=float(delay_ms) / 1000))


def _of_slot(entries: Mapping[str, Mapping[str, Any]], slot: str, field: str) -> tuple[float | None, Source]:
    """Return the first value that is set for this field, most specific pattern first, and its source."""
    for pattern in patterns_of(slot):
        sources: Sequence[tuple[str, Source]] = ((OPERATOR + pattern, "operator"), (pattern, "settings"))
        for name, source in sources:
            value = entries.get(name, {}).get(field)
            if value is not None:
                return float(value), source
    return None, "settings"


def _in_force(
    said: Sequence[tuple[float | None, Source]],
    learnt: Sequence[bytes | None],
    throttle: Mapping[str, float] | None,
) -> LimitInForce:
    (delay, source), (concurrency, _), (burst, _) = said
    delay_ms = (delay or 0) * 1000
    crawl_delay_ms, throttled_ms = float(learnt[0] or 0), 0.0
    if throttle is not None:
        start_ms, most_ms = throttle["start_delay"] * 1000, throttle["max_delay"] * 1000
        throttled_ms = min(float(learnt[1] or start_ms), most_ms)
    longest_ms, by = max(((delay_ms, source), (crawl_delay_ms, "robots.txt"), (throttled_ms, "throttle")), key=_first)
    return LimitInForce(longest_ms / 1000, int(concurrency or 0), int(burst or 1), by if longest_ms else None)


def _first(pair: tuple[float, Source]) -> float:
    return pair[0]


def _clock(limit: LimitInForce, running: int, paced_ms: float, closed_ms: float) -> SlotClock:
    is_full = 0 < limit.concurrency <= running
    opens_ms = max(0.0, paced_ms - (limit.burst - 1) * limit.interval_ms)
    # A burst may open it earlier.
    return SlotClock(limit, running, opens_ms, is_full, int(min(closed_ms, opens_ms)))
