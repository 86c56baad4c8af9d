"""How many requests go before one: counted from ranks and turns, without reading the requests."""

from __future__ import annotations

from scrapy_prioqueue.frontier.redis.findings import Stored
from scrapy_prioqueue.frontier.redis.keys import Keys
from scrapy_prioqueue.frontier.redis.link import Link
from scrapy_prioqueue.frontier.redis.wire import ID

SLOT_LIMIT = 5000
"""Of how many slots the requests are counted; with more, the rest is estimated from these."""

SLOTS_PER_CALL = 500


def ahead_of(link: Link, keys: Keys, stored: Stored) -> tuple[int, bool]:
    """Return how many pending requests would be served before this pending one, and whether that is not an estimate.

    Slots take turns among equal ranks, so of another slot's equals only as many count as this slot has before it.
    """
    own_name = stored.slot.encode("utf-8", "surrogatepass")
    member = ID.pack(stored.lease_id) + bytes([stored.attempts]) + stored.payload
    own, total, ready, suspects, turn = link.pipe(
        ("ZRANK", keys.queue(own_name), member),
        ("ZCARD", keys.of("ready")),
        ("ZRANGE", keys.of("ready"), 0, SLOT_LIMIT - 1),
        ("ZCOUNT", keys.of("suspects"), "-inf", f"({stored.rank}" if stored.is_suspect else stored.rank),
        ("HGET", keys.of("turns"), own_name),
    )
    (better_here,) = link.pipe(("ZCOUNT", keys.queue(own_name), "-inf", f"({stored.rank}"))
    equals_before = 0 if own is None or stored.is_suspect else own - better_here
    others = [slot for slot in ready if slot[8:] != own_name or stored.is_suspect]
    ahead = 0
    for first in range(0, len(others), SLOTS_PER_CALL):
        part = others[first : first + SLOTS_PER_CALL]
        bounds = (("-inf", f"({stored.rank}"), (stored.rank, stored.rank))
        found = link.pipe(*(("ZCOUNT", keys.queue(slot[8:]), *bound) for slot in part for bound in bounds))
        for slot, better, equal in zip(part, found[::2], found[1::2], strict=True):
            # A suspect goes before its equals.
            turns = 0 if stored.is_suspect else equals_before + (slot[:8] < (turn or b""))
            ahead += better + min(equal, turns)
    if total > len(ready):
        ahead = round(ahead * total / len(ready))
    own_before = 0 if stored.is_suspect else better_here + equals_before
    return ahead + own_before + suspects, total <= len(ready)
