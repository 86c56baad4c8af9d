"""How a program that is no worker drops the keys of a frontier, some at a time. Everything here blocks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from scrapy_prioqueue.frontier.redis.calls import ScriptCalls
from scrapy_prioqueue.frontier.redis.keys import Keys
from scrapy_prioqueue.frontier.redis.link import Link
from scrapy_prioqueue.frontier.redis.trips import trips

Progress = Callable[[int], object]
"""Called now and then with how many keys were looked at."""


def scan(link: Link, keys: Keys, progress: Progress | None = None) -> Iterator[Sequence[bytes]]:
    """Yield the keys that a frontier has, some at a time."""
    cursor = looked_at = 0
    while True:
        ((cursor, found),) = link.pipe(("SCAN", cursor, "MATCH", keys.pattern(), "COUNT", 1000))
        yield found
        looked_at += len(found)
        if progress is not None:
            progress(looked_at)
        if not int(cursor):
            return


def clear(
    link: Link, calls: ScriptCalls, keys: Keys, client: str, scope: str, progress: Progress | None = None
) -> bool:
    """Drop what a scope names; return False if someone else has taken over.

    Args:
        client: what the program is known by, to which the frontier was given to be cleared.
        scope: see `Keys.is_cleared_by`.
    """
    for found in scan(link, keys, progress):
        for pieces in trips((key,) for key in found if keys.is_cleared_by(key, scope)):
            if not all(calls.run([("clear", keys.state, ("", client, 0, *piece)) for piece in pieces])):
                return False
    return bool(calls.run([("clear", keys.state, ("", client, 1))])[0])
