"""A crawl of scrapy-redis: its queue, a sorted set or a list, and the set of its fingerprints."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from scrapy_prioqueue.frontier.redis.link import Link
from scrapy_prioqueue.moving.serialized import OF_SCRAPY_REDIS
from scrapy_prioqueue.moving.source import Source, SourceError, SourceRequest

_PER_TRIP = 500


class ScrapyRedisCrawl(Source):
    """The requests and fingerprints of scrapy-redis under two keys.

    Args:
        link: to its server.
        queue_key: of the requests.
        seen_key: of the fingerprints.
        order: in which a list is served, "fifo" or "lifo"; None if unknown.
    """

    formats = OF_SCRAPY_REDIS

    def __init__(self, link: Link, queue_key: str, seen_key: str, *, order: str | None) -> None:
        self._link = link
        self._queue_key = queue_key
        self._seen_key = self.where = seen_key
        self._order = order
        self._queue_type, seen_type = (kind.decode() for kind in link.pipe(("TYPE", queue_key), ("TYPE", seen_key)))
        self._refuse_type(queue_key, self._queue_type, "zset", "list")
        self._refuse_type(seen_key, seen_type, "set")
        if self._queue_type == "list" and order is None:
            raise SourceError(
                f"{queue_key} is a list: --order says how it is served, fifo or lifo, unless SCHEDULER_QUEUE_CLASS is"
                " FifoQueue or LifoQueue of scrapy-redis"
            )
        if (self._queue_type, seen_type) == ("none", "none"):
            raise SourceError(
                f"there is neither {queue_key} nor {seen_key} at {link.address}: name the server of scrapy-redis with"
                " --source-url, and its keys with --queue-key and --dupefilter-key. scrapy-redis deletes both at the"
                " end of a crawl unless SCHEDULER_PERSIST is true"
            )

    def _refuse_type(self, key: str, found: str, *wanted: str) -> None:
        if found not in (*wanted, "none"):
            raise SourceError(
                f"{key} is a {found}, but scrapy-redis stores a {' or a '.join(wanted)} there: check its name"
            )

    def count(self) -> int:
        command = {"zset": "ZCARD", "list": "LLEN"}.get(self._queue_type)
        return int(self._link.pipe((command, self._queue_key))[0]) if command else 0

    def requests(self) -> Iterator[SourceRequest]:
        count = self.count()
        for first in range(0, count, _PER_TRIP):
            for index, data in enumerate(self._piece(first, min(first + _PER_TRIP, count) - 1), first):
                yield SourceRequest(f"{self._queue_key}, request {index}", data)

    def _piece(self, first: int, last: int) -> list[bytes]:
        """Return requests by their positions, from 0 for the one that is served first."""
        if self._queue_type == "zset":
            return list(self._link.pipe(("ZRANGE", self._queue_key, first, last))[0])
        if self._order == "lifo":
            return list(self._link.pipe(("LRANGE", self._queue_key, first, last))[0])
        return list(reversed(self._link.pipe(("LRANGE", self._queue_key, -1 - last, -1 - first))[0]))

    def seen_count(self) -> int:
        return int(self._link.pipe(("SCARD", self._seen_key))[0])

    def fingerprints(self) -> Iterator[bytes]:
        cursor = None
        while cursor != 0:
            ((cursor, found),) = self._link.pipe(("SSCAN", self._seen_key, cursor or 0, "COUNT", _PER_TRIP))
            cursor = int(cursor)
            for member in found:
                try:
                    yield bytes.fromhex(member.decode())
                except ValueError:
                    raise SourceError(
                        f"{self._seen_key} has the member {member!r}, which is not a fingerprint of scrapy-redis"
                    ) from None

    def known(self, fingerprints: Collection[bytes]) -> int:
        return sum(self._link.pipe(*(("SISMEMBER", self._seen_key, each.hex()) for each in fingerprints)))
