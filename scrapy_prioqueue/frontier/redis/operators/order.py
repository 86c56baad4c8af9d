"""Computes the serving order of pending requests without changing anything."""

from __future__ import annotations

import json
from collections.abc import Iterable
from itertools import islice
from operator import itemgetter

from scrapy_prioqueue.frontier.base import Demand
from scrapy_prioqueue.frontier.memory.pending import Envelope
from scrapy_prioqueue.frontier.memory.serving import Passes, Serving
from scrapy_prioqueue.frontier.memory.store import MemoryStore
from scrapy_prioqueue.frontier.policy import Policy
from scrapy_prioqueue.frontier.redis.keys import Keys
from scrapy_prioqueue.frontier.redis.link import Command, Link
from scrapy_prioqueue.frontier.redis.operators.findings import Stored
from scrapy_prioqueue.frontier.redis.operators.lanes import Lane, Lanes, lane_of
from scrapy_prioqueue.frontier.redis.operators.requests import read_pending, read_suspect
from scrapy_prioqueue.frontier.redis.wire import ID, pieces

READ_AHEAD = 20
"""Number of requests of a slot that are read first; when they are served, ten times as many are read."""

SLOTS_PER_CALL = 200

WAITING_LIMIT = 2000
"""Maximum number of waiting slots that are read; those that wait longest are left out."""

_LAST = b"\xff" * 8
"""Greater than any turn."""


class ServingOrder:
    """Serves from an in-process copy of the heads of the queues, as if every slot had room and nothing were pushed.

    Requests are served one by one, and waiting slots like others.
    Names of slots are decoded as Latin-1, which works for any bytes.
    """

    def __init__(self, link: Link, keys: Keys) -> None:
        self._link = link
        self._keys = keys
        self._lanes = Lanes(link, keys).all()
        self._store = MemoryStore()
        self._read: dict[tuple[Lane, bytes], int] = {}
        self._served: list[Stored] = []

    def first(self, limit: int) -> list[Stored]:
        """Return the requests that would be served next, in that order."""
        self._copy(limit)
        demand = Demand(limit=1)
        for number in range(limit):
            one = Serving(
                *(self._store, demand, 1, 0), grant=self._grant, give_up=lambda *_: None, worker="", living=()
            )
            one.serve()
            if len(self._served) == number:
                break
        return self._served

    def _grant(self, slot: str, envelope: Envelope) -> None:
        name, member, rank = slot.encode("latin-1"), envelope.payload, envelope.rank
        if envelope.attempts:
            self._served.append(read_suspect(member, rank))
            return
        self._served.append(read_pending(member, rank, name))
        lane = lane_of(self._lanes, rank)
        if slot not in self._store.pending.lanes[lane.tier or 0]:
            self._put(name, self._link.pipe(self._next_part(lane, name, 10 * READ_AHEAD))[0])

    def _copy(self, limit: int) -> None:
        store = self._store
        waiting, suspects, passes, (weights, discovery, is_flooded) = self._link.pipe(
            ("ZRANGE", self._keys.of("waiting"), 0, WAITING_LIMIT - 1),
            ("ZRANGE", self._keys.of("suspects"), 0, limit - 1, "WITHSCORES"),
            ("HGETALL", self._keys.of("passes")),
            ("HMGET", self._keys.state, "weights", "discovery", "is_flooded"),
        )
        store.tiers = tuple(str(lane.tier) for lane in self._lanes)
        # With this limit a flood lasts while anything is pending.
        policy = Policy(
            weights=json.loads(weights or "[]"),
            discovery=json.loads(discovery or "[]"),
            pending_limit=int(is_flooded == b"1"),
        )
        store.adopt(policy, "", 0)
        at = float(passes.pop(b"v", 0))
        store.passes = Passes({int(tier): float(each) for tier, each in passes.items()}, at)
        aside = dict.fromkeys(waiting, _LAST) | {
            member[8:]: member[:8] for member in islice(Lanes(self._link, self._keys).unsorted(), WAITING_LIMIT)
        }
        for lane in self._lanes:
            self._copy_lane(lane, aside, limit)
        for member, rank in suspects:
            store.pending.put(read_suspect(member, rank).slot, _envelope(member, rank, is_suspect=True))

    def _copy_lane(self, lane: Lane, aside: dict[bytes, bytes], limit: int) -> None:
        """Copy the first slots of a lane, and the slots that are in no lane now, in the order of their turns."""
        members, turns = self._link.pipe(
            ("ZRANGE", lane.ready, 0, limit - 1),
            ("HMGET", self._keys.of("turns"), b"", *map(lane.position, aside)),
        )
        found = {name: turn or aside[name] for name, turn in zip(aside, turns[1:], strict=True)}
        found |= {member[8:]: member[:8] for member in members}
        names = (name for name, _ in sorted(found.items(), key=itemgetter(1, 0)))
        for part in pieces(names, SLOTS_PER_CALL):
            queues = self._link.pipe(*(self._next_part(lane, name, min(limit, READ_AHEAD)) for name in part))
            for name, queue in zip(part, queues, strict=True):
                self._put(name, queue)

    def _put(self, slot: bytes, queue: Iterable[tuple[bytes, float]]) -> None:
        for member, rank in queue:
            self._store.pending.put(slot.decode("latin-1"), _envelope(member, rank))

    def _next_part(self, lane: Lane, name: bytes, count: int) -> Command:
        queue, first = self._keys.queue(name), self._read.get((lane, name), 0)
        self._read[lane, name] = first + count
        if lane.tier is None:
            return ("ZRANGE", queue, first, first + count - 1, "WITHSCORES")
        return ("ZRANGE", queue, lane.low, lane.high, "BYSCORE", "LIMIT", first, count, "WITHSCORES")


def _envelope(member: bytes, rank: float, *, is_suspect: bool = False) -> Envelope:
    """Return an envelope whose payload is a whole queue member; a request that was lost counts as a suspect."""
    return Envelope(int(rank), ID.unpack(member[:8].ljust(8, b"\0"))[0], int(is_suspect), member)
