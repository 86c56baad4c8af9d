"""Consistency of a frontier's keys: its counters, and members of one key that need a counterpart in another."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Literal

from scrapy_prioqueue.frontier.labels import label_of
from scrapy_prioqueue.frontier.redis.key_types import TYPES, has_wrong_type
from scrapy_prioqueue.frontier.redis.keys import Keys
from scrapy_prioqueue.frontier.redis.link import Command, Link
from scrapy_prioqueue.frontier.redis.operators.lanes import SLOTS_PER_CALL, Lanes
from scrapy_prioqueue.frontier.redis.wire import decoded, encoded, pieces, read_lease

SLOT_LIMIT = 2000
"""Maximum number of slots whose requests are counted at one moment; with more, pending requests aren't counted."""

LEASE_LIMIT = 2000
"""Maximum number of leases that are read at one moment."""

READS = 3
"""Number of reads in a row in which a slot must be misplaced before it is reported."""

Progress = Callable[[str, int], object]

Misplacement = Literal["unreachable", "twice", "empty"]
"""A slot with requests is in no lane; it is in a lane and also waits; it is in a lane without requests."""

STATES = ("pending", "delayed", "leased", "dead", "done")


@dataclass(frozen=True, slots=True)
class Books:
    """Counters, and counted requests, by name."""

    counters: Mapping[str, int]
    counted: Mapping[str, int]

    @property
    def accepted(self) -> int:
        """Number of requests stored since the crawl began."""
        return self.counters.get("accepted", 0)

    def differences(self) -> Sequence[str]:
        """Return a text for each difference."""
        found = []
        total = sum(self.counters.get(name, 0) for name in STATES)
        if total != self.accepted:
            found.append(f"{self.accepted:,} accepted, but {total:,} are {', '.join(STATES[:-1])} or {STATES[-1]}")
        for name, count in self.counted.items():
            if count != self.counters.get(name, 0):
                found.append(f"the counter of {name} says {self.counters.get(name, 0):,} instead of {count:,}")
        return found


@dataclass(slots=True)
class KeysFound:
    """The keys of a frontier.

    Args:
        count: of all.
        foreign: names and types of keys with a wrong type, with which the others can't be read.
        unknown: nouns that no frontier has.
        queues: slots that have a queue.
    """

    count: int = 0
    foreign: list[tuple[str, str]] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    queues: list[bytes] = field(default_factory=list)

    def add(self, noun: str, rest: bytes, key: bytes, kind: str) -> None:
        """Add a key.

        Args:
            rest: the name after the noun.
            kind: its type, "none" if it has just been deleted.
        """
        self.count += 1
        if has_wrong_type(noun, kind):
            self.foreign.append((decoded(key), kind))
        if noun not in TYPES:
            self.unknown.append(noun)
        elif noun == "queue":
            self.queues.append(rest)


def _misplacement(has_requests: bool, has_turn: bool, stands: bool, waits: bool) -> Misplacement | None:
    """Return what is wrong with a slot's position in a lane, None if nothing is."""
    if has_requests and not stands and not waits:
        return "unreachable"
    if stands and waits:
        return "twice"
    return "empty" if (has_turn or stands) and not has_requests else None


def _lease(value: bytes) -> tuple[bytes, bytes]:
    """Return slot and payload of a lease, both empty if it can't be read."""
    try:
        lease = read_lease(value)
    except (ValueError, TypeError):
        return b"", b""
    return lease.slot, lease.payload


def _held_keys(leased: Iterable[bytes]) -> Counter[str]:
    labels = (label_of(_lease(value)[1]) for value in leased)
    return Counter(key for label in labels if label is not None for key in label.keys)


class Audit:
    """Counts and compares; each method makes calls of bounded size and changes nothing.

    Args:
        link: to the server.
        keys: of the frontier.
        progress: called now and then with the current step, and the number of items done.
    """

    def __init__(self, link: Link, keys: Keys, progress: Progress | None = None) -> None:
        self._link = link
        self._progress = progress
        self._keys = keys
        self._lanes = Lanes(link, keys)

    def books(self) -> Books:
        """Return counters and counts of one moment, unless slots have come or gone meanwhile."""
        keys = self._keys
        names = list(islice(self._lanes.names(), SLOT_LIMIT + 1))
        is_counted = len(names) <= SLOT_LIMIT
        queues: list[Command] = [("ZCARD", keys.queue(name)) for name in names] if is_counted else []
        stats, leased, delayed, suspects, *depths = self._link.pipe(
            ("HGETALL", keys.of("stats")),
            ("HLEN", keys.leased),
            ("ZCARD", keys.of("delayed")),
            ("ZCARD", keys.of("suspects")),
            *queues,
            is_transaction=True,
        )
        counted = {"leased": leased, "delayed": delayed}
        if is_counted:
            counted["pending"] = suspects + sum(depths)
        return Books({name.decode(): int(value) for name, value in stats.items()}, counted)

    def all_keys(self) -> KeysFound:
        """Read all keys of the frontier; this scans the whole server once."""
        found, prefix = KeysFound(), self._keys.prefix.encode()
        for keys in self._link.scan(self._keys.pattern()):
            kinds = self._link.pipe(*(("TYPE", key) for key in keys)) if keys else []
            for key, kind in zip(keys, kinds, strict=True):
                noun, _, rest = key.removeprefix(prefix).partition(b":")
                found.add(decoded(noun), rest, key, kind.decode())
            self._report("reading keys", found.count)
        return found

    def misplaced(self, queues: Iterable[bytes]) -> Mapping[Misplacement, Sequence[bytes]]:
        """Return misplaced slots.

        Args:
            queues: slots that have a queue.
        """
        found: dict[Misplacement, list[bytes]] = {}
        unsorted = {member[8:] for member in self._lanes.unsorted()}
        slots = list({*queues, *self._lanes.names()} - unsorted)
        read = 0
        for part in pieces(slots, SLOTS_PER_CALL):
            read += len(part)
            # A slot may have moved between two calls, so only those that stay misplaced count.
            for _ in range(READS):
                misplaced = self._misplaced_in(part) if part else {}
                part = list(misplaced)
            for slot, what in misplaced.items():
                found.setdefault(what, []).append(slot)
            self._report("reading slots", read)
        return found

    def _report(self, doing: str, done: int) -> None:
        if self._progress is not None:
            self._progress(doing, done)

    def _misplaced_in(self, slots: Sequence[bytes]) -> dict[bytes, Misplacement]:
        turns, waiting = self._keys.of("turns"), self._keys.of("waiting")
        found: dict[bytes, Misplacement] = {}
        for lane in self._lanes.all():
            positions = list(map(lane.position, slots))
            (before,) = self._link.pipe(("HMGET", turns, *positions))
            members = [(turn or b"") + slot for slot, turn in zip(slots, before, strict=True)]
            *counts, now, scores, waits = self._link.pipe(
                *(("ZCOUNT", self._keys.queue(slot), lane.low, lane.high) for slot in slots),
                ("HMGET", turns, *positions),
                ("ZMSCORE", lane.ready, *members),
                ("ZMSCORE", waiting, *slots),
                is_transaction=True,
            )
            for slot, count, *facts in zip(slots, counts, now, scores, waits, strict=True):
                what = _misplacement(bool(count), *(fact is not None for fact in facts))
                if what is not None:
                    found[slot] = what
        return found

    def miscounted_slots(self) -> Sequence[str]:
        """Return slots with another number of leases than limits count; none if they can't be compared."""
        if not self._can_compare("has_limits"):
            return []
        leased, running = self._link.pipe(
            ("HVALS", self._keys.leased), ("HGETALL", self._keys.of("running")), is_transaction=True
        )
        held = Counter(_lease(value)[0] for value in leased)
        slots = {*held, *running}
        return sorted(decoded(slot) for slot in slots if held[slot] != int(running.get(slot, 0)))

    def miscounted_budgets(self) -> Sequence[str]:
        """Return budget keys with a smaller use than their leased requests require."""
        if not self._can_compare("has_budgets"):
            return []
        (leased,) = self._link.pipe(("HVALS", self._keys.leased))
        keys = sorted(_held_keys(leased))
        if not keys:
            return []
        fields = [encoded(f"pages:{key}") for key in keys]
        leased, used = self._link.pipe(
            ("HVALS", self._keys.leased), ("HMGET", self._keys.of("used"), *fields), is_transaction=True
        )
        held = _held_keys(leased)
        return [key for key, pages in zip(keys, used, strict=True) if held[key] > int(pages or 0)]

    def _can_compare(self, policy: str) -> bool:
        """Return whether the counts of this policy must agree with the leases, and these are few enough to compare."""
        ((has, counting), count) = self._link.pipe(
            ("HMGET", self._keys.state, policy, "counting"), ("HLEN", self._keys.leased)
        )
        return has is not None and counting is None and int(count) <= LEASE_LIMIT

    def expired_leases(self, now_ms: int) -> int:
        """Return the number of expired leases."""
        (found,) = self._link.pipe(("ZCOUNT", self._keys.leases, "-inf", now_ms))
        return int(found)

    def halves(self) -> Mapping[str, int]:
        """Return, by noun, how many members a key has more than its counterpart."""
        leased, leases, dead, died = self._link.pipe(
            ("HLEN", self._keys.leased),
            ("ZCARD", self._keys.leases),
            ("HLEN", self._keys.dead),
            ("ZCARD", self._keys.died),
            is_transaction=True,
        )
        return {"leased": leased - leases, "leases": leases - leased, "dead": dead - died, "died": died - dead}
