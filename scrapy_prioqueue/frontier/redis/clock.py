"""The frontier's clock for those who only read: the server's, as the scripts correct it where that was set."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from redis.asyncio import Redis

from scrapy_prioqueue.frontier.redis.keys import Keys
from scrapy_prioqueue.frontier.redis.link import Command


def clock_questions(keys: Keys) -> Sequence[Command]:
    """Return the commands whose answers `clock_of` takes."""
    heard = ("ZRANGE", keys.workers, -1, -1, "WITHSCORES")
    return (("TIME",), ("HMGET", keys.state, "clock_ahead_ms", "clock_ms"), heard)


def clock_of(server_time: Sequence[int], known: Sequence[bytes | None], heard: Sequence[tuple[bytes, float]]) -> int:
    """Return the time in milliseconds, as `lib.clock_ms` of the scripts finds it."""
    seconds, micros = server_time
    ahead_ms, read_ms = (int(value or 0) for value in known)
    return max(seconds * 1000 + micros // 1000 + ahead_ms, read_ms, *(int(at) for _, at in heard))


async def read_clock(client: Redis, *, keys: Keys) -> int:
    """Return the time in milliseconds, over a connection that doesn't block."""
    pipeline = client.pipeline(transaction=False)
    pipeline.time()
    pipeline.hmget(keys.state, ["clock_ahead_ms", "clock_ms"])
    pipeline.zrange(keys.workers, -1, -1, withscores=True)
    return clock_of(*await pipeline.execute())


def newest_ms(heard: Any) -> float:
    """Return when a worker was heard of last: for a worker that has just been, the time; 0 where none was."""
    return max((at for _, at in heard), default=0.0)
