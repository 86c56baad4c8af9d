"""Storage for the requests of a crawl: one interface (`base`), and one folder for each kind of storage."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from scrapy_prioqueue.frontier.base import Frontier, FrontierConfig
from scrapy_prioqueue.frontier.seeds import SeedStore


def open_frontier(
    config: FrontierConfig, url: str | None, *, timeout_s: float = 5.0, options: Mapping[str, Any] | None = None
) -> Frontier:
    """Return the frontier at a Redis URL, or an in-process one for None.

    Args:
        timeout_s: time-out of connecting, and of each answer, in seconds.
        options: further keyword arguments of `redis.asyncio.Redis`.
    """
    if url is None:
        from scrapy_prioqueue.frontier.memory import MemoryFrontier

        return MemoryFrontier(config)
    from scrapy_prioqueue.frontier.redis.connection import Connection
    from scrapy_prioqueue.frontier.redis.frontier import RedisFrontier
    from scrapy_prioqueue.frontier.redis.keys import connection_name

    name = connection_name(config.name, config.worker)
    return RedisFrontier(config, Connection(url, timeout_s=timeout_s, options=options, name=name))


def open_seeds(
    config: FrontierConfig,
    url: str,
    keys: Sequence[str],
    *,
    timeout_s: float = 5.0,
    options: Mapping[str, Any] | None = None,
) -> SeedStore:
    """Return the store of seeds with these keys of a Redis server, best first; see `open_frontier`."""
    from scrapy_prioqueue.frontier.redis.connection import Connection
    from scrapy_prioqueue.frontier.redis.keys import connection_name
    from scrapy_prioqueue.frontier.redis.seeds import RedisSeeds

    name = connection_name(config.name, config.worker)
    return RedisSeeds(
        Connection(url, timeout_s=timeout_s, options=options, name=name),
        frontier=config.name,
        worker=config.worker,
        keys=keys,
        lease_ttl_s=config.lease_ttl_s,
    )
