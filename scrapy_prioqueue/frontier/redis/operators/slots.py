"""Lists slots of a frontier for operators: the first ones in some order, whatever their number."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from heapq import nlargest, nsmallest
from itertools import chain
from typing import Any

from scrapy_prioqueue.frontier.redis.keys import Keys
from scrapy_prioqueue.frontier.redis.link import Command, Link
from scrapy_prioqueue.frontier.redis.operators.findings import SlotFound, SlotsFound, Sorting
from scrapy_prioqueue.frontier.redis.operators.lanes import SLOTS_PER_CALL, Lanes, lane_of
from scrapy_prioqueue.frontier.redis.operators.limits import LimitReader
from scrapy_prioqueue.frontier.redis.operators.requests import Requests
from scrapy_prioqueue.frontier.redis.wire import decoded, encoded, pieces

DEPTHS_PER_CALL = 2000

LOOK_LIMIT = 20_000
"""With more slots not all are read, unless the order requires it."""

WAITING_LIMIT = 2000
"""Maximum number of waiting slots that are read if there are many slots: the first to open."""

BUCKET_MS = 10_000

PACE_BUCKETS = 6
"""A minute."""

Progress = Callable[[int], object]

_KEYS: Mapping[Sorting, Callable[[SlotFound], Any]] = {
    "pending": lambda slot: -slot.pending,
    "leased": lambda slot: -(slot.leased or 0),
    "name": lambda slot: slot.name,
}


class SlotList:
    """The slots of one frontier.

    Args:
        link: to the server.
        keys: of the frontier.
        now_ms: the frontier's time.
        created_ms: when the crawl began.
    """

    def __init__(self, link: Link, keys: Keys, now_ms: int, created_ms: int) -> None:
        self._link = link
        self._keys = keys
        self._now_ms = now_ms
        self._span = pace_span(now_ms, created_ms)
        self._lanes = Lanes(link, keys)
        self._lines = self._lanes.all()

    def first(self, limit: int, sort: Sorting | None, progress: Progress | None, look_limit: int | None) -> SlotsFound:
        """Return the first slots in that order, see `Inspector.slots`; those without pending requests come last."""
        leased = Counter(stored.slot for stored in Requests(self._link, self._keys).leased())
        total = self._lanes.count()
        is_large = total > (LOOK_LIMIT if look_limit is None else look_limit)
        sort = sort or ("order" if is_large else "pending")
        names = self._names(sort, limit, leased, progress) if is_large else self._lanes.names()
        placed = sorted(self._pending(names), key=lambda pair: pair[0])
        found = [replace(slot, leased=leased.get(slot.name, 0)) for _, slot in placed]
        idle = self._without_queue(leased.keys() - {slot.name for slot in found})
        found += [SlotFound(name, 0, leased[name]) for name in idle]
        if sort != "order":
            found.sort(key=_KEYS[sort])
        return SlotsFound(total + len(idle), self._detailed(found[:limit]), sort)

    def _names(
        self, sort: Sorting, limit: int, leased: Mapping[str, int], progress: Progress | None
    ) -> Iterable[bytes]:
        """Return slots that include the first ones in that order, reading as few others as possible."""
        if sort == "name":
            return nsmallest(limit, self._lanes.names(), key=decoded)
        if sort == "pending":
            return (name for _, name in nlargest(limit, self._depths(progress)))
        first = self._lanes.first(limit, WAITING_LIMIT)
        if sort == "order":
            return first
        most = nlargest(limit + SLOTS_PER_CALL, leased, key=lambda name: leased[name])
        return dict.fromkeys(chain((encoded(name) for name in most), first))

    def _depths(self, progress: Progress | None) -> Iterator[tuple[int, bytes]]:
        done = 0
        for part in pieces(self._lanes.names(), DEPTHS_PER_CALL):
            depths = self._link.pipe(*(("ZCARD", self._keys.queue(name)) for name in part))
            yield from zip(depths, part, strict=True)
            done += len(part)
            if progress is not None:
                progress(done)

    def _without_queue(self, names: Iterable[str]) -> Sequence[str]:
        found = []
        for part in pieces(names, SLOTS_PER_CALL):
            queues = (self._keys.queue(encoded(name)) for name in part)
            counts = self._link.pipe(*(("EXISTS", queue) for queue in queues))
            found += [name for name, count in zip(part, counts, strict=True) if not count]
        return sorted(found)

    def _pending(self, names: Iterable[bytes]) -> Iterator[tuple[tuple[float, bytes], SlotFound]]:
        """Yield ((rank, turn), slot) for each of these slots that has a queue."""
        for part in pieces(names, SLOTS_PER_CALL):
            queues = [self._keys.queue(name) for name in part]
            found = self._link.pipe(
                *(("ZCARD", queue) for queue in queues), *(("ZRANGE", queue, 0, 0, "WITHSCORES") for queue in queues)
            )
            depths, heads = found[: len(part)], found[len(part) :]
            ranks = [int(head[0][1]) if head else None for head in heads]
            positions = [lane_of(self._lines, rank or 0).position(name) for name, rank in zip(part, ranks, strict=True)]
            (turns,) = self._link.pipe(("HMGET", self._keys.of("turns"), *positions))
            for name, depth, rank, turn in zip(part, depths, ranks, turns, strict=True):
                if rank is not None:
                    yield (rank, turn or b""), SlotFound(decoded(name), depth, rank=rank)

    def _detailed(self, slots: Sequence[SlotFound]) -> Sequence[SlotFound]:
        names, now_ms = [slot.name for slot in slots], self._now_ms
        rates = _rates(self._link, self._keys, names, *self._span)
        clocks = LimitReader(self._link, self._keys).of(names)
        return [
            replace(
                slot,
                done_per_s=rate,
                limit=clock.limit,
                is_full=clock.is_full,
                waiting_until_ms=int(clock.opens_ms) if clock.opens_ms > now_ms else 0,
                closed_until_ms=clock.closed_until_ms if clock.closed_until_ms > now_ms else 0,
            )
            for slot, rate, clock in zip(slots, rates, clocks, strict=True)
        ]


def pace_span(now_ms: int, created_ms: int) -> tuple[range, float]:
    """Return the last full buckets, up to a minute but not before the crawl began, and their length in seconds.

    If the crawl is younger than one full bucket, return the current one and the time since it began.
    """
    current = now_ms // BUCKET_MS
    first = max(current - PACE_BUCKETS, created_ms // BUCKET_MS)
    seconds = (current * BUCKET_MS - max(first * BUCKET_MS, created_ms)) / 1000
    if seconds >= 1:
        return range(first, current), seconds
    return range(current, current + 1), max(1.0, (now_ms - max(current * BUCKET_MS, created_ms)) / 1000)


def _rates(link: Link, keys: Keys, names: Sequence[str], span: range, seconds: float) -> list[float]:
    """Return for each slot the number of requests done per second in these buckets."""
    buckets = [keys.of(f"served:{number}") for number in span]
    rates: list[float] = []
    for part in pieces(map(encoded, names), SLOTS_PER_CALL):
        commands: list[Command] = [("HMGET", bucket, *part) for bucket in buckets]
        counts = link.pipe(*commands)
        totals = [sum(int(count or 0) for count in column) for column in zip(*counts, strict=True)]
        rates += [total / seconds for total in totals]
    return rates
