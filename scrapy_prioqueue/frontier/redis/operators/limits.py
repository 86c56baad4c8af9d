"""Reads limits of slots: their values, where these were set, and which slots wait; nothing is changed here."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, inf
from typing import Any, Literal

from scrapy_prioqueue.frontier.memory.limits import SlotLimits
from scrapy_prioqueue.frontier.policy import (
    EVERY,
    STRETCH,
    LimitInForce,
    Policy,
    SlotLimit,
    Throttle,
    limit_of,
    merged_by_name,
    patterns_of,
)
from scrapy_prioqueue.frontier.redis.keys import Keys
from scrapy_prioqueue.frontier.redis.link import Link
from scrapy_prioqueue.frontier.redis.operators.lanes import SLOTS_PER_CALL
from scrapy_prioqueue.frontier.redis.wire import decoded, encoded, pieces

Source = Literal["operator", "settings", "robots.txt", "throttle"]
"""Where a limit was set."""

OPERATOR = "!"
"""Prefix of the names of operators' entries."""

LEARNT_LIMIT = 10_000
"""Maximum number of delays from robots.txt or latency that are listed."""

_LEARNT: Mapping[bytes, Source] = {b"c": "robots.txt", b"t": "throttle"}

_Entries = Mapping[Source, Mapping[str, SlotLimit]]
"""Entries by pattern; those of operators precede those of settings."""


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
class LimitShown(LimitInForce):
    """The limit in force for a slot; its delay may come from its site or its latency.

    Args:
        delay_by: where the delay was set; None without one.
    """

    delay_by: Source | None = None

    @property
    def interval_ms(self) -> float:
        """Milliseconds from one request to the next."""
        return self.delay * 1000 * STRETCH


@dataclass(frozen=True, slots=True)
class SlotClock:
    """The state of a slot's limits.

    Args:
        running: number of leased requests, if limits count them.
        opens_ms: when its rate allows the next request; may be in the past, 0 if it doesn't wait.
        is_full: it is at its concurrency.
        closed_until_ms: end of the pause that its site has asked for (`Retry-After`); may be in the past, 0 for none.
    """

    limit: LimitShown
    running: int
    opens_ms: float
    is_full: bool
    closed_until_ms: int


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


class LimitReader:
    """Reads the limits of one frontier."""

    def __init__(self, link: Link, keys: Keys) -> None:
        self._link = link
        self._keys = keys

    def entries(self) -> Sequence[LimitFound]:
        """Return the entries of settings and operators by name, and the initial delay if delays follow latency."""
        stated, policy = self._policy()
        found = [LimitFound(name, by, limit) for by, entries in stated.items() for name, limit in entries.items()]
        if policy.throttle is not None:
            found.append(LimitFound(EVERY, "throttle", SlotLimit(policy.throttle.start_delay_s)))
        return sorted(found, key=lambda entry: (entry.pattern, entry.source))

    def learnt(self) -> Sequence[LimitFound]:
        """Return the delays from robots.txt and latency, by slot."""
        found: list[LimitFound] = []
        for part in self._link.pages("HSCAN", self._keys.of("delays"), SLOTS_PER_CALL):
            found += [_learnt(field, delay_ms) for field, delay_ms in part.items()]
            if len(found) >= LEARNT_LIMIT:
                break
        return sorted(found, key=lambda entry: (entry.pattern, entry.source))

    def about(self, slot: str) -> Sequence[LimitFound]:
        """Return the entries about a slot, the most specific first, then its delays from robots.txt and latency; for a
        pattern only the entries under that name."""
        stated, _ = self._policy()
        patterns = [slot] if "*" in slot else patterns_of(slot)
        found = list(_in_order(stated, patterns))
        fields = [letter + encoded(slot) for letter in _LEARNT]
        (learnt,) = self._link.pipe(("HMGET", self._keys.of("delays"), *fields))
        for field, delay_ms in zip(fields, learnt, strict=True):
            if delay_ms is not None:
                found.append(_learnt(field, delay_ms))
        return found

    def knows(self, slot: str) -> bool:
        """Return whether a slot has requests, was served or closed lately, or has an entry of its own."""
        name = encoded(slot)
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
        stated, policy = self._policy()
        limits = SlotLimits(lambda _: True)
        limits.adopt(policy)
        found: list[SlotClock] = []
        for part in pieces(slots, SLOTS_PER_CALL):
            names = [encoded(slot) for slot in part]
            learnt, running, paced, closed = self._link.pipe(
                ("HMGET", self._keys.of("delays"), *(letter + name for name in names for letter in _LEARNT)),
                ("HMGET", self._keys.of("running"), *names),
                ("ZMSCORE", self._keys.of("paced"), *names),
                ("ZMSCORE", self._keys.of("closed"), *names),
            )
            for at, slot in enumerate(part):
                crawl_delay_ms, throttled_ms = learnt[2 * at : 2 * at + 2]
                limits.learn(
                    slot,
                    running=int(running[at] or 0),
                    paced_ms=float(paced[at] or 0),
                    crawl_delay_ms=None if crawl_delay_ms is None else int(crawl_delay_ms),
                    throttled_ms=None if throttled_ms is None else float(throttled_ms),
                )
                limit = _shown(limits, slot, stated, policy, crawl_delay_ms)
                opens_ms = max(0.0, limits.opens_ms(slot))
                # A burst may open it earlier.
                closed_ms = int(min(float(closed[at] or 0), opens_ms))
                found.append(SlotClock(limit, int(running[at] or 0), opens_ms, limits.is_full(slot), closed_ms))
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
        for part in pieces(closed, SLOTS_PER_CALL):
            (times,) = self._link.pipe(("ZMSCORE", waiting, *part))
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
        stated, learnt = self._link.pipe(("HLEN", self._keys.of("limits")), ("HLEN", self._keys.of("delays")))
        return int(stated), int(learnt)

    def _policy(self) -> tuple[_Entries, Policy]:
        """Return the entries of operators and settings, and the policy that results."""
        stored, (throttle, awaits_delays) = self._link.pipe(
            ("HGETALL", self._keys.of("limits")), ("HMGET", self._keys.state, "throttle", "awaits_delays")
        )
        by_operator: dict[str, SlotLimit] = {}
        by_settings: dict[str, SlotLimit] = {}
        for field, value in stored.items():
            name = decoded(field)
            entries = by_operator if name.startswith(OPERATOR) else by_settings
            entries[name.removeprefix(OPERATOR)] = SlotLimit(**json.loads(value))
        policy = Policy(
            slots=merged_by_name(by_operator, by_settings),
            throttle=None if throttle is None else _throttle(json.loads(throttle)),
            awaits_crawl_delay=bool(awaits_delays),
        )
        return {"operator": by_operator, "settings": by_settings}, policy


def _throttle(stored: Mapping[str, Any]) -> Throttle:
    return Throttle(stored["start_delay"], stored["max_delay"], stored["target_concurrency"])


def _learnt(field: bytes, delay_ms: bytes) -> LimitFound:
    return LimitFound(decoded(field[1:]), _LEARNT[field[:1]], SlotLimit(float(delay_ms) / 1000))


def _in_order(stated: _Entries, patterns: Sequence[str]) -> Iterator[LimitFound]:
    """Yield the entries under these names in order of precedence."""
    for pattern in patterns:
        for source, entries in stated.items():
            if pattern in entries:
                yield LimitFound(pattern, source, entries[pattern])


def _shown(limits: SlotLimits, slot: str, stated: _Entries, policy: Policy, crawl_delay_ms: bytes | None) -> LimitShown:
    limit, delay_ms = limit_of(slot, policy.slots), limits.delay_ms(slot)
    by: Source | None = None
    if delay_ms and delay_ms == limit.delay * 1000:
        by = next(entry.source for entry in _in_order(stated, patterns_of(slot)) if entry.limit.delay is not None)
    elif delay_ms:
        by = "robots.txt" if delay_ms == int(crawl_delay_ms or 0) else "throttle"
    return LimitShown(delay_ms / 1000, limits.concurrency_of(slot), limit.burst, delay_by=by)
