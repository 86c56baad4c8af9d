"""Clears a frontier from a program that is not a worker."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from scrapy_prioqueue.frontier.redis.clearing import FIELDS, Clearing
from scrapy_prioqueue.frontier.redis.keys import Keys
from scrapy_prioqueue.frontier.redis.link import Link
from scrapy_prioqueue.frontier.redis.operators.calls import ScriptCalls

Progress = Callable[[int], object]
"""Called now and then with the number of items done, such as keys dropped or scanned."""


def scan(link: Link, keys: Keys, progress: Progress | None = None) -> Iterator[Sequence[bytes]]:
    """Yield the keys of a frontier, some at a time; this scans the whole server."""
    count = 0
    for found in link.scan(keys.pattern()):
        yield found
        count += len(found)
        if progress is not None:
            progress(count)


def clear(
    link: Link, calls: ScriptCalls, keys: Keys, client: str, scope: str, progress: Progress | None = None
) -> bool:
    """Drop the keys of a scope; return False if another client has taken the clearing over.

    Args:
        client: id of this program; the server has given it the frontier for clearing.
        scope: see `Keys.is_cleared_by`.
    """
    (fields,) = link.pipe(("HMGET", keys.state, *FIELDS))
    clearing = Clearing(keys, client, scope, fields)
    for found in scan(link, keys, progress) if clearing.must_scan else ():
        if not calls.run([clearing.found(found)])[0][0]:
            return False
    are_gone = False
    while not are_gone:
        replies = calls.run(clearing.queues())
        if not replies[-1][0]:
            return False
        are_gone = clearing.are_gone(replies)
        if progress is not None:
            progress(clearing.dropped)
    for trip in clearing.trips():
        if not all(is_clearing for is_clearing, _ in calls.run(trip)):
            return False
        if progress is not None:
            progress(clearing.dropped + clearing.done)
    return True
