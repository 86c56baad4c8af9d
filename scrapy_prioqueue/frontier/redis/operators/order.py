"""Computes the serving order of pending requests without changing anything; it must agree with `lease.lua`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heapreplace
from itertools import islice

from scrapy_prioqueue.frontier.redis.keys import Keys
from scrapy_prioqueue.frontier.redis.link import Command, Link
from scrapy_prioqueue.frontier.redis.operators.findings import Stored
from scrapy_prioqueue.frontier.redis.operators.lanes import Lane, Lanes
from scrapy_prioqueue.frontier.redis.operators.requests import read_pending, read_suspect
from scrapy_prioqueue.rank import tier_of

READ_AHEAD = 20
"""Maximum number of requests of a slot that are read at a time."""

SLOTS_PER_CALL = 200

WAITING_LIMIT = 2000
"""Maximum number of waiting slots that are read; those that wait longest are left out."""


_LAST = b"\xff" * 8
"""Greater than any turn."""


@dataclass(order=True)
class _Slot:
    """A slot in the heap of its lane: the lowest rank first, then the one served longest ago.

    Args:
        queue: requests that were read and not served, best first.
        read: number of requests read.
    """

    rank: float
    turn: bytes
    name: bytes
    queue: list[tuple[bytes, float]] = field(compare=False, default_factory=list)
    read: int = field(compare=False, default=0)


@dataclass
class _Line:
    """A lane with its share.

    Args:
        slots: a heap.
        passed: grows with each request served, by 1/weight.
        is_last: served only if the others have nothing.
    """

    lane: Lane
    slots: list[_Slot]
    weight: int = 0
    passed: float = 0.0
    is_last: bool = False


class ServingOrder:
    """Serves from a copy of the heads of the queues, as if every slot had room and one worker took one at a time.

    Waiting slots are served like others.
    """

    def __init__(self, link: Link, keys: Keys) -> None:
        self._link = link
        self._keys = keys
        self._lines: list[_Line] = []
        self._is_shared = False
        self._passed = 0.0

    def first(self, limit: int) -> list[Stored]:
        """Return the requests that would be served next, in that order."""
        suspects = self._read(limit)
        step = iter(range(1, limit + 1))
        served: list[Stored] = []
        while len(served) < limit:
            line = self._next_line()
            if suspects and self._goes_first(suspects[0], line):
                served.append(read_suspect(*suspects.pop(0)))
                continue
            if line is None:
                break
            slot = line.slots[0]
            member, rank = slot.queue.pop(0)
            served.append(read_pending(member, rank, slot.name))
            self._pay(line)
            self._serve_again(line, slot, next(step), limit)
        return served

    def _next_line(self) -> _Line | None:
        filled = [line for line in self._lines if line.slots]
        chosen = [line for line in filled if not line.is_last] or filled
        if not chosen:
            return None
        return min(chosen, key=lambda line: max(line.passed, self._passed)) if self._is_shared else chosen[0]

    def _pay(self, line: _Line) -> None:
        if self._is_shared:
            self._passed = max(line.passed, self._passed)
            line.passed = self._passed + 1 / line.weight

    def _goes_first(self, suspect: tuple[bytes, float], line: _Line | None) -> bool:
        """A suspect is served first unless another request has a better rank."""
        if line is None:
            return True
        tier = tier_of(int(suspect[1]))
        if not line.is_last and any(other.is_last and other.lane.tier == tier for other in self._lines):
            return False
        return self._is_shared or line.slots[0].rank >= suspect[1]

    def _serve_again(self, line: _Line, slot: _Slot, step: int, limit: int) -> None:
        if not slot.queue:
            count = min(limit, READ_AHEAD * 10)
            (slot.queue,) = self._link.pipe(self._part_of(line.lane, slot.name, slot.read, count))
            slot.read += count
        if not slot.queue:
            heappop(line.slots)
            return
        # Behind all turns in Redis, which have 8 bytes; this is greater than any of them.
        turn = b"\xff" * 8 + step.to_bytes(8, "big")
        heapreplace(line.slots, _Slot(slot.queue[0][1], turn, slot.name, slot.queue, slot.read))

    def _read(self, limit: int) -> list[tuple[bytes, float]]:
        lanes = Lanes(self._link, self._keys)
        weights, discovery, is_flooded = self._policy()
        waiting, suspects, passes = self._link.pipe(
            ("ZRANGE", self._keys.of("waiting"), 0, WAITING_LIMIT - 1),
            ("ZRANGE", self._keys.of("suspects"), 0, limit - 1, "WITHSCORES"),
            ("HGETALL", self._keys.of("passes")),
        )
        aside = dict.fromkeys(waiting, _LAST) | {
            member[8:]: member[:8] for member in islice(lanes.unsorted(), WAITING_LIMIT)
        }
        self._is_shared, self._passed = bool(weights), float(passes.get(b"v", 0))
        for lane in lanes.all():
            line = _Line(lane, self._slots_of(lane, aside, limit))
            if lane.tier is not None:
                line.passed = float(passes.get(b"%d" % lane.tier, 0))
                line.weight = weights[lane.tier] if weights else 0
                line.is_last = is_flooded and lane.tier in discovery
            self._lines.append(line)
        return list(suspects)

    def _policy(self) -> tuple[Sequence[int], Sequence[int], bool]:
        (found,) = self._link.pipe(("HMGET", self._keys.state, "weights", "discovery", "is_flooded"))
        return json.loads(found[0] or "[]"), json.loads(found[1] or "[]"), found[2] == b"1"

    def _slots_of(self, lane: Lane, aside: dict[bytes, bytes], limit: int) -> list[_Slot]:
        """Return the first slots of a lane, and those that are in no lane now, as a heap."""
        names = list(aside)
        (members, turns) = self._link.pipe(
            ("ZRANGE", lane.ready, 0, limit - 1),
            ("HMGET", self._keys.of("turns"), b"", *map(lane.place, names)),
        )
        found = {name: turn or aside[name] for name, turn in zip(names, turns[1:], strict=True)}
        found |= {member[8:]: member[:8] for member in members}
        slots = list(self._with_queues(lane, list(found.items()), min(limit, READ_AHEAD)))
        heapify(slots)
        return slots

    def _with_queues(self, lane: Lane, places: list[tuple[bytes, bytes]], count: int) -> Iterator[_Slot]:
        for first in range(0, len(places), SLOTS_PER_CALL):
            part = places[first : first + SLOTS_PER_CALL]
            queues = self._link.pipe(*(self._part_of(lane, name, 0, count) for name, _ in part))
            for (name, turn), queue in zip(part, queues, strict=True):
                if queue:
                    yield _Slot(queue[0][1], turn, name, queue, count)

    def _part_of(self, lane: Lane, name: bytes, first: int, count: int) -> Command:
        queue = self._keys.queue(name)
        if lane.tier is None:
            return ("ZRANGE", queue, first, first + count - 1, "WITHSCORES")
        bounds = (lane.low, lane.high, "BYSCORE", "LIMIT", first, count)
        return ("ZRANGE", queue, *bounds, "WITHSCORES")
