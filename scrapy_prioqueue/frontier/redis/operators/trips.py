"""Splits many items into script calls, and these into round trips."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from scrapy_prioqueue.frontier.redis.scripts import Argument
from scrapy_prioqueue.frontier.redis.wire import pieces

ITEMS_PER_CALL = 50
"""A call with this many items takes the server some milliseconds."""

MOST_CALLS_PER_TRIP = 20

S_PER_CALL = 0.02
"""A round trip may have one call for each time that it takes this long, so workers have the server most of the time."""

BYTES_PER_TRIP = 2**20
"""Approximate size of a round trip after which no call is added."""


def calls_per_trip(round_trip_s: float) -> int:
    """Return the number of calls in one round trip: one, unless the server is far away.

    The server executes the calls of a round trip without a break, so all other clients wait for them.
    """
    return max(1, min(MOST_CALLS_PER_TRIP, int(round_trip_s / S_PER_CALL)))


def trips(items: Iterable[Sequence[Argument]], calls_at_most: int) -> Iterator[Sequence[Sequence[Argument]]]:
    """Yield the calls of one round trip after the other, each call as the arguments of its items.

    Args:
        items: read as needed, those of the next round trip when this one has ended.
        calls_at_most: maximum number of calls in a round trip.
    """
    calls, size = list[Sequence[Argument]](), 0
    for part in pieces(items, ITEMS_PER_CALL):
        calls.append([argument for item in part for argument in item])
        size += sum(len(argument) for argument in calls[-1] if not isinstance(argument, int))
        if len(calls) >= calls_at_most or size >= BYTES_PER_TRIP:
            yield calls
            calls, size = [], 0
    if calls:
        yield calls
