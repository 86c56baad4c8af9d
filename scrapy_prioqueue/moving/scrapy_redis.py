"""A crawl of scrapy-redis: its queue, a sorted set or a list, and the set of its fingerprints."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from scrapy_prioqueue.frontier.redis.link import Link
from scrapy_prioqueue.frontier.redis.operators.frontiers import NAMES_SEARCH_S
from scrapy_prioqueue.hints import nearest
from scrapy_prioqueue.moving.serialized import OF_SCRAPY_REDIS
from scrapy_prioqueue.moving.source import Source, SourceError, SourceRequest

_PER_TRIP = 500
_MOST_KEYS = 10_000
"""About how many names of keys are compared with a missing one; that takes up to a second."""


class ScrapyRedisCrawl(Source):
    """The requests and fingerprints of scrapy-redis under two keys.

    Args:
        order: in which a list is served, "fifo" or "lifo"; None if unknown.
        without_requests: the queue is not read; its key is missing if nothing is pending.
    """

    formats = OF_SCRAPY_REDIS

    def __init__(
        self,
        link: Link,
        queue_key: str,
        seen_key: str,
        *,
        order: str | None,
        without_requests: bool = False,
        without_fingerprints: bool = False,
    ) -> None:
        self._link = link
        self._queue_key = queue_key
        self._seen_key = self.where = seen_key
        self._order = order
        self._queue, self._seen = link.at(queue_key), link.at(seen_key)
        (queue_type,), (seen_type,) = _types(self._queue, queue_key), _types(self._seen, seen_key)
        self._queue_type = "none" if without_requests else queue_type
        self._has_seen = not without_fingerprints
        self._refuse_type(queue_key, queue_type, "zset", "list")
        self._refuse_type(seen_key, seen_type, "set")
        self._refuse_missing(
            [queue_key] if queue_type == "none" and not without_requests else [],
            [seen_key] if seen_type == "none" and not without_fingerprints else [],
        )
        if self._queue_type == "list" and order is None:
            raise SourceError(
                f"{queue_key} is a list: --order says how it is served, fifo or lifo, unless SCHEDULER_QUEUE_CLASS is"
                " FifoQueue or LifoQueue of scrapy-redis"
            )

    def _refuse_missing(self, queue: Sequence[str], seen: Sequence[str]) -> None:
        if not queue and not seen:
            return
        missing, keys = [*queue, *seen], self._keys()
        alike = f"; there are: {nearest(missing[0], keys)}" if keys else ""
        ways = ["--without-requests if nothing was pending (Redis deletes an empty queue)"] if queue else []
        ways += ["--without-fingerprints to fetch pages again"] if seen else []
        raise SourceError(
            f"there is no key {' and no key '.join(missing)} at {self._link.address}{alike}. Name the server of"
            " scrapy-redis with --source-url and its keys with --queue-key and --dupefilter-key, or use"
            f" {' and '.join(ways)}. scrapy-redis deletes both keys at the end of a crawl unless SCHEDULER_PERSIST is"
            " true"
        )

    def _keys(self) -> Sequence[str]:
        """Return the names of keys that may be those of scrapy-redis; only a part, if the server has very many."""
        names = list[str]()
        if self._link.in_cluster:
            # Each key may be on another node.
            return names
        for found in self._link.scan(within_s=NAMES_SEARCH_S):
            others = [key.decode(errors="replace") for key in found if not key.startswith(b"{prioqueue:")]
            kinds = zip(others, _types(self._link, *others), strict=True)
            names += [name for name, kind in kinds if kind in ("zset", "list", "set")]
            if len(names) > _MOST_KEYS:
                break
        return names

    def _refuse_type(self, key: str, found: str, *wanted: str) -> None:
        if found not in (*wanted, "none"):
            raise SourceError(
                f"{key} is a {found}, but scrapy-redis stores a {' or a '.join(wanted)} there: check its name"
            )

    def count(self) -> int:
        command = {"zset": "ZCARD", "list": "LLEN"}.get(self._queue_type)
        return int(self._queue.pipe((command, self._queue_key))[0]) if command else 0

    def requests(self) -> Iterator[SourceRequest]:
        count = self.count()
        for first in range(0, count, _PER_TRIP):
            for index, data in enumerate(self._piece(first, min(first + _PER_TRIP, count) - 1), first):
                yield SourceRequest(f"{self._queue_key}, request {index}", data)

    def _piece(self, first: int, last: int) -> list[bytes]:
        """Return requests by their positions, from 0 for the one that is served first."""
        if self._queue_type == "zset":
            return list(self._queue.pipe(("ZRANGE", self._queue_key, first, last))[0])
        if self._order == "lifo":
            return list(self._queue.pipe(("LRANGE", self._queue_key, first, last))[0])
        return list(reversed(self._queue.pipe(("LRANGE", self._queue_key, -1 - last, -1 - first))[0]))

    def seen_count(self) -> int:
        return int(self._seen.pipe(("SCARD", self._seen_key))[0]) if self._has_seen else 0

    def fingerprints(self) -> Iterator[bytes]:
        for found in self._seen.pages("SSCAN", self._seen_key, _PER_TRIP) if self._has_seen else ():
            for member in found:
                try:
                    yield bytes.fromhex(member.decode())
                except ValueError:
                    raise SourceError(
                        f"{self._seen_key} has the member {member!r}, which is not a fingerprint of scrapy-redis"
                    ) from None

    def known(self, fingerprints: Sequence[bytes]) -> Sequence[bool]:
        found = self._seen.pipe(*(("SISMEMBER", self._seen_key, each.hex()) for each in fingerprints))
        return list(map(bool, found))


def _types(link: Link, *keys: str) -> list[str]:
    return [kind.decode() for kind in link.pipe(*(("TYPE", key) for key in keys))]
