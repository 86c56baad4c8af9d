"""Reads the lanes of slots: one for all tiers or one for each, and the slots that wait in none."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

from scrapy_prioqueue.frontier.redis.keys import Keys
from scrapy_prioqueue.frontier.redis.link import Link
from scrapy_prioqueue.rank import PRIORITY_LIMIT, TIER_WIDTH, tier_of

SCAN_COUNT = SLOTS_PER_CALL = 500

COUNT_LIMIT = 20_000
"""Maximum number of positions that are read to count slots in several lanes exactly."""


@dataclass(frozen=True, slots=True)
class Lane:
    """A lane: slots by the rank of their best request in it, then by turn.

    Args:
        ready: key of the lane.
        prefix: prefix of a slot's name in the field of its turn.
        low: lowest rank of the lane's requests, as a bound of a sorted set.
        high: likewise the highest.
        tier: the lane's tier, None if it has all.
    """

    ready: str
    prefix: bytes = b""
    low: float | str = "-inf"
    high: float | str = "+inf"
    tier: int | None = None

    def position(self, slot: bytes) -> bytes:
        """Return the field of a slot's turn in this lane."""
        return self.prefix + slot


def tier_range(tier: int) -> tuple[int, int]:
    """Return the lowest and the highest rank of a tier."""
    middle = tier * TIER_WIDTH
    return middle - PRIORITY_LIMIT, middle + PRIORITY_LIMIT - 1


class Lanes:
    """Reads the lanes of one frontier."""

    def __init__(self, link: Link, keys: Keys) -> None:
        self._link = link
        self._keys = keys

    def all(self) -> Sequence[Lane]:
        """Return the lanes, the best first."""
        (count,) = self._link.pipe(("HGET", self._keys.state, "lanes"))
        if not int(count or 0):
            return [Lane(self._keys.ready())]
        return [
            Lane(self._keys.ready(tier), f"{tier}:".encode(), *tier_range(tier), tier=tier)
            for tier in range(int(count))
        ]

    def names(self) -> Iterator[bytes]:
        """Iterate over the slots that have a queue, waiting or not, each once."""
        is_split, seen = self.all()[0].tier is not None, set[bytes]()
        # A slot that begins or ends to wait keeps its turns, unless the number of lanes has changed meanwhile.
        waiting = self._members(self._keys.of("waiting"))
        for name in chain(self._turns(is_split=is_split), (member[8:] for member in self.unsorted()), waiting):
            if name not in seen:
                seen.add(name)
                yield name

    def _turns(self, *, is_split: bool) -> Iterator[bytes]:
        for found in self._link.pages("HSCAN", self._keys.of("turns"), SCAN_COUNT):
            for position in found:
                yield slot_of(position, is_split=is_split)

    def unsorted(self) -> Iterator[bytes]:
        """Iterate over slots, with their turns, that are not in their new lanes yet after a change of their number."""
        return chain.from_iterable(map(self._members, self.unsorted_keys()))

    def unsorted_keys(self) -> Sequence[str]:
        """Return the keys that `unsorted` reads, one for each of the old lanes; some may be empty."""
        (count,) = self._link.pipe(("HGET", self._keys.state, "unsorted"))
        return [self._keys.unsorted(number) for number in range(1, int(count or 0) + 1)]

    def _members(self, key: str) -> Iterator[bytes]:
        for found in self._link.pages("ZSCAN", key, SCAN_COUNT):
            yield from (member for member, _ in found)

    def first(self, limit: int, waiting_limit: int) -> Sequence[bytes]:
        """Return the first slots of each lane, and of those that are in no lane now."""
        lanes, aside = self.all(), self.unsorted_keys()
        waiting, *found = self._link.pipe(
            ("ZRANGE", self._keys.of("waiting"), 0, waiting_limit - 1),
            *(("ZRANGE", lane.ready, 0, limit - 1) for lane in lanes),
            *(("ZRANGE", key, 0, waiting_limit - 1) for key in aside),
        )
        return list(dict.fromkeys(chain((member[8:] for members in found for member in members), waiting)))

    def count(self) -> int:
        """Return the number of slots with a queue; a lower bound if very many are in several lanes."""
        lanes, aside = self.all(), self.unsorted_keys()
        positions, waiting, *found = self._link.pipe(
            ("HLEN", self._keys.of("turns")),
            ("ZCARD", self._keys.of("waiting")),
            *(("ZCARD", lane.ready) for lane in lanes),
            *(("ZCARD", key) for key in aside),
        )
        ready, unsorted = found[: len(lanes)], max(found[len(lanes) :], default=0)
        if lanes[0].tier is None and not unsorted:
            return int(ready[0] + waiting)
        if positions + unsorted + waiting > COUNT_LIMIT:
            return int(max(max(ready) + waiting, unsorted))
        return sum(1 for _ in self.names())

    def sample(self, limit: int) -> tuple[Sequence[bytes], bool]:
        """Return slots that have a queue, and whether they are a random sample of all."""
        lanes, (positions,) = self.all(), self._link.pipe(("HLEN", self._keys.of("turns")))
        if positions <= limit * len(lanes):
            found = list(self.names())
            if len(found) <= limit:
                return found, False
        is_split = lanes[0].tier is not None
        (fields,) = self._link.pipe(("HRANDFIELD", self._keys.of("turns"), limit))
        return list({slot_of(field, is_split=is_split): None for field in fields}), True


def lane_of(lanes: Sequence[Lane], rank: int) -> Lane:
    """Return the lane of requests with this rank; ranks of no tier are in the first or the last one."""
    return lanes[min(max(tier_of(rank), 0), len(lanes) - 1)]


def slot_of(position: bytes, *, is_split: bool) -> bytes:
    """Return the slot from the field of its turn."""
    return position.partition(b":")[2] if is_split else position
