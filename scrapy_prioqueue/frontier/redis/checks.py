"""Warnings about a server's configuration before a crawl relies on it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from redis.exceptions import ResponseError

from scrapy_prioqueue.frontier.redis.connection import Connection
from scrapy_prioqueue.frontier.redis.memory_watch import used_part
from scrapy_prioqueue.frontier.redis.seen.offers import config_texts


async def server_warnings(connection: Connection, *, has_memory_mark: bool = False) -> Sequence[str]:
    """Return warnings about the server's memory policy and persistence, each with the possible loss and the remedy.

    Args:
        has_memory_mark: whether the crawl has a water mark of the server's memory.
    """
    warnings = []
    memory, persistence, snapshots = await connection.attempt(
        ("INFO", "memory"), ("INFO", "persistence"), ("CONFIG GET", "save")
    )
    if isinstance(memory, ResponseError):
        return [
            f"the Redis server at {connection.address} refuses INFO: this user may not use it, or the service has"
            " disabled it. So its version, memory policy and persistence are unknown; make sure that it keeps its data"
            " and has maxmemory-policy 'noeviction'"
        ]
    if has_memory_mark and used_part(memory) is None:
        warnings.append(
            f"the Redis server at {connection.address} has no maxmemory, so PRIOQUEUE_MEMORY_HIGH_WATER has no effect."
            " Set one (CONFIG SET maxmemory 2gb, and in redis.conf)"
        )
    policy = str(memory.get("maxmemory_policy", "noeviction"))
    if evicts(policy):
        warnings.append(
            f"the Redis server at {connection.address} has maxmemory-policy {policy!r}: when its memory is full it"
            " deletes keys, and with them requests and fingerprints of this crawl."
            " Set it to 'noeviction' (CONFIG SET maxmemory-policy noeviction, and in redis.conf; in the console of a"
            " managed service)"
        )
    if _keeps_nothing(persistence, snapshots):
        warnings.append(
            f"the Redis server at {connection.address} stores nothing on disk (appendonly no, save ''): if it stops,"
            " the whole frontier is lost. Set 'appendonly yes' (CONFIG SET appendonly yes, and in redis.conf)"
        )
    return warnings


def evicts(policy: str) -> bool:
    """Return whether a full server with this maxmemory-policy deletes keys without an expiry, such as a frontier's."""
    return policy != "noeviction" and not policy.startswith("volatile-")


def _keeps_nothing(persistence: Any, snapshots: Any) -> bool:
    # Hosted servers forbid CONFIG, or hide a part of it and of INFO. Of what is unknown there is nothing to warn of.
    if isinstance(persistence, ResponseError) or isinstance(snapshots, ResponseError):
        return False
    save = config_texts(snapshots).get("save")
    return not int(persistence.get("aof_enabled", 1)) and save is not None and not save.strip()
