"""What a frontier's keys say of each other: the books, and members of one that should be in another."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from scrapy_prioqueue.frontier.redis.keys import Keys
from scrapy_prioqueue.frontier.redis.link import Command, Link

KEYS_PER_CALL = 1000
SLOTS_PER_CALL = 500

SLOT_LIMIT = 5000
"""Of how many slots the requests are counted at one moment; with more, pending ones aren't counted."""

TYPES: Mapping[str, str] = {
    **dict.fromkeys(("state", "stats", "pace", "turns", "leased", "lost", "dead"), "hash"),
    **dict.fromkeys(("sessions", "claims", "info", "work", "stops", "served"), "hash"),
    **dict.fromkeys(("queue", "suspects", "ready", "delayed", "waiting", "leases", "died", "ended"), "zset"),
    **dict.fromkeys(("workers", "busy", "hungry"), "zset"),
    **dict.fromkeys(("seen", "marks"), "set"),
}
"""Nouns of the keys that a frontier may have, and their types."""

STATES = ("pending", "delayed", "leased", "dead", "done")


@dataclass(frozen=True, slots=True)
class Books:
    """Counters and what was counted, by name."""

    counters: Mapping[str, int]
    counted: Mapping[str, int]

    @property
    def accepted(self) -> int:
        """Requests stored since the crawl began."""
        return self.counters.get("accepted", 0)

    def differences(self) -> Sequence[str]:
        """Return a text for each thing that doesn't add up."""
        found = []
        total = sum(self.counters.get(name, 0) for name in STATES)
        if total != self.accepted:
            found.append(f"{self.accepted:,} accepted, but {total:,} are {', '.join(STATES[:-1])} or {STATES[-1]}")
        for name, count in self.counted.items():
            if count != self.counters.get(name, 0):
                found.append(f"the counter of {name} says {self.counters.get(name, 0):,}, but there are {count:,}")
        return found


class Audit:
    """Counts and compares; each method makes calls of bounded size and changes nothing."""

    def __init__(self, link: Link, keys: Keys) -> None:
        self._link = link
        self._keys = keys

    def books(self) -> Books:
        """Return counters and counts of one moment, unless slots have come or gone meanwhile."""
        keys = self._keys
        (ready,) = self._link.pipe(("ZRANGE", keys.of("ready"), 0, SLOT_LIMIT))
        is_counted = len(ready) <= SLOT_LIMIT
        queues: list[Command] = [("ZCARD", keys.queue(slot[8:])) for slot in ready] if is_counted else []
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

    def foreign(self) -> Iterator[tuple[str, str]]:
        """Yield name and type of each key that is of another type than a frontier's; others can't be read beside it."""
        for found in self._scan():
            kinds = self._link.pipe(*(("TYPE", key) for key in found)) if found else []
            for key, kind in zip(found, kinds, strict=True):
                if kind.decode() not in ("none", TYPES.get(self._keys.noun(key), kind.decode())):
                    yield key.decode("utf-8", "backslashreplace"), kind.decode()

    def nouns(self) -> Iterator[tuple[str, bytes]]:
        """Iterate over all keys of the frontier, as noun and what follows it; the whole server is looked through."""
        prefix = self._keys.prefix.encode()
        for found in self._scan():
            for key in found:
                noun, _, rest = key.removeprefix(prefix).partition(b":")
                yield noun.decode("utf-8", "backslashreplace"), rest

    def _scan(self) -> Iterator[Sequence[bytes]]:
        cursor, pattern = 0, self._keys.pattern()
        while True:
            ((cursor, found),) = self._link.pipe(("SCAN", cursor, "MATCH", pattern, "COUNT", KEYS_PER_CALL))
            yield found
            if not cursor:
                return

    def unreachable(self, slots: Sequence[bytes]) -> Sequence[bytes]:
        """Return the slots that have a queue and are not among those to be served."""
        return self._still(self._still(slots, has_queue=True), has_queue=True)

    def empty(self) -> Sequence[bytes]:
        """Return the slots that are among those to be served and have no queue."""
        found: list[bytes] = []
        cursor = 0
        while True:
            ((cursor, turns),) = self._link.pipe(("HSCAN", self._keys.of("turns"), cursor, "COUNT", SLOTS_PER_CALL))
            found += self._still(list(turns), has_queue=False)
            if not cursor:
                return self._still(found, has_queue=False)

    def _still(self, slots: Sequence[bytes], *, has_queue: bool) -> list[bytes]:
        """Return those of which exactly one is true: they have a queue, they are to be served."""
        found = []
        for first in range(0, len(slots), SLOTS_PER_CALL):
            part = slots[first : first + SLOTS_PER_CALL]
            (*queues, turns) = self._link.pipe(
                *(("EXISTS", self._keys.queue(slot)) for slot in part),
                ("HMGET", self._keys.of("turns"), *part),
                is_transaction=True,
            )
            for slot, queue, turn in zip(part, queues, turns, strict=True):
                if bool(queue) is has_queue and (turn is not None) is not has_queue:
                    found.append(slot)
        return found

    def expired_leases(self, now_ms: int) -> int:
        """Count leases whose time is over."""
        (found,) = self._link.pipe(("ZCOUNT", self._keys.leases, "-inf", now_ms))
        return int(found)

    def halves(self) -> Mapping[str, int]:
        """Return by how many members a key has more than the one it belongs to."""
        leased, leases, dead, died = self._link.pipe(
            ("HLEN", self._keys.leased),
            ("ZCARD", self._keys.leases),
            ("HLEN", self._keys.dead),
            ("ZCARD", self._keys.died),
            is_transaction=True,
        )
        return {"leased": leased - leases, "leases": leases - leased, "dead": dead - died, "died": died - dead}
