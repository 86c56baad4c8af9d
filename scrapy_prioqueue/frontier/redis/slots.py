"""All slots of a frontier, as operators are shown them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice

from scrapy_prioqueue.frontier.redis.findings import SlotFound
from scrapy_prioqueue.frontier.redis.keys import Keys
from scrapy_prioqueue.frontier.redis.lanes import Lane, Lanes
from scrapy_prioqueue.frontier.redis.limits import Limits
from scrapy_prioqueue.frontier.redis.link import Command, Link
from scrapy_prioqueue.frontier.redis.requests import Requests, by_slot, slot_text
from scrapy_prioqueue.rank import tier_of

SLOTS_PER_CALL = 500

BUCKET_MS = 10_000

PACE_BUCKETS = 6
"""The pace is that of the last minute."""


def found_slots(link: Link, keys: Keys, now_ms: int) -> list[SlotFound]:
    """Return all slots in which something is pending or leased, in the order to be served; those without pending
    requests come last."""
    leased = dict(by_slot(Requests(link, keys).leased()))
    placed = sorted(_pending(link, keys), key=lambda pair: pair[0])
    found = [replace(slot, leased=leased.pop(slot.name, 0)) for _, slot in placed]
    found += [SlotFound(name, 0, count) for name, count in leased.items()]
    names = [slot.name for slot in found]
    rates, clocks = _rates(link, keys, names, now_ms), Limits(link, keys).of(names)
    return [
        replace(
            slot,
            done_per_s=rate,
            limit=clock.limit,
            is_full=clock.is_full,
            waiting_until_ms=int(clock.opens_ms) if clock.opens_ms > now_ms else 0,
            closed_until_ms=clock.closed_until_ms if clock.closed_until_ms > now_ms else 0,
        )
        for slot, rate, clock in zip(found, rates, clocks, strict=True)
    ]


def _pending(link: Link, keys: Keys) -> Iterator[tuple[tuple[float, bytes], SlotFound]]:
    """Yield rank and turn of each slot with a queue, and the slot."""
    lanes = Lanes(link, keys)
    lines, names = lanes.all(), lanes.names()
    while part := list(islice(names, SLOTS_PER_CALL)):
        queues = [keys.queue(name) for name in part]
        found = link.pipe(
            *(("ZCARD", queue) for queue in queues), *(("ZRANGE", queue, 0, 0, "WITHSCORES") for queue in queues)
        )
        depths, heads = found[: len(part)], found[len(part) :]
        places = [_lane_of(lines, head).place(name) for name, head in zip(part, heads, strict=True)]
        (turns,) = link.pipe(("HMGET", keys.of("turns"), *places))
        for name, depth, head, turn in zip(part, depths, heads, turns, strict=True):
            if head:
                rank = head[0][1]
                yield (rank, turn or b""), SlotFound(slot_text(name), depth, rank=int(rank))


def _lane_of(lines: Sequence[Lane], head: Sequence[tuple[bytes, float]]) -> Lane:
    if lines[0].tier is None or not head:
        return lines[0]
    return lines[min(max(tier_of(int(head[0][1])), 0), len(lines) - 1)]


def _rates(link: Link, keys: Keys, names: Sequence[str], now_ms: int) -> list[float]:
    """Return how many requests of each slot were done by second, in the last minute but these ten seconds."""
    current = now_ms // BUCKET_MS
    buckets = [keys.of(f"served:{number}") for number in range(current - PACE_BUCKETS, current)]
    rates: list[float] = []
    for first in range(0, len(names), SLOTS_PER_CALL):
        part = [name.encode("utf-8", "surrogatepass") for name in names[first : first + SLOTS_PER_CALL]]
        commands: list[Command] = [("HMGET", bucket, *part) for bucket in buckets]
        counts = link.pipe(*commands)
        totals = [sum(int(count or 0) for count in column) for column in zip(*counts, strict=True)]
        rates += [total * 1000 / BUCKET_MS / PACE_BUCKETS for total in totals]
    return rates
