"""Identity of the server behind a connection, read when it connects, so that a restart or a failover is noticed."""

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
from scrapy_prioqueue.frontier.redis.troubles import is_not_offered, refuse_sentinel

VALKEY = "Valkey"

LIMIT_PARAMETER = "proto-max-bulk-len"


class ServerChanged(FrontierUnavailable):
    """Another server answers, or the same one after a restart: it may have lost confirmed writes.

    Raised before anything is sent, once for every change.
    """


@dataclass(slots=True)
class Server:
    """Data of the server at the other end of one connection.

    Args:
        run_id: new at every start; empty if unknown.
        version: as text, None if unknown.
        argument_limit: bytes of the largest argument of a command that it accepts, as far as is known.
        in_cluster: whether it is a node of a cluster, as far as is known.
        is_known: the connection was used for an exchange, or the change of server was raised on it.
    """

    run_id: str = ""
    version: str | None = None
    argument_limit: int = sys.maxsize
    in_cluster: bool = False
    is_known: bool = False


class Servers:
    """The servers of all connections, and the server of the latest exchange.

    Args:
        address: the server's URL without its password.
        prepare: a function of the user's that sets up a new connection instead of redis-py (``redis_connect_func``).
    """

    def __init__(self, address: str, prepare: Callable[[AbstractConnection], Any] | None = None) -> None:
        self._address = address
        self.latest: str | None = None
        self.argument_limit = sys.maxsize
        self._prepare = prepare
        self.connection_name = ""
        """Name of each new connection on the server, empty for none."""
        self._servers: WeakKeyDictionary[AbstractConnection, Server] = WeakKeyDictionary()

    async def greet(self, connection: AbstractConnection) -> None:
        """Set up a new connection and read the server's identity; redis-py calls this after connecting."""
        self._servers.pop(connection, None)
        try:
            await self._set_up(connection)
        except ResponseError as error:
            if is_not_offered(error):
                # A Sentinel refuses SELECT.
                await _ask(connection, "")
            raise
        server = self._servers[connection] = await _ask(connection, self.connection_name)
        self.argument_limit = server.argument_limit

    async def _set_up(self, connection: AbstractConnection) -> None:
        if self._prepare is None:
            await connection.on_connect()
        elif asyncio.iscoroutinefunction(self._prepare):
            await self._prepare(connection)
        else:
            self._prepare(connection)

    def of(self, connection: AbstractConnection) -> Server:
        """Return the server of a connection."""
        return self._servers[connection]

    def check(self, connection: AbstractConnection) -> None:
        """Accept the server of the connection that is about to be used.

        A server with an unknown id counts as another one on each new connection.

        Raises:
            ServerChanged: it isn't the server of the last exchange.
        """
        server = self._servers[connection]
        is_first = self.latest is None
        is_same = server.run_id == self.latest if server.run_id else server.is_known
        self.latest, server.is_known = server.run_id, True
        if not (is_first or is_same):
            why = "it was restarted, or another server answers in its place"
            raise ServerChanged(self._address, why, was_sent=False)


def version_text(info: Mapping[str, Any]) -> str:
    """Return the version of a server for messages: for Valkey its own, not that of the compatible Redis."""
    if "valkey_version" in info:
        return f"{VALKEY} {info['valkey_version']}"
    return str(info.get("redis_version", ""))


def is_node_of_cluster(info: Mapping[str, Any]) -> bool:
    """Return whether a server is a node of a cluster, from its `INFO`."""
    # Valkey says server_mode.
    return "cluster" in (info.get("redis_mode"), info.get("server_mode"))


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
    refuse_sentinel(fields)
    in_cluster = is_node_of_cluster(fields)
    return Server(fields.get("run_id", ""), fields.get("redis_version"), argument_limit, in_cluster)


async def _answer(connection: AbstractConnection) -> Any:
    """Return a reply, None if the user may not use the command, or a proxy doesn't know it."""
    try:
        return await connection.read_response()
    except ResponseError:
        return None
