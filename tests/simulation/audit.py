"""Reads the data of the frontier between two steps with plain commands."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, NamedTuple

import msgpack

from tests.simulation.site import SLOTS
from tests.simulation.wire import Wire, pack

NAME = "sim"
PREFIX = f"{{prioqueue:{NAME}}}:"
STATE = PREFIX + "state"
BELL = PREFIX + "bell"

State = Literal["pending", "delayed", "leased", "dead"]

COUNTERS = ("accepted", "pending", "delayed", "leased", "dead", "done", "duplicates", "void", "reaped")

_COMMANDS: list[tuple[str, ...]] = [
    ("HMGET", STATE, "phase", "epoch", "has_limits", "clock_ahead_ms"),
    ("HGETALL", PREFIX + "stats"),
    ("HGETALL", PREFIX + "leased"),
    ("ZRANGE", PREFIX + "leases", "0", "-1", "WITHSCORES"),
    ("ZRANGE", PREFIX + "suspects", "0", "-1", "WITHSCORES"),
    ("HGETALL", PREFIX + "dead"),
    ("ZRANGE", PREFIX + "ready", "0", "-1", "WITHSCORES"),
    ("HGETALL", PREFIX + "sessions"),
    ("ZRANGE", PREFIX + "delayed", "0", "-1", "WITHSCORES"),
    ("ZRANGE", PREFIX + "ready:0", "0", "-1", "WITHSCORES"),
    ("ZRANGE", PREFIX + "waiting", "0", "-1", "WITHSCORES"),
    ("HGETALL", PREFIX + "running"),
    *(("ZRANGE", PREFIX + "queue:" + slot, "0", "-1", "WITHSCORES") for slot in SLOTS),
]
_FIRST_QUEUE = len(_COMMANDS) - len(SLOTS)
COMMAND_COUNT = len(_COMMANDS)
PACKED_COMMANDS = pack(_COMMANDS)


class Held(NamedTuple):
    """A request in the frontier.

    Args:
        worker: who has leased it, or did so last; empty while it is pending or delayed.
    """

    payload: str
    state: State
    attempts: int
    worker: str = ""


@dataclass(frozen=True)
class Audit:
    """All that the frontier holds; `replies` are those to the commands above."""

    replies: list[Any]

    @property
    def phase(self) -> str:
        """Of the crawl; empty where there is none."""
        return (self.replies[0][0] or b"").decode()

    @property
    def ahead_ms(self) -> int:
        """How far the frontier's clock is ahead of the server's."""
        return int(self.replies[0][3] or 0)

    @cached_property
    def counters(self) -> Mapping[str, int]:
        """As the scripts keep them."""
        stats = self.replies[1]
        return {name: int(stats.get(name.encode(), 0)) for name in COUNTERS}

    @cached_property
    def expiries(self) -> Mapping[bytes, int]:
        """When leases expire, by id."""
        return {member: int(score) for member, score in self.replies[3]}

    @cached_property
    def due_ms(self) -> Mapping[bytes, int]:
        """When delayed requests are due, by id."""
        return {member[:8]: int(score) for member, score in self.replies[8]}

    @cached_property
    def positions(self) -> Mapping[str, int]:
        """Number of the last batch, by worker."""
        return {name.decode(): int(session.rpartition(b":")[2]) for name, session in self.replies[7].items()}

    @cached_property
    def requests(self) -> Mapping[bytes, Held]:
        """All requests by id; one that is in two places is found here in one only, and the counters don't add up."""
        found = {}
        for queue in self.replies[_FIRST_QUEUE:]:
            for member, _ in queue:
                found[member[:8]] = Held(member[9:].decode(), "pending", member[8])
        for member, _ in self.replies[4]:
            slot_length = int.from_bytes(member[9:13], "big")
            found[member[:8]] = Held(member[13 + slot_length :].decode(), "pending", member[8])
        for member, _ in self.replies[8]:
            slot_length = int.from_bytes(member[17:21], "big")
            found[member[:8]] = Held(member[21 + slot_length :].decode(), "delayed", member[8])
        for key, value in self.replies[2].items():
            attempts, _, _, worker, payload = msgpack.unpackb(value, raw=True)
            found[key] = Held(payload.decode(), "leased", attempts, worker.decode())
        for key, value in self.replies[5].items():
            _, _, attempts, _, _, worker, _, payload, *_ = msgpack.unpackb(value, raw=True)
            found[key] = Held(payload.decode(), "dead", attempts, worker.decode())
        return found

    @cached_property
    def sizes(self) -> Mapping[str, int]:
        """How many requests are in each state, as the keys that hold them say."""
        pending = sum(len(queue) for queue in self.replies[_FIRST_QUEUE:]) + len(self.replies[4])
        delayed = len(self.replies[8])
        return {"pending": pending, "delayed": delayed, "leased": len(self.replies[2]), "dead": len(self.replies[5])}

    @property
    def unready(self) -> list[str]:
        """Slots whose place among those that are served is not that of the head of their queue, or that wait there."""
        ready = {member[8:].decode(): score for line in (6, 9) for member, score in self.replies[line]}
        waiting = {member.decode() for member, _ in self.replies[10]}
        heads = {slot: queue[0][1] for slot, queue in zip(SLOTS, self.replies[_FIRST_QUEUE:], strict=True) if queue}
        lost = [slot for slot in SLOTS if slot not in waiting and ready.get(slot) != heads.get(slot)]
        return lost + [slot for slot in waiting if slot in ready or slot not in heads]

    @property
    def miscounted(self) -> list[str]:
        """Slots of which other numbers of requests are out than limits count."""
        if not self.replies[0][2]:
            return []
        held = Counter(msgpack.unpackb(value, raw=True)[2] for value in self.replies[2].values())
        running = {slot: int(count) for slot, count in self.replies[11].items()}
        return [slot.decode() for slot in {*held, *running} if held[slot] != running.get(slot, 0)]


def audit(wire: Wire) -> Audit:
    """Return what the frontier holds now."""
    return Audit(wire.ask_packed(PACKED_COMMANDS, COMMAND_COUNT))
