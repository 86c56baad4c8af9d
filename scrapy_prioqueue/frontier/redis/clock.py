"""The frontier's clock for readers: the server's, with the corrections that the scripts make if it was set."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from scrapy_prioqueue.frontier.redis.keys import Keys
from scrapy_prioqueue.frontier.redis.link import Command


def clock_questions(keys: Keys) -> Sequence[Command]:
    """Return the commands whose replies `clock_of` needs."""
    heard = ("ZRANGE", keys.workers, -1, -1, "WITHSCORES")
    return (("TIME",), ("HMGET", keys.state, "clock_ahead_ms", "clock_ms"), heard)


def clock_of(server_time: Sequence[int], known: Sequence[bytes | None], heard: Sequence[tuple[bytes, float]]) -> int:
    """Return the time in milliseconds, as `lib.clock_ms` of the scripts computes it."""
    seconds, micros = server_time
    ahead_ms, read_ms = (int(value or 0) for value in known)
    return max(seconds * 1000 + micros // 1000 + ahead_ms, read_ms, *(int(at) for _, at in heard))


def newest_ms(heard: Any) -> float:
    """Return when a worker was last heard of, 0 if never; right after a call of a worker that is the current time."""
    return max((at for _, at in heard), default=0.0)
