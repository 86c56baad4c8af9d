"""Reads the dead letters that a frontier of any kind keeps."""

from __future__ import annotations

from collections.abc import Sequence

from scrapy_prioqueue.frontier.base import DeadLetter, Frontier
from scrapy_prioqueue.frontier.memory import MemoryFrontier
from scrapy_prioqueue.frontier.redis.connection import Connection
from scrapy_prioqueue.frontier.redis.frontier import RedisFrontier
from scrapy_prioqueue.frontier.redis.keys import Keys
from scrapy_prioqueue.frontier.redis.wire import read_dead_letter


async def letters_of(frontier: Frontier) -> Sequence[DeadLetter]:
    """Return the dead letters of a frontier, newest first."""
    if isinstance(frontier, MemoryFrontier):
        return list(reversed(frontier.store.dead_letters.values()))
    assert isinstance(frontier, RedisFrontier)
    return await stored_letters(frontier._connection, frontier.config.name)  # noqa: SLF001


async def stored_letters(connection: Connection, name: str) -> Sequence[DeadLetter]:
    """Return the dead letters of a frontier in Redis, newest first."""
    (found,) = await connection.pipe(("HGETALL", Keys(name).dead))
    letters = [read_dead_letter(key, value) for key, value in found.items()]
    return sorted(letters, key=lambda letter: (letter.died_ms, letter.lease_id), reverse=True)
