"""Commands in one write on a connection that nobody else uses meanwhile; nothing here knows what they are for."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from inspect import Parameter, signature
from typing import Any

from hiredis import pack_command
from redis.asyncio import ConnectionPool
from redis.asyncio.connection import AbstractConnection
from redis.exceptions import ResponseError

from scrapy_prioqueue.frontier.redis.patience import Patience
from scrapy_prioqueue.frontier.redis.scripts import Argument
from scrapy_prioqueue.frontier.redis.troubles import is_too_large

_NAME = signature(ConnectionPool.get_connection).parameters["command_name"]
# redis-py up to 5.2 wants the name of a command, which it doesn't use; later releases warn of one.
_UNUSED_NAME = ("EVALSHA",) if _NAME.default is Parameter.empty else ()


@asynccontextmanager
async def own_connection(pool: ConnectionPool, connect_s: float | None) -> AsyncIterator[AbstractConnection]:
    """Take a connection out of the pool, connected and with nothing left to read, and give it back.

    Args:
        connect_s: seconds that connecting may take, None for no limit.
    """
    async with Patience(connect_s):
        connection: AbstractConnection = await pool.get_connection(*_UNUSED_NAME)  # type: ignore[no-untyped-call]
    try:
        async with Patience(connect_s):
            await connection.check_health()  # type: ignore[no-untyped-call]
        yield connection
    finally:
        await pool.release(connection)


async def round_trip(connection: AbstractConnection, commands: Sequence[Sequence[Argument]]) -> list[Any]:
    """Write all commands at once, then read their replies; an error reply stands in its place as an exception.

    Whatever else is raised, the connection is closed: a late reply must not pass for the answer to another command.
    """
    replies: list[Any] = []
    try:
        await connection.send_packed_command(packed(commands), check_health=False)
        for _ in commands:
            replies.append(await _reply(connection))
    except BaseException:
        await connection.disconnect(nowait=True)
        if replies and is_too_large(replies[-1]):
            # With these words a server closes the connection.
            raise replies[-1] from None
        raise
    return replies


def packed(commands: Iterable[Sequence[Argument]]) -> bytes:
    """Return commands in Redis's protocol.

    `pack_commands()` of redis-py's asyncio connections is Python that copies all it has with each argument.
    """
    return b"".join([pack_command(tuple(command)) for command in commands])  # type: ignore[arg-type]


async def _reply(connection: AbstractConnection) -> Any:
    try:
        return await connection.read_response()
    except ResponseError as error:
        return error
