"""Items by the thousand, cut into script calls and these into round trips; nothing here knows what is done to them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from scrapy_prioqueue.frontier.redis.scripts import Argument

ITEMS_PER_CALL = 50
"""A call of so many takes the server some milliseconds."""

CALLS_PER_TRIP = 20
"""At most: a server makes the short ones of a trip one after the other, and all others wait so long."""

BYTES_PER_TRIP = 2**20
"""About: a trip that has become so large is over."""


def trips(items: Iterable[Sequence[Argument]]) -> Iterator[Sequence[Sequence[Argument]]]:
    """Yield the calls of one round trip after the other, each call as the arguments of its items.

    Args:
        items: read as they are needed, those of the next trip when this one is over.
    """
    rest, calls, size = iter(items), list[Sequence[Argument]](), 0
    while part := list(islice(rest, ITEMS_PER_CALL)):
        calls.append([argument for item in part for argument in item])
        size += sum(len(argument) for argument in calls[-1] if not isinstance(argument, int))
        if len(calls) >= CALLS_PER_TRIP or size >= BYTES_PER_TRIP:
            yield calls
            calls, size = [], 0
    if calls:
        yield calls
