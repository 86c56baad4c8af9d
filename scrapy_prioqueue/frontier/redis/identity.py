"""Which server a connection leads to: asked as soon as it is connected, so that a restart or a failover is noticed."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

from redis.asyncio.connection import AbstractConnection
from redis.exceptions import ResponseError

from scrapy_prioqueue.errors import FrontierUnavailable

VALKEY = "Valkey"

LIMIT_PARAMETER = "proto-max-bulk-len"


class ServerChanged(FrontierUnavailable):
    """Another server answers, or the same one after a restart: it may have forgotten what it had confirmed.

    Raised before anything is sent, once for every change.
    """


@dataclass(slots=True)
class Server:
    """What the server at the other end of one connection says of itself.

    Args:
        run_id: new at every start; empty if the server doesn't tell us.
        version: as text, None if the server doesn't tell us.
        argument_limit: bytes of the largest argument of a command that it takes, as far as it tells us.
        is_known: this connection has been used for an exchange, or its first one has been refused for the change.
    """

    run_id: str = ""
    version: str | None = None
    argument_limit: int = sys.maxsize
    is_known: bool = False


class Servers:
    """Knows the server of every connection, and which one the latest exchange was made with.

    Args:
        address: the server's URL without its password.
        prepare: a hook of the user's that sets up a new connection in place of redis-py (``redis_connect_func``).
    """

    def __init__(self, address: str, prepare: Callable[[AbstractConnection], Any] | None = None) -> None:
        self._address = address
        self.latest: str | None = None
        self.argument_limit = sys.maxsize
        self._prepare = prepare
        self.connection_name = ""
        """What each new connection is called on the server, empty for nothing."""
        self._servers: WeakKeyDictionary[AbstractConnection, Server] = WeakKeyDictionary()

    async def greet(self, connection: AbstractConnection) -> None:
        """Set up a new connection and ask the server who it is; redis-py calls this whenever it has connected."""
        self._servers.pop(connection, None)
        if self._prepare is None:
            await connection.on_connect()
        elif asyncio.iscoroutinefunction(self._prepare):
            await self._prepare(connection)
        else:
            self._prepare(connection)
        server = self._servers[connection] = await _ask(connection, self.connection_name)
        self.argument_limit = server.argument_limit

    def of(self, connection: AbstractConnection) -> Server:
        """Return what is known of a connection's server."""
        return self._servers[connection]

    def check(self, connection: AbstractConnection) -> None:
        """Accept the server of the connection that is about to be used.

        A server that doesn't tell its id may be another one on each new connection.

        Raises:
            ServerChanged: it isn't the one of the exchange before.
        """
        server = self._servers[connection]
        is_first = self.latest is None
        is_same = server.run_id == self.latest if server.run_id else server.is_known
        self.latest, server.is_known = server.run_id, True
        if not (is_first or is_same):
            why = "it was restarted, or another server answers in its place"
            raise ServerChanged(self._address, why, was_sent=False)


def version_text(info: Mapping[str, Any]) -> str:
    """Return the version of a server as people know it: of Valkey not that of the Redis that it is compatible with."""
    if "valkey_version" in info:
        return f"{VALKEY} {info['valkey_version']}"
    return str(info.get("redis_version", ""))


async def _ask(connection: AbstractConnection, name: str) -> Server:
    naming = (("CLIENT", "SETNAME", name),) if name else ()
    questions = (("INFO", "server"), ("CONFIG", "GET", LIMIT_PARAMETER), *naming)
    for question in questions:
        await connection.send_command(*question, check_health=False)
    info, limit, *_ = [await _answer(connection) for _ in questions]
    argument_limit = int(limit[1]) if isinstance(limit, list) and len(limit) == 2 else sys.maxsize
    if info is None:
        return Server(argument_limit=argument_limit)
    lines = info.decode("utf-8", "replace").splitlines() if isinstance(info, bytes) else []
    fields = dict(line.split(":", 1) for line in lines if ":" in line)
    return Server(fields.get("run_id", ""), fields.get("redis_version", "0"), argument_limit)


async def _answer(connection: AbstractConnection) -> Any:
    """Return an answer, None where the user may not use the command, or a proxy doesn't know it."""
    try:
        return await connection.read_response()
    except ResponseError:
        return None
