"""Frontiers of any size, filled through the project's own scripts, for benchmarks of what size costs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from hashlib import sha1

from frontier import PAYLOAD
from hand import NAME, TIERS

from scrapy_prioqueue.frontier.base import Push
from scrapy_prioqueue.frontier.redis.connection import parse_version
from scrapy_prioqueue.frontier.redis.keys import Keys
from scrapy_prioqueue.frontier.redis.link import Link
from scrapy_prioqueue.frontier.redis.operators.operator import CrawlPlan, Operator, push_call
from scrapy_prioqueue.frontier.redis.scripts import Argument, scripts_for
from scrapy_prioqueue.rank import rank_of

PUSHES_PER_CALL = 500
CALLS_PER_TRIP = 8

PLAN = CrawlPlan(TIERS)


def request(number: int, slots: int) -> Push:
    """Return the request of that number: one of four tiers, eleven priorities and so many slots."""
    slot = f"www.site-{number % slots:06d}.example"
    url = f"https://{slot}/section-{number % 97}/an-ordinary-page-{number:012d}.html".encode()
    # Other steps than the slots take, so that every slot has requests of all ranks.
    rank = rank_of(number // slots % 4, number // slots % 11 - 5)
    return Push(rank, slot, PAYLOAD % url, sha1(url, usedforsecurity=False).digest())


def fill(url: str, first: int, last: int, slots: int) -> None:
    """Push the requests of these numbers; the frontier is made if there is none.

    Everything goes through the script that programs use which are no workers, fingerprints included: what comes out is
    a frontier as a crawl would have made it. Only the client is quicker than usual: it builds the commands itself.
    """
    link = Link(url, timeout_s=60)
    try:
        Operator(link, NAME).push([request(first, slots)], PLAN)
        script = scripts_for(parse_version(str(link.client.info("server")["redis_version"])), ("push",))["push"]
        send(link, _calls(script.digest, first + 1, last, slots))
    finally:
        link.close()


def _calls(digest: str, first: int, last: int, slots: int) -> Iterator[bytes]:
    for at in range(first, last, PUSHES_PER_CALL):
        pushes = [request(number, slots) for number in range(at, min(at + PUSHES_PER_CALL, last))]
        yield packed(("EVALSHA", digest, 1, Keys(NAME).state, *push_call(pushes)))


def packed(arguments: Sequence[Argument]) -> bytes:
    """Return a command as it is sent."""
    parts = [b"*%d\r\n" % len(arguments)]
    for argument in arguments:
        value = argument if isinstance(argument, bytes) else str(argument).encode()
        parts.append(b"$%d\r\n%b\r\n" % (len(value), value))
    return b"".join(parts)


def send(link: Link, calls: Iterable[bytes]) -> None:
    """Send commands, each with one reply, some of them ahead of the replies of others."""
    pool = link.client.connection_pool
    connection = pool.get_connection()
    open_calls = 0
    try:
        for call in calls:
            connection.send_packed_command([call], check_health=False)  # type: ignore[no-untyped-call]
            open_calls += 1
            if open_calls > CALLS_PER_TRIP:
                connection.read_response()
                open_calls -= 1
        for _ in range(open_calls):
            connection.read_response()
    finally:
        pool.release(connection)
