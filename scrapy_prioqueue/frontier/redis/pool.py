"""A pool of asyncio connections that prefers those that are open."""

from __future__ import annotations

import asyncio
from typing import Any

from redis.asyncio import ConnectionPool
from redis.asyncio.connection import AbstractConnection
from redis.exceptions import RedisError

FAILURES = (RedisError, OSError, asyncio.TimeoutError)
"""Errors of an unusable connection or server."""


class OpenFirstPool(ConnectionPool):
    """Gives an open connection, as long as there is one, rather than the one that was put back last.

    That one may have been lost, as the bell's always is. While nobody can connect, such as without Sentinels, it would
    be given again and again, although another one is open.
    """

    def get_available_connection(self) -> AbstractConnection:
        """Take the connection out of the pool that is open and was put back last; else one that isn't open."""
        self._available_connections.sort(key=_is_open)
        found: AbstractConnection = super().get_available_connection()  # type: ignore[no-untyped-call]
        return found

    async def get_connection(self, *names: Any, **options: Any) -> AbstractConnection:
        """As redis-py's, but try each connection that seems to be open, since the server may have closed some."""
        tries_left = sum(map(_is_open, self._available_connections))
        while True:
            tries_left -= 1
            try:
                found: AbstractConnection = await super().get_connection(*names, **options)  # type: ignore[no-untyped-call]
            except FAILURES:
                if tries_left <= 0:
                    raise
            else:
                return found


def _is_open(connection: AbstractConnection) -> bool:
    return bool(connection.is_connected)
