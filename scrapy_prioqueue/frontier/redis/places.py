"""How many requests go before one: counted from ranks and turns, without reading the requests."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from scrapy_prioqueue.frontier.redis.findings import Stored
from scrapy_prioqueue.frontier.redis.keys import Keys
from scrapy_prioqueue.frontier.redis.lanes import Lanes
from scrapy_prioqueue.frontier.redis.link import Link
from scrapy_prioqueue.frontier.redis.wire import ID
from scrapy_prioqueue.rank import tier_of

SLOT_LIMIT = 2000
"""Of how many slots the requests are counted; with more, the rest is estimated from these."""

SLOTS_PER_CALL = 500

_LAST = b"\xff" * 9
"""More than any turn."""


@dataclass(frozen=True, slots=True)
class _Group:
    """Slots that stand together.

    Args:
        places: slots and their turns, not all of them where there are very many.
        total: how many there are.
        low: rank from which on their requests go before.
        high: up to which rank, None for the rank in question and a share of its equals.
    """

    places: Sequence[tuple[bytes, bytes]]
    total: int
    low: float | str
    high: float | str | None = None


def ahead_of(link: Link, keys: Keys, stored: Stored) -> tuple[int, bool]:
    """Return how many pending requests would be served before this pending one, and whether that is not an estimate.

    Slots take turns among equal ranks, so of another slot's equals only as many count as this slot has before it.
    Slots that wait count like others. Where tiers have weights, only suspects and requests of its own tier count.
    """
    return _Count(link, keys, stored).ahead()


class _Count:
    def __init__(self, link: Link, keys: Keys, stored: Stored) -> None:
        self._link = link
        self._keys = keys
        self._stored = stored
        self._slot = stored.slot.encode("utf-8", "surrogatepass")
        lanes, (weights,) = Lanes(link, keys).all(), link.pipe(("HGET", keys.state, "weights"))
        # In worse lines nothing goes before it, as long as tiers don't share.
        tier = tier_of(stored.rank)
        self._own = next((lane for lane in lanes if lane.tier in (None, tier)), lanes[-1])
        self._lanes = [lane for lane in lanes if lane.tier is None or lane.tier <= tier]
        self._low: float | str = "-inf"
        self._most_suspects: float | str = f"({stored.rank}" if stored.is_suspect else stored.rank
        if weights:
            self._lanes, self._low = [self._own], self._own.low
            self._most_suspects = self._most_suspects if stored.is_suspect else "+inf"

    def ahead(self) -> tuple[int, bool]:
        stored, queue = self._stored, self._keys.queue(self._slot)
        member = ID.pack(stored.lease_id) + bytes([stored.attempts]) + stored.payload
        own, unfit, better_here, suspects, turn = self._link.pipe(
            ("ZRANK", queue, member),
            ("ZCOUNT", queue, "-inf", f"({self._low}"),
            ("ZCOUNT", queue, self._low, f"({stored.rank}"),
            ("ZCOUNT", self._keys.of("suspects"), "-inf", self._most_suspects),
            ("HGET", self._keys.of("turns"), self._own.place(self._slot)),
        )
        if stored.is_suspect:
            if self._low != "-inf":
                return suspects, True
            own_before = equals_before = 0
        else:
            equals_before = 0 if own is None else own - unfit - better_here
            own_before = better_here + equals_before
        ahead, is_exact = 0, True
        for group in self._others():
            found = self._before(group, equals_before, turn or b"")
            ahead += round(found * group.total / max(1, min(group.total, len(group.places))))
            is_exact = is_exact and group.total <= len(group.places)
        return ahead + own_before + suspects, is_exact

    def _others(self) -> Iterator[_Group]:
        """Yield where other slots stand: line by line, then those that stand in none now."""
        for lane in self._lanes:
            total, ready = self._link.pipe(("ZCARD", lane.ready), ("ZRANGE", lane.ready, 0, SLOT_LIMIT - 1))
            places = [(member[8:], member[:8]) for member in ready]
            is_better = lane is not self._own
            yield _Group(places, total, lane.low if is_better else self._own.low, lane.high if is_better else None)
        waiting = self._keys.of("waiting")
        total, names = self._link.pipe(("ZCARD", waiting), ("ZRANGE", waiting, 0, SLOT_LIMIT - 1))
        if names:
            (turns,) = self._link.pipe(("HMGET", self._keys.of("turns"), *map(self._own.place, names)))
            yield _Group([(name, turn or _LAST) for name, turn in zip(names, turns, strict=True)], total, self._low)
        known = set(names)
        for unsorted in Lanes(self._link, self._keys).unsorted_keys():
            total, members = self._link.pipe(("ZCARD", unsorted), ("ZRANGE", unsorted, 0, SLOT_LIMIT - 1))
            places = [(member[8:], member[:8]) for member in members if member[8:] not in known]
            known.update(name for name, _ in places)
            yield _Group(places, total - (len(members) - len(places)), self._low)

    def _before(self, group: _Group, equals_before: int, turn: bytes) -> int:
        """Count what goes before it in these slots, without its own."""
        stored, ahead = self._stored, 0
        others = [place for place in group.places if place[0] != self._slot or stored.is_suspect]
        # Equals stand in its own line only.
        bounds = [(group.low, group.high or f"({stored.rank}")] + [(stored.rank, stored.rank)] * (group.high is None)
        for first in range(0, len(others), SLOTS_PER_CALL):
            part = others[first : first + SLOTS_PER_CALL]
            found = self._link.pipe(*(("ZCOUNT", self._keys.queue(slot), *each) for slot, _ in part for each in bounds))
            equals = found[1::2] if group.high is None else [0] * len(part)
            for (_, other), better, equal in zip(part, found[:: len(bounds)], equals, strict=True):
                # A suspect goes before its equals.
                turns = 0 if stored.is_suspect else equals_before + (other < turn)
                ahead += better + min(equal, turns)
        return ahead
