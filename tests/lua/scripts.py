"""A client that calls the scripts of workers with its own arguments, also wrong or late ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from scrapy_prioqueue.frontier.policy import Policy
from scrapy_prioqueue.frontier.redis.connection import parse_version
from scrapy_prioqueue.frontier.redis.keys import LAYOUT, Keys
from scrapy_prioqueue.frontier.redis.scripts import NAMES, OPERATOR_NAMES, Argument, scripts_for
from scrapy_prioqueue.frontier.redis.seen.shapes import shape_for
from scrapy_prioqueue.frontier.redis.wire import policy_digest, policy_json
from scrapy_prioqueue.frontier.seen import SeenPolicy
from tests.support.halves import failing
from tests.support.servers import RedisServer

TTL_MS = 10_000
NOW_MS = 1_700_000_000_000

FAILS_AT = "tests:fails-at"

OK, OTHER_CRAWL, UNKNOWN_SESSION, OUT_OF_STEP, SUPERSEDED = range(5)

PUSH = ("P", 0, "slot", 0, b"payload", "", "", "")


class Scripts:
    """Calls scripts on a frontier by hand, as the worker "w1" of its first crawl, with a clock that stands still."""

    fails_at = 0
    """At which of its effects, counted from 1, a script raises an error; 0 for never."""

    def __init__(self, server: RedisServer, name: str) -> None:
        self.client = server.client()
        self.keys = Keys(name)
        self.now_ms = NOW_MS
        self.last_batch = 0
        self.epoch, self.worker, self.nonce = "1", "w1", "n1"
        self.policy = Policy()
        self.seen = SeenPolicy()
        self._scripts = scripts_for(
            parse_version(self.client.info("server")["redis_version"]), (*NAMES, *OPERATOR_NAMES)
        )

    def call(self, name: str, *arguments: Argument) -> Any:
        """Call a script with the time in front of these arguments."""
        return self.run(self._scripts[name].source, self.now_ms, *arguments)

    def run(self, source: str, *arguments: Argument) -> Any:
        """Run a text; it is sent once."""
        if self.fails_at:
            self.client.set(FAILS_AT, self.fails_at)
            source = failing(source, f'tonumber(redis.call("GET", "{FAILS_AT}"))')
        return self.client.register_script(source)([self.keys.state], arguments, self.client)

    def join(self, *, crawl_id: str = "", flush: int = 0, has_cleared: int = 0, last_batch: int = 0) -> Any:
        """Join with everything else as usual."""
        config = (TTL_MS, LAYOUT, '["a"]', "lifo", "restart", crawl_id, flush, has_cleared, 2, "lease,decode", 100, "")
        policy = policy_json(self.policy)
        seen = (shape_for(self.seen).text(), "" if self.seen.revisit_s is None else self.seen.revisit_s, "")
        membership = (self.worker, self.nonce, last_batch, "{}", *config, policy_digest(policy), *seen, "", "", "")
        return self.call("join", *membership, policy)

    def commit(self, number: int, *operations: Sequence[Argument]) -> Any:
        """Commit a batch."""
        parts = [part for operation in operations for part in operation]
        return self.call("commit", *self.session, number, TTL_MS, *parts)

    def lease(self, limit: int, *, is_idle: int = 0, later: int = 0, horizon_ms: int = 0, away_ms: int = 0) -> Any:
        """Lease without further wishes."""
        return self.call(
            "lease",
            *(*self.session, self.last_batch, TTL_MS, limit, 2**31, is_idle, 0),
            *("1,0", later, horizon_ms, 0, 5, 100, away_ms, 0),
        )

    def reap(self) -> tuple[int, Any]:
        """Lease nothing; return how many leases were reaped, and their dead letters."""
        reply = self.lease(0)
        return reply[6], reply[7]

    @property
    def session(self) -> Sequence[Argument]:
        return self.epoch, self.worker, self.nonce

    def dump(self) -> Mapping[bytes, object]:
        """Return everything the frontier holds, as the server would save it; of hashes, whose order may differ, all."""
        found = sorted(self.client.scan_iter(self.keys.pattern(), count=1000))
        with self.client.pipeline(transaction=False) as pipeline:
            for key in found:
                pipeline.type(key)
            types = pipeline.execute()
            for key, kind in zip(found, types, strict=True):
                pipeline.hgetall(key) if kind == b"hash" else pipeline.dump(key)
            return dict(zip(found, pipeline.execute(), strict=True))

    def counters(self) -> Mapping[bytes, int]:
        """Return all counters that are not zero."""
        found: Any = self.client.hgetall(self.keys.of("stats"))
        return {name: int(value) for name, value in found.items() if int(value)}

    def stat(self, name: str) -> int:
        """Return a counter."""
        return int(self.client.hget(self.keys.prefix + "stats", name) or 0)


def leases_of(reply: Any) -> list[tuple[bytes, int]]:
    """Return (id, attempts) of each lease in a reply of `lease`."""
    flat = reply[4]
    return [(flat[at], flat[at + 1]) for at in range(0, len(flat), 5)]
