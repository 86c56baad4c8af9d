"""The order in which pending requests would be served, found out without changing it; as `lease.lua` does it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from heapq import heapify, heappop, heapreplace

from scrapy_prioqueue.frontier.redis.findings import Stored
from scrapy_prioqueue.frontier.redis.keys import Keys
from scrapy_prioqueue.frontier.redis.link import Link
from scrapy_prioqueue.frontier.redis.requests import read_pending, read_suspect

READ_AHEAD = 20
"""Requests of a slot that are read at a time, at most."""

SLOTS_PER_CALL = 200


@dataclass(order=True)
class _Slot:
    """A slot as it will be looked at next: the lowest rank first, then who was served longest ago.

    Args:
        queue: what of it was read and isn't served yet, best first.
        read: how much of it was read.
    """

    rank: float
    turn: bytes
    name: bytes
    queue: list[tuple[bytes, float]] = field(compare=False, default_factory=list)
    read: int = field(compare=False, default=0)


class ServingOrder:
    """Serves from a copy of the heads of the queues, as if every slot had room and one worker took one at a time."""

    def __init__(self, link: Link, keys: Keys) -> None:
        self._link = link
        self._keys = keys

    def first(self, limit: int) -> list[Stored]:
        """Return the requests that would be served next, in that order."""
        slots, suspects = self._read(limit)
        step = iter(range(1, limit + 1))
        served: list[Stored] = []
        while len(served) < limit and (slots or suspects):
            # A suspect goes first unless another request ranks better.
            if suspects and not (slots and slots[0].rank < suspects[0][1]):
                served.append(read_suspect(*suspects.pop(0)))
                continue
            slot = slots[0]
            member, rank = slot.queue.pop(0)
            served.append(read_pending(member, rank, slot.name))
            self._serve_again(slots, slot, next(step), limit)
        return served

    def _serve_again(self, slots: list[_Slot], slot: _Slot, step: int, limit: int) -> None:
        if not slot.queue:
            slot.queue = self._more(slot, limit)
        if not slot.queue:
            heappop(slots)
            return
        # Behind all turns that are in Redis: those are 8 bytes, and this is more than any of them.
        turn = b"\xff" * 8 + step.to_bytes(8, "big")
        heapreplace(slots, _Slot(slot.queue[0][1], turn, slot.name, slot.queue, slot.read))

    def _read(self, limit: int) -> tuple[list[_Slot], list[tuple[bytes, float]]]:
        found, suspects = self._link.pipe(
            ("ZRANGE", self._keys.of("ready"), 0, limit - 1, "WITHSCORES"),
            ("ZRANGE", self._keys.of("suspects"), 0, limit - 1, "WITHSCORES"),
        )
        slots = [slot for slot in self._with_queues(found, min(limit, READ_AHEAD)) if slot.queue]
        heapify(slots)
        return slots, suspects

    def _with_queues(self, found: list[tuple[bytes, float]], count: int) -> Iterator[_Slot]:
        for first in range(0, len(found), SLOTS_PER_CALL):
            part = found[first : first + SLOTS_PER_CALL]
            commands = [("ZRANGE", self._keys.queue(name[8:]), 0, count - 1, "WITHSCORES") for name, _ in part]
            for (member, rank), queue in zip(part, self._link.pipe(*commands), strict=True):
                yield _Slot(rank, member[:8], member[8:], queue, count)

    def _more(self, slot: _Slot, limit: int) -> list[tuple[bytes, float]]:
        count = min(limit, READ_AHEAD * 10)
        key = self._keys.queue(slot.name)
        (queue,) = self._link.pipe(("ZRANGE", key, slot.read, slot.read + count - 1, "WITHSCORES"))
        slot.read += count
        return list(queue)
