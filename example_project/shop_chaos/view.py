"""A frontier in Redis as other programs read it, for those who judge a crawl from outside; it changes nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgpack
import redis

from scrapy_prioqueue.codec.plain import read_plain
from scrapy_prioqueue.frontier.redis.keys import Keys

Lease = tuple[bytes, int]
"""Id and attempt."""

KEPT = frozenset(
    {"state", "ended", "stats", "workers", "sessions", "info", "busy", "hungry", "runs", "ran", "numbers", "history"}
)
"""Kinds of keys about workers, their runs and ended crawls, not about requests."""

_COUNTED = """
local pending = 0
for _, queue in ipairs(redis.call("KEYS", KEYS[1] .. "queue:*")) do pending = pending + redis.call("ZCARD", queue) end
pending = pending + redis.call("ZCARD", KEYS[1] .. "suspects")
local leased, expiries = redis.call("HLEN", KEYS[1] .. "leased"), redis.call("ZCARD", KEYS[1] .. "leases")
local stats = redis.call("HMGET", KEYS[1] .. "stats", "accepted", "pending", "leased", "dead", "done")
return {pending, leased, expiries, redis.call("HLEN", KEYS[1] .. "dead"), stats}
"""


class BooksDoNotBalance(Exception):
    """What was accepted is not what is there and what is done."""


class FrontierView:
    """A frontier in Redis, as other tools read it; see docs/architecture.md for its keys.

    Args:
        client: of the server; it gives bytes.
        name: of the frontier.
    """

    def __init__(self, client: redis.Redis, name: str) -> None:
        self._client: Any = client
        self._keys = Keys(name)

    def counts(self) -> Mapping[str, int]:
        """Return the counters of the crawl."""
        stats = self._client.hgetall(self._keys.prefix + "stats")
        return {name.decode(): int(value) for name, value in stats.items()}

    def data_bytes(self) -> int:
        """Return what all keys take."""
        keys = self._client.keys(self._keys.pattern())
        return sum(self._client.memory_usage(key, samples=0) or 0 for key in keys)

    def leases(self, worker: str) -> set[Lease]:
        """Return what a worker holds."""
        return {(lease_id, attempt) for lease_id, (attempt, name) in self.held().items() if name == worker.encode()}

    def expiries(self) -> Sequence[float]:
        """Return when each lease expires, in ms by the server's clock."""
        return [expiry_ms for _, expiry_ms in self._client.zrange(self._keys.prefix + "leases", 0, -1, withscores=True)]

    def pending(self) -> set[bytes]:
        """Return the ids of all that is pending."""
        queues = [*self._client.keys(self._keys.prefix + "queue:*"), self._keys.prefix + "suspects"]
        return {member[:8] for queue in queues for member in self._client.zrange(queue, 0, -1)}

    def unfinished(self) -> set[bytes]:
        """Return the ids of all that is pending or leased."""
        return self.pending() | set(self._client.hkeys(self._keys.leased))

    def pending_urls(self) -> Sequence[str]:
        """Return the addresses of all pending requests; see docs/reference/keys.md and payload.md."""
        prefix = (self._keys.prefix + "queue:").encode()
        queues = self._client.keys(self._keys.prefix + "queue:*")
        members = ((queue, member) for queue in queues for member in self._client.zrange(queue, 0, -1))
        urls = [_url(member[9:], queue.removeprefix(prefix)) for queue, member in members]
        suspects = self._client.zrange(self._keys.prefix + "suspects", 0, -1)
        return [*urls, *(_url(*_suspect(member)) for member in suspects)]

    def leased_urls(self) -> Sequence[str]:
        """Return the addresses of all leased requests."""
        leases = [msgpack.unpackb(value, raw=True) for value in self._client.hvals(self._keys.leased)]
        return [_url(payload, slot) for _, _, slot, _, payload in leases]

    def connections(self) -> int:
        """Return how many connections the server has, this one included."""
        return len(self._client.client_list())

    def dead_letters(self) -> Sequence[Sequence[Any]]:
        """Return all dead letters: reason, detail, attempts, rank, slot, worker, time in ms, payload."""
        return [msgpack.unpackb(value, raw=True) for value in self._client.hvals(self._keys.dead)]

    def dead_urls(self) -> Sequence[str]:
        """Return the addresses of all dead letters."""
        return [_url(letter[7], letter[4]) for letter in self.dead_letters()]

    def nouns(self) -> set[str]:
        """Return what kinds of keys there are."""
        keys = self._client.keys(self._keys.pattern())
        return {key.decode().removeprefix(self._keys.prefix).partition(":")[0] for key in keys}

    def has_ended(self) -> bool:
        """Return whether the first crawl of this frontier is over, and no other has begun."""
        return bool(self._client.hmget(self._keys.state, "epoch", "phase") == [b"1", b"ended"])

    def held(self) -> Mapping[bytes, tuple[int, bytes]]:
        """Return (attempt, worker) of every lease by its id."""
        found = self._client.hgetall(self._keys.leased)
        leases = ((lease_id, msgpack.unpackb(value, raw=True)) for lease_id, value in found.items())
        return {lease_id: (fields[0], fields[3]) for lease_id, fields in leases}

    def check_books(self) -> int:
        """Compare the counters with each other and with what is there, at one moment; return what was accepted.

        Raises:
            BooksDoNotBalance: they differ.
        """
        pending, leased, expiries, dead, stats = self._client.eval(_COUNTED, 1, self._keys.prefix)
        accepted, *counted, done = (int(each or 0) for each in stats)
        there = [pending, leased, dead]
        if counted != there or leased != expiries or accepted != sum(there) + done:
            raise BooksDoNotBalance(
                f"accepted {accepted}, done {done}; pending, leased and dead: {counted} counted, {there} there,"
                f" {expiries} expiries"
            )
        return int(accepted)


def _suspect(member: bytes) -> tuple[bytes, bytes]:
    end = 13 + int.from_bytes(member[9:13], "big")
    return member[end:], member[13:end]


def _url(payload: bytes, slot: bytes) -> str:
    return read_plain(payload, slot.decode()).url
