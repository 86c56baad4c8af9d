"""Requests that lost workers had kept to themselves: the first worker that finds the record reads and deletes it."""

from __future__ import annotations

from collections.abc import Mapping

from scrapy_prioqueue.frontier.kept import Kept, read_kept
from scrapy_prioqueue.frontier.redis.clock import newest_ms
from scrapy_prioqueue.frontier.redis.connection import Connection
from scrapy_prioqueue.frontier.redis.keys import Keys
from scrapy_prioqueue.frontier.redis.wire import decoded


async def take_lost(connection: Connection, keys: Keys, ttl_ms: int, replaced: str | None) -> Mapping[str, Kept]:
    """Return what workers had kept that were not heard of for half a lease's time to live, each once.

    The server must have just heard of this worker.

    Args:
        replaced: worker whose earlier process is lost, even if it was heard of lately.
    """
    (found,) = await connection.pipe(("HGETALL", keys.of("kept")))
    if not found:
        return {}
    names = list(found)
    heard, newest = await connection.pipe(
        ("ZMSCORE", keys.workers, *names), ("ZRANGE", keys.workers, -1, -1, "WITHSCORES")
    )
    now_ms = newest_ms(newest)
    lost = {}
    for name, at in zip(names, heard, strict=True):
        worker = decoded(name)
        is_lost = at is None or at < now_ms - ttl_ms / 2 or worker == replaced
        if is_lost and await connection.pipe(("HDEL", keys.of("kept"), name)) == [1]:
            kept = read_kept(found[name])
            if kept.requests:
                lost[worker] = kept
    return lost
