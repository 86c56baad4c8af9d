"""The connection to one Redis server: addresses, time-outs, script calls, plain commands and the bell."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from inspect import Parameter, signature
from types import TracebackType
from typing import Any

from hiredis import pack_command
from redis import exceptions
from redis.asyncio import Connection as RedisConnection
from redis.asyncio import ConnectionPool, Redis
from redis.asyncio.connection import AbstractConnection, parse_url
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import ResponseError

from scrapy_prioqueue.address import address_of, parse_address
from scrapy_prioqueue.errors import FrontierRefused, FrontierUnavailable, SettingError
from scrapy_prioqueue.frontier.redis.link import KEYS_PER_SCAN, Command, pipeline_of
from scrapy_prioqueue.frontier.redis.locating import ClusterLocator, Locator, locator_of
from scrapy_prioqueue.frontier.redis.options import always, merged, unusable
from scrapy_prioqueue.frontier.redis.pool import FAILURES, OpenFirstPool
from scrapy_prioqueue.frontier.redis.scripts import Argument, Script, has_shard_channels, scripts_for
from scrapy_prioqueue.frontier.redis.servers import ServerChanged, Servers
from scrapy_prioqueue.frontier.redis.troubles import (
    explained,
    full,
    is_displaced,
    is_forbidden,
    is_full,
    is_too_large,
    lacking_replicas,
)
from scrapy_prioqueue.frontier.redis.watch import Watch

TURNS = 10
"""Turns of the loop, at equal intervals, after the last of which the time is over."""


class Patience:
    """Cancels its body when the time is over, as `asyncio.timeout` does, but not because a callback blocked the loop.

    After a callback that has blocked for longer, the answer may have arrived without a chance to be read. So the time
    is over after a number of looks at the clock, and a late look counts as one.

    Args:
        seconds: None for no limit.

    Raises:
        asyncio.TimeoutError: instead of the cancellation, when the time is over.
    """

    def __init__(self, seconds: float | None) -> None:
        self._seconds = seconds
        self._turns_left = TURNS
        self._cancellations = 0
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[object] | None = None

    async def __aenter__(self) -> None:
        self._task = asyncio.current_task()
        self._wait()

    def _wait(self) -> None:
        if self._seconds is not None:
            self._timer = asyncio.get_running_loop().call_later(self._seconds / TURNS, self._on_turn)

    def _on_turn(self) -> None:
        self._turns_left -= 1
        if self._turns_left <= 0 and self._task is not None:
            # Repeated each time, since a client may swallow a cancellation.
            self._cancellations += 1
            self._task.cancel()
        self._wait()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if not self._cancellations:
            return
        others = self._taken_back()
        if kind is asyncio.CancelledError and not others:
            raise asyncio.TimeoutError(f"no answer within {self._seconds:g} s") from error

    def _taken_back(self) -> int:
        """Undo our cancellations and return the number of others; Python 3.10 can't count them, so 0."""
        uncancel = getattr(self._task, "uncancel", None)
        if uncancel is None:
            return 0
        left = 0
        for _ in range(self._cancellations):
            left = uncancel()
        return int(left)


_NAME = signature(ConnectionPool.get_connection).parameters["command_name"]
# redis-py up to 5.2 requires the name of a command, which it doesn't use; later releases warn about one.
_UNUSED_NAME = ("EVALSHA",) if _NAME.default is Parameter.empty else ()


@asynccontextmanager
async def own_connection(pool: ConnectionPool, connect_s: float | None) -> AsyncIterator[AbstractConnection]:
    """Take a connection out of the pool, connected and without unread replies, and put it back afterwards.

    Args:
        connect_s: time-out of connecting in seconds, None for no limit.
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
    """Write all commands at once, then read their replies; an error reply is returned as an exception in its place.

    If anything else is raised, the connection is closed, so that a late reply isn't taken for another command's.
    """
    replies: list[Any] = []
    try:
        await connection.send_packed_command(packed(commands), check_health=False)
        for _ in commands:
            replies.append(await _reply(connection))
    except BaseException:
        await connection.disconnect(nowait=True)
        if replies and is_too_large(replies[-1]):
            # The server sends this error and then closes the connection.
            raise replies[-1] from None
        raise
    return replies


def packed(commands: Iterable[Sequence[Argument]]) -> bytes:
    """Return commands in Redis's protocol.

    `pack_commands()` of redis-py's asyncio connections is written in Python and copies its buffer for each argument.
    """
    return b"".join([pack_command(tuple(command)) for command in commands])  # type: ignore[arg-type]


async def _reply(connection: AbstractConnection) -> Any:
    try:
        return await connection.read_response()
    except ResponseError as error:
        return error


OLDEST_VERSION = (6, 2)

KeyedCall = tuple[str, str, Sequence[Argument]]
"""Name of a script, state key, arguments."""

PING_S = 20.0
"""Seconds of silence after which the connection of the bell is tested."""

LOADING_SPREAD_S = 0.25
"""Random time before scripts are loaded again, since all workers of a server that was restarted miss them at once."""

MIN_CONNECTIONS = 4
"""One for exchanges, one for the bell, and spares for connections that have just been lost."""


class Connection:
    """A pool of connections to one server; created at first use, on the event loop that uses it.

    Args:
        url: one of the kinds in `address.SCHEMES`, with the database.
        timeout_s: time-out of connecting, and of each answer, in seconds.
        options: further keyword arguments of `redis.asyncio.Redis`, which override those of the URL.
        version: of the server, if another connection has read it and has loaded the scripts.
        in_cluster: whether that server is a node of a cluster.
        name: of the connections on the server, unless the options set it, or set up connections themselves.
        locator: who knows where the server is, if not those whom the URL names.
        leader: the watch of connections to the same server, which subscribe to news of failovers for these.
    """

    def __init__(
        self,
        url: str,
        *,
        timeout_s: float = 5.0,
        options: Mapping[str, Any] | None = None,
        version: tuple[int, ...] = (),
        in_cluster: bool = False,
        name: str = "",
        locator: Locator | None = None,
        leader: Watch | None = None,
    ) -> None:
        self.url = url
        self.address = address_of(url)
        self._parts = parse_address(url)
        self._timeout_s = timeout_s
        self._answer_s: float | None = timeout_s
        self._connect_s: float | None = timeout_s
        self._options = dict(options or {})
        self._name = name
        self._client: Redis | None = None
        self._is_displaced = False
        self._has_worked = False
        self._locator = locator or locator_of(self._parts, self._options, timeout_s)
        self._watch = None if self._locator is None else Watch(self._locator, leader=leader)
        self._servers = Servers(self.address, self._options.get("redis_connect_func"))
        self._scripts: dict[str, Script] = scripts_for(version, in_cluster=in_cluster) if version else {}
        self.version = version
        self.in_cluster = in_cluster or isinstance(self._locator, ClusterLocator)
        self._has_shard_channels = has_shard_channels(version, in_cluster=in_cluster)

    def twin(self) -> Connection:
        """Return another pool of connections to the same server, for another event loop."""
        return self._through(self._locator, leader=self._watch)

    def at(self, key: str) -> Connection:
        """Return connections to the node of a cluster that has a key, which are closed apart; else these."""
        if not isinstance(self._locator, ClusterLocator) or self._locator.at(key) is self._locator:
            return self
        return self._through(self._locator.at(key))

    def _through(self, locator: Locator | None, *, leader: Watch | None = None) -> Connection:
        return Connection(
            self.url,
            timeout_s=self._timeout_s,
            options=self._options,
            version=self.version,
            in_cluster=self.in_cluster,
            name=self._name,
            locator=locator,
            leader=leader,
        )

    @property
    def client(self) -> Redis:
        """The client of `redis`, for plain commands."""
        if self._client is None:
            self._client = Redis.from_pool(self._pool())
        return self._client

    @property
    def identity(self) -> str:
        """Id of the server of the latest exchange; empty before the first one, or if unknown."""
        return self._servers.latest or ""

    @property
    def argument_limit(self) -> int:
        """Bytes of the largest argument that the server accepts, as far as the newest connection knows."""
        return self._servers.argument_limit

    def _pool(self) -> ConnectionPool:
        try:
            parsed = parse_url(self._parts.url)
        except (TypeError, ValueError) as error:
            raise SettingError("PRIOQUEUE_REDIS_URL", self.address, str(error)) from error
        chosen = merged(parsed, self._options)
        if self._watch is not None:
            chosen["connection_class"] = self._watch.located(chosen.get("connection_class", RedisConnection))
        if not {"client_name", "redis_connect_func"} & chosen.keys():
            self._servers.connection_name = self._name
        most = int(chosen.get("max_connections") or MIN_CONNECTIONS)
        options = {
            **chosen,
            # The client's own time-outs would count time in which a callback blocks the loop.
            "socket_timeout": None,
            "socket_connect_timeout": None,
            "max_connections": max(MIN_CONNECTIONS, most),
            **always(),
            "retry": Retry(NoBackoff(), 0),
            "redis_connect_func": self._servers.greet,
        }
        try:
            self._answer_s = _seconds(chosen.get("socket_timeout", self._timeout_s))
            self._connect_s = _seconds(chosen.get("socket_connect_timeout", self._timeout_s))
            # By another pool, since a connection that was made counts, even if it isn't used.
            ConnectionPool(**options).make_connection()  # type: ignore[no-untyped-call]
            pool = OpenFirstPool(**options)
        except (TypeError, ValueError, LookupError, AttributeError, exceptions.RedisError) as error:
            raise unusable(self._options, error) from error
        return pool

    async def open(self) -> None:
        """Connect, read the server's version and load the scripts.

        Raises:
            FrontierUnavailable: with the reason.
        """
        if self.version:
            return
        async with self._own_connection() as connection:
            server = self._servers.of(connection)
            version = self._checked_version(server.version)
            self.in_cluster = self.in_cluster or server.in_cluster
            self._has_shard_channels = has_shard_channels(version, in_cluster=self.in_cluster)
            has_worked = bool(self._scripts)
            self._scripts = scripts_for(version, in_cluster=self.in_cluster)
            # Only missing ones: all are half a megabyte, which all workers would send at once after a failover.
            missing = await self._missing(connection)
            if missing and has_worked:
                await asyncio.sleep(random.uniform(0, LOADING_SPREAD_S))
                missing = await self._missing(connection)
            await self._load(connection, missing)
            self.version = version

    def _checked_version(self, text: str | None) -> tuple[int, ...]:
        if text is None:
            # Code for the oldest version works on all.
            return OLDEST_VERSION
        version = parse_version(text)
        if version < OLDEST_VERSION:
            wanted = ".".join(map(str, OLDEST_VERSION))
            raise FrontierRefused(self.address, f"Redis {text} is too old: use Redis {wanted} or later, or Valkey")
        return version

    async def info(self, section: str) -> dict[str, Any] | None:
        """Return a section of the server's `INFO`, None if the user may not use that."""
        try:
            found: dict[str, Any]
            (found,) = await self.pipe(("INFO", section))
        except FrontierUnavailable as error:
            if is_forbidden(error.__cause__):
                return None
            raise
        return found

    async def ask(self, command: Callable[[Redis], Any]) -> Any:
        """Run a plain command and return its reply.

        Raises:
            FrontierUnavailable: the connection failed or the server refused.
        """
        try:
            client = self.client
            await self._look_up_anew()
            async with self._watched(), Patience(self._answer_s):
                found = await command(client)
        except FAILURES as error:
            raise self.unavailable(error) from error
        self._has_worked = True
        return found

    async def pipe(self, *commands: Command) -> list[Any]:
        """Run commands in one round trip and return their replies.

        Raises:
            FrontierUnavailable: as `ask`.
        """
        answers = await self.replies(*commands)
        for answer in answers:
            if isinstance(answer, exceptions.RedisError):
                raise self.unavailable(answer) from answer
        return answers

    async def attempt(self, *commands: Command) -> list[Any]:
        """Run commands in one round trip and return their replies; a refused command's is an exception.

        Raises:
            FrontierUnavailable: the connection failed, or another server has the keys or takes the writes now.
        """
        answers = await self.replies(*commands)
        for answer in answers:
            if isinstance(answer, exceptions.RedisError) and is_displaced(answer):
                raise self.unavailable(answer) from answer
        return answers

    async def replies(self, *commands: Command) -> list[Any]:
        """Run commands in one round trip and return their replies as they are, each error reply as an exception.

        Raises:
            FrontierUnavailable: the connection failed; some may have been executed.
        """

        answers: list[Any] = await self.ask(lambda client: pipeline_of(client, commands).execute(raise_on_error=False))
        return answers

    @asynccontextmanager
    async def _own_connection(self) -> AsyncIterator[AbstractConnection]:
        was_sent = False
        try:
            pool = self.client.connection_pool
            await self._look_up_anew()
            async with self._watched(), own_connection(pool, self._connect_s) as connection:
                was_sent = True
                yield connection
        except FAILURES as error:
            raise self.unavailable(error, was_sent=was_sent) from error
        except SettingError:
            raise
        except (TypeError, ValueError) as error:
            # The client checks the types of some options only when it connects.
            if was_sent:
                raise
            raise unusable(self._options, error) from error

    def _watched(self) -> AbstractAsyncContextManager[None]:
        return nullcontext() if self._watch is None else self._watch

    async def _look_up_anew(self) -> None:
        """Close all connections, including the bell's, if another server may have taken over the address."""
        if self._is_displaced:
            self._is_displaced = False
            await self.client.connection_pool.disconnect()

    async def run(self, calls: Sequence[KeyedCall], *, wait_replicas: int = 0) -> list[Any]:
        """Run scripts in one round trip and return their replies, in order.

        Args:
            calls: (script name, state key, arguments) of each.
            wait_replicas: number of replicas that must have the scripts' writes.

        Returns:
            a reply for each; `FrontierFull` for one that a full server refused.

        Raises:
            FrontierUnavailable: unless its `was_sent` is false, some of the calls may have been executed.
            ServerChanged: nothing was sent, and the server may have lost confirmed writes.
        """
        try:
            await self.open()
        except FrontierUnavailable as error:
            error.was_sent = False
            raise
        async with self._own_connection() as connection:
            self._check_server(connection)
            replies = await self._call(connection, calls, wait_replicas)
            replies = [self._checked(reply) for reply in replies]
        if wait_replicas and (found := replies.pop()) < wait_replicas:
            raise FrontierUnavailable(self.address, lacking_replicas(found, wait_replicas, "writes"))
        return replies

    def _check_server(self, connection: AbstractConnection) -> None:
        try:
            self._servers.check(connection)
        except ServerChanged:
            # It may have another version, and lacks the scripts.
            self.version = ()
            raise

    def _waiting_for(self, replicas: int) -> tuple[Argument, ...]:
        # The wait must end before the client's time-out; 0 would mean no end.
        return ("WAIT", replicas, max(1, int((self._answer_s or self._timeout_s) * 500)))

    async def write(
        self, commands: Callable[[object], Sequence[Sequence[Argument]]], *, wait_replicas: int = 0
    ) -> list[Any]:
        """Run commands in one round trip and return their replies, each error reply as an exception.

        Args:
            commands: returns them, given a token of the connection that sends them, another one after each reconnect.
            wait_replicas: number of replicas to wait for; the last reply says how many have the latest write of this
                connection, now or in an earlier call, and everything before it.

        Raises:
            FrontierUnavailable: the connection failed; some may have been executed.
        """
        async with self._own_connection() as connection:
            sent = [*commands(self._servers.of(connection))]
            waiting = [self._waiting_for(wait_replicas)] if wait_replicas else []
            return await self._round_trip(connection, [*sent, *waiting])

    async def _call(self, connection: AbstractConnection, calls: Sequence[KeyedCall], wait_replicas: int) -> list[Any]:
        commands = [self._scripts[name].call(state_key, arguments) for name, state_key, arguments in calls]
        if wait_replicas:
            commands.append(self._waiting_for(wait_replicas))
        replies = await self._round_trip(connection, commands)
        missing = [index for index, reply in enumerate(replies) if isinstance(reply, exceptions.NoScriptError)]
        if missing:
            # Only the missing scripts are repeated: if others ran again, leases of the first run would be unknown here.
            names = {calls[index][0] for index in missing}
            await self._load(connection, [self._scripts[name] for name in names])
            missing += range(len(calls), len(commands))
            repeated = await self._round_trip(connection, [commands[index] for index in missing])
            for index, reply in zip(missing, repeated, strict=True):
                replies[index] = reply
        return replies

    async def _round_trip(self, connection: AbstractConnection, commands: Sequence[Sequence[Argument]]) -> list[Any]:
        async with Patience(self._answer_s):
            return await round_trip(connection, commands)

    def _checked(self, reply: Any) -> Any:
        if not isinstance(reply, exceptions.RedisError):
            return reply
        if is_full(reply):
            return full(self.address)
        raise self.unavailable(reply) from reply

    async def _missing(self, connection: AbstractConnection) -> list[Script]:
        scripts = list(self._scripts.values())
        (found,) = await self._round_trip(connection, [("SCRIPT", "EXISTS", *(script.digest for script in scripts))])
        if not isinstance(found, list):
            return scripts
        return [script for script, is_there in zip(scripts, found, strict=True) if not is_there]

    async def _load(self, connection: AbstractConnection, scripts: Iterable[Script]) -> None:
        commands = [("SCRIPT", "LOAD", script.source) for script in scripts]
        for reply in await self._round_trip(connection, commands) if commands else ():
            self._checked(reply)

    async def scan(self, pattern: str) -> AsyncIterator[list[bytes]]:
        """Iterate over the matching keys, in the batches that the server returns."""
        cursor = 0
        while True:
            ((cursor, keys),) = await self.pipe(("SCAN", cursor, "MATCH", pattern, "COUNT", KEYS_PER_SCAN))
            yield keys
            if not cursor:
                return

    async def listen(self, channel: str, ring: Callable[[], object]) -> None:
        """Call `ring` for every message on a channel, until it is cancelled or the connection is lost.

        Raises:
            FrontierUnavailable: the connection was lost or the server refused.
        """
        # redis-py 5 has no shard channels with asyncio, so the protocol is spoken here.
        subscribe = "SSUBSCRIBE" if self._has_shard_channels else "SUBSCRIBE"
        try:
            async with own_connection(self.client.connection_pool, self._connect_s) as connection:
                try:
                    async with Patience(self._answer_s):
                        await connection.send_command(subscribe, channel, check_health=False)
                        await connection.read_response()
                    while True:
                        if await self._has_rung(connection):
                            ring()
                finally:
                    # A connection with a subscription can't be used for anything else.
                    await connection.disconnect(nowait=True)
        except FAILURES as error:
            raise self.unavailable(error) from error

    async def _has_rung(self, connection: AbstractConnection) -> bool:
        message = await connection.read_response(timeout=PING_S)
        if message is None:
            # A connection that a firewall has dropped stays silent and never ends, so send a ping.
            async with Patience(self._answer_s):
                await connection.send_command("PING", check_health=False)
                message = await connection.read_response()
        kind = message[0] if isinstance(message, list) else None
        if kind == b"sunsubscribe":
            raise exceptions.ConnectionError("the hash slot of the channel has moved to another node")
        return kind in (b"message", b"smessage")

    async def follow(self, on_move: Callable[[], object]) -> None:
        """Call a function each time the server has moved, until cancelled; return at once if it can't move."""
        if self._watch is not None:
            await self._watch.follow(on_move)

    async def close(self) -> None:
        """Close all connections."""
        if self._watch is not None:
            await self._watch.close()
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()

    def unavailable(self, error: BaseException, *, was_sent: bool = True) -> FrontierUnavailable:
        """Return our error for an error or an error reply, and look for the server anew if it may have moved."""
        self._is_displaced = self._is_displaced or is_displaced(error)
        if isinstance(self._locator, ClusterLocator):
            self._locator.learn(error)
        if self._watch is not None:
            self._watch.look_out()
        return explained(error, self.address, was_sent=was_sent, has_worked=self._has_worked or bool(self._scripts))


def _seconds(limit: Any) -> float | None:
    return None if limit is None else float(limit)


def parse_version(text: str) -> tuple[int, ...]:
    """Return "7.0.15" as (7, 0, 15); it ends before the first part that isn't a number."""
    numbers = []
    for part in text.split("."):
        if not part.isdigit():
            break
        numbers.append(int(part))
    return tuple(numbers)
