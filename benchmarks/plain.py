"""The data structures that a frontier is made of, with nothing around them: what size costs Redis by itself.

A sorted set per slot holds what a frontier's does, id and payload by rank, and one set the fingerprints; there are no
leases, no turns of slots and no books.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import cycle, islice

from filled import packed, request, send

from scrapy_prioqueue.frontier.base import Push
from scrapy_prioqueue.frontier.redis.link import Link
from scrapy_prioqueue.frontier.redis.scripts import Argument
from scrapy_prioqueue.frontier.redis.wire import ID

SEEN = "seen"

PER_FILLING = 500


def fill_plain(url: str, first: int, last: int, slots: int) -> None:
    """Store the requests of these numbers, with as few commands as it takes."""
    link = Link(url, timeout_s=60)
    try:
        send(link, _filling(first, last, slots))
    finally:
        link.close()


def push_plain(link: Link, first: int, last: int, slots: int, per_trip: int) -> None:
    """Store requests with two commands each, some of them per round trip."""
    for at in range(first, last, per_trip):
        commands: list[tuple[Argument, ...]] = []
        for number in range(at, min(at + per_trip, last)):
            push = request(number, slots)
            commands += (("ZADD", _queue(push.slot), *_entry(number, push)), ("SADD", SEEN, push.fingerprint or b""))
        link.pipe(*commands)


def lease_plain(link: Link, number: int, slots: int, per_trip: int) -> None:
    """Take so many requests out, the best one of each slot in turn."""
    queues = cycle(_queue(request(slot, slots).slot) for slot in range(slots))
    while number > 0:
        number -= len(link.pipe(*(("ZPOPMIN", queue) for queue in islice(queues, min(number, per_trip)))))


def _queue(slot: str) -> str:
    return f"queue:{slot}"


def _entry(number: int, push: Push) -> tuple[Argument, Argument]:
    return push.rank, ID.pack(number) + b"\0" + push.payload


def _filling(first: int, last: int, slots: int) -> Iterator[bytes]:
    for at in range(first, last, PER_FILLING):
        by_slot: dict[str, list[Argument]] = {}
        fingerprints = []
        for number in range(at, min(at + PER_FILLING, last)):
            push = request(number, slots)
            by_slot.setdefault(push.slot, []).extend(_entry(number, push))
            fingerprints.append(push.fingerprint or b"")
        yield from (packed(("ZADD", _queue(slot), *entries)) for slot, entries in by_slot.items())
        yield packed(("SADD", SEEN, *fingerprints))
