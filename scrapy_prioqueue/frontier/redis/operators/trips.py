"""Items by the thousand, cut into script calls and these into round trips; nothing here knows what is done to them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from scrapy_prioqueue.frontier.redis.scripts import Argument

ITEMS_PER_CALL = 50
"""A call of so many takes the server some milliseconds."""

MOST_CALLS_PER_TRIP = 20

S_PER_CALL = 0.02
"""A round trip may hold a call for each time that it takes so long: workers have the server for most of the time."""

BYTES_PER_TRIP = 2**20
"""About: a trip that has become so large is over."""


def calls_per_trip(round_trip_s: float) -> int:
    """Return how many calls go into one round trip: one, unless the server is far away.

    A server makes the calls of a trip one after the other, and all others wait so long.
    """
    return max(1, min(MOST_CALLS_PER_TRIP, int(round_trip_s / S_PER_CALL)))


def trips(items: Iterable[Sequence[Argument]], calls_at_most: int) -> Iterator[Sequence[Sequence[Argument]]]:
    """Yield the calls of one round trip after the other, each call as the arguments of its items.

    Args:
        items: read as they are needed, those of the next trip when this one is over.
        calls_at_most: of a trip.
    """
    rest, calls, size = iter(items), list[Sequence[Argument]](), 0
    while part := list(islice(rest, ITEMS_PER_CALL)):
        calls.append([argument for item in part for argument in item])
        size += sum(len(argument) for argument in calls[-1] if not isinstance(argument, int))
        if len(calls) >= calls_at_most or size >= BYTES_PER_TRIP:
            yield calls
            calls, size = [], 0
    if calls:
        yield calls
