"""Computes how many requests are served before one, from ranks and turns, without reading the requests."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from scrapy_prioqueue.frontier.redis.keys import Keys
from scrapy_prioqueue.frontier.redis.link import Link
from scrapy_prioqueue.frontier.redis.operators.findings import Stored
from scrapy_prioqueue.frontier.redis.operators.lanes import SLOTS_PER_CALL, Lanes, lane_of
from scrapy_prioqueue.frontier.redis.wire import ID, encoded, pieces

SLOT_LIMIT = 2000
"""Number of slots of a lane whose requests are counted; with more, a random sample gives an estimate."""

_LAST = b"\xff" * 9
"""Greater than any turn."""

_Bounds = tuple[float | str, float | str]
_ALL: _Bounds = ("-inf", "+inf")
_NONE: _Bounds = ("+inf", "-inf")


@dataclass(frozen=True, slots=True)
class _Group:
    """Slots of one lane, or slots that are in none.

    Args:
        turns: slots and their turns, a random sample if there are very many.
        total: number of all.
        whole: range of the ranks of the requests in the lane.
        better: range of the ranks served before the request, None if there are none.
        has_equals: a part of those with its own rank is served before it, too.
    """

    turns: Sequence[tuple[bytes, bytes]]
    total: int
    whole: _Bounds
    better: _Bounds | None
    has_equals: bool = False

    @property
    def is_sample(self) -> bool:
        return self.total > len(self.turns)


@dataclass(frozen=True, slots=True)
class _Counted:
    """The requests of a slot, as counted.

    Args:
        held: number of all.
        better: number of those served before the request because of their rank.
        equal: number of those served before it because of their turns.
        weight: number of slots that this one represents.
    """

    held: int
    better: int
    equal: int
    weight: float = 1.0


class Ahead:
    """Counts the pending requests that are served before a pending one.

    Slots take turns among equal ranks, so another slot's equals count only up to the number that this slot has before
    the request. Waiting slots count like others. With weights, only suspects and requests of its own tier count.
    """

    def __init__(self, link: Link, keys: Keys, stored: Stored) -> None:
        self._link = link
        self._keys = keys
        self._stored = stored
        self._slot = encoded(stored.slot)
        self._lanes, (weights,) = Lanes(link, keys).all(), link.pipe(("HGET", keys.state, "weights"))
        self._own = lane_of(self._lanes, stored.rank)
        self._has_shares = bool(weights)
        self._low = self._own.low if weights else "-inf"

    def count(self) -> tuple[int, bool]:
        """Return their number, and whether it is exact."""
        stored, queue, low = self._stored, self._keys.queue(self._slot), self._low
        member = ID.pack(stored.lease_id) + bytes([stored.attempts]) + stored.payload
        most_suspects = f"({stored.rank}" if stored.is_suspect else "+inf" if self._has_shares else stored.rank
        own, length, unfit, better_here, suspects, all_suspects, turn, pending = self._link.pipe(
            ("ZRANK", queue, member),
            ("ZCARD", queue),
            ("ZCOUNT", queue, "-inf", f"({low}"),
            ("ZCOUNT", queue, low, f"({stored.rank}"),
            ("ZCOUNT", self._keys.of("suspects"), "-inf", most_suspects),
            ("ZCARD", self._keys.of("suspects")),
            ("HGET", self._keys.of("turns"), self._own.position(self._slot)),
            ("HGET", self._keys.of("stats"), "pending"),
        )
        if stored.is_suspect:
            if self._has_shares:
                return suspects, True
            # A suspect is in no slot's queue, so all slots are other ones.
            length = own_before = equals_before = 0
        else:
            equals_before = 0 if own is None else own - unfit - better_here
            own_before = better_here + equals_before
        in_others = int(pending or 0) - all_suspects - length
        ahead, is_exact = self._ahead_in_others(equals_before, turn or b"", in_others)
        return ahead + own_before + suspects, is_exact

    def _ahead_in_others(self, equals_before: int, turn: bytes, requests: int) -> tuple[int, bool]:
        """Return how many requests in other slots are served before it, and whether that is exact.

        Args:
            requests: number of requests in other slots.
        """
        groups = list(self._groups())
        is_exact, ahead, samples = True, 0, list[_Counted]()
        for group in groups:
            counted = self._counted(group, equals_before, turn)
            if group.is_sample:
                is_exact = False
                scale = group.total / max(1, len(group.turns))
                samples += (replace(slot, weight=scale) for slot in counted)
            else:
                ahead += sum(slot.better + slot.equal for slot in counted)
                requests -= sum(slot.held for slot in counted)
        if is_exact:
            return ahead, True
        return ahead + _estimate(samples, max(0, requests), equals_before + 1), False

    def _groups(self) -> Iterator[_Group]:
        """Yield the other slots: lane by lane, then those that are in none now."""
        better: _Bounds = (self._low, f"({self._stored.rank}")
        for lane in self._lanes:
            total, members = self._sample(lane.ready)
            turns, whole = [(member[8:], member[:8]) for member in members], (lane.low, lane.high)
            if lane is self._own:
                yield _Group(turns, total, whole, (lane.low, better[1]), has_equals=True)
            else:
                # Without weights, better lanes are served completely before it, and worse ones after it.
                is_better = not self._has_shares and (lane.tier or 0) < (self._own.tier or 0)
                yield _Group(turns, total, whole, whole if is_better else None)
        total, names = self._sample(self._keys.of("waiting"))
        if names:
            (found,) = self._link.pipe(("HMGET", self._keys.of("turns"), *map(self._own.position, names)))
            turns = [(name, turn or _LAST) for name, turn in zip(names, found, strict=True)]
            yield _Group(turns, total, _ALL, better, has_equals=True)
        known = set(names)
        for unsorted in Lanes(self._link, self._keys).unsorted_keys():
            total, members = self._sample(unsorted)
            turns = [(member[8:], member[:8]) for member in members if member[8:] not in known]
            known.update(name for name, _ in turns)
            yield _Group(turns, total - (len(members) - len(turns)), _ALL, better, has_equals=True)

    def _sample(self, key: str) -> tuple[int, Sequence[bytes]]:
        """Return how many members a key has, and all of them or a random sample."""
        total, members = self._link.pipe(("ZCARD", key), ("ZRANDMEMBER", key, SLOT_LIMIT))
        return max(total, len(members)), members

    def _counted(self, group: _Group, equals_before: int, turn: bytes) -> Sequence[_Counted]:
        """Count the requests of these slots, and those served before it; its own slot is left out."""
        stored, counted = self._stored, list[_Counted]()
        bounds = [group.whole, group.better or _NONE, (stored.rank, stored.rank) if group.has_equals else _NONE]
        others = [each for each in group.turns if each[0] != self._slot or stored.is_suspect]
        for part in pieces(others, SLOTS_PER_CALL):
            found = self._link.pipe(*(("ZCOUNT", self._keys.queue(slot), *each) for slot, _ in part for each in bounds))
            for (_, other), held, better, equal in zip(part, found[::3], found[1::3], found[2::3], strict=True):
                # A suspect is served before its equals.
                turns = 0 if stored.is_suspect else equals_before + (other < turn)
                counted.append(_Counted(held, better, min(equal, turns)))
        return counted


def _estimate(sample: Sequence[_Counted], requests: int, most_equals: int) -> int:
    """Return about how many requests are served before it, of all those in the slots that a sample represents.

    A few long queues may hold most of the requests, and a sample has all of one of them or nothing. The number of
    requests is known, so a slot that would represent more than that represents only itself. Requests that the sample
    doesn't represent are assumed to be in one long queue, in which at most `most_equals` equals are served before it.
    """
    part = sum(slot.held * slot.weight for slot in sample)
    better = equal = 0.0
    for slot in sorted(sample, key=lambda slot: -slot.held):
        weight = slot.weight if part <= requests else 1
        part -= slot.held * (slot.weight - weight)
        better, equal = better + slot.better * weight, equal + slot.equal * weight
    missed = max(0.0, requests - part) / max(1.0, part)
    return min(requests, round(better * (1 + missed) + equal + min(equal * missed, most_equals)))
