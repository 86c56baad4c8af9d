"""The connection to one Redis server: addresses, time-outs, script calls, and what its errors mean to us."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from functools import partial
from secrets import token_hex
from typing import Any
from weakref import WeakKeyDictionary

from redis import exceptions
from redis.asyncio import ConnectionPool, Redis
from redis.asyncio.connection import parse_url
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from scrapy_prioqueue.address import address_of
from scrapy_prioqueue.errors import FrontierFull, FrontierRefused, FrontierUnavailable, SettingError
from scrapy_prioqueue.frontier.redis.scripts import Argument, Script, scripts_for
from scrapy_prioqueue.frontier.redis.troubles import refusal_in_place, trouble

OLDEST_VERSION = (6, 2)

_FAILURES = (exceptions.RedisError, OSError, asyncio.TimeoutError)

_RUN_ID = re.compile(rb"run_id:(\w+)")

MIN_CONNECTIONS = 4
"""One for exchanges, one for the bell, and some to spare where one has just been lost."""


class ServerChanged(FrontierUnavailable):
    """Another server answers than before, or the same one after a restart; nothing was sent to it yet."""


class Connection:
    """One pool of connections to a server; made at first use, on the event loop that uses it.

    Args:
        url: ``redis://``, ``rediss://`` or ``unix://`` address, database included.
        timeout_s: seconds that connecting, and an answer, may take.
        options: further keyword arguments of `redis.asyncio.Redis`, above those of the URL.
        version: of the server, if another connection has found it out and has loaded the scripts.
    """

    def __init__(
        self,
        url: str,
        *,
        timeout_s: float = 5.0,
        options: Mapping[str, Any] | None = None,
        version: tuple[int, ...] = (),
    ) -> None:
        self.url = url
        self.address = address_of(url)
        self._timeout_s = timeout_s
        self._options = dict(options or {})
        self._client: Redis | None = None
        self._identities: WeakKeyDictionary[Any, str] = WeakKeyDictionary()
        self._identity = ""
        self._scripts: dict[str, Script] = scripts_for(version) if version else {}
        self.version = version

    def twin(self) -> Connection:
        """Return another pool of connections to the same server, for another event loop."""
        return Connection(self.url, timeout_s=self._timeout_s, options=self._options, version=self.version)

    @property
    def client(self) -> Redis:
        """The client of `redis`, for plain commands."""
        if self._client is None:
            self._client = Redis.from_pool(self._pool())
        return self._client

    def _pool(self) -> ConnectionPool:
        chosen = {**parse_url(self.url), **self._options}
        options = {
            "socket_timeout": self._timeout_s,
            "socket_connect_timeout": self._timeout_s,
            **chosen,
            # An answer is bytes, whatever the user's options say; an exchange is never repeated behind our back.
            "max_connections": max(MIN_CONNECTIONS, int(chosen.get("max_connections", MIN_CONNECTIONS))),
            "encoding": "utf-8",
            "decode_responses": False,
            "protocol": 2,
            "retry": Retry(NoBackoff(), 0),
            "redis_connect_func": self._on_connect,
        }
        try:
            pool = ConnectionPool(**options)
            pool.make_connection()  # type: ignore[no-untyped-call]
        except (TypeError, ValueError, LookupError, AttributeError) as error:
            raise SettingError("PRIOQUEUE_REDIS_OPTIONS", sorted(self._options), str(error)) from error
        return pool

    async def _on_connect(self, line: Any) -> None:
        """Prepare a connection that was just made, and find out to which server it leads."""
        await line.on_connect()
        await line.send_command("INFO", "server")
        try:
            found = _RUN_ID.search(await line.read_response())
        except exceptions.ResponseError:
            found = None
        # Where a user may not ask, any new connection may lead to a server that was restarted.
        self._identities[line] = found[1].decode() if found else token_hex(8)

    async def open(self) -> None:
        """Connect, find out the server's version and load the scripts.

        Raises:
            FrontierUnavailable: with the reason.
        """
        if self.version:
            return
        version = await self._find_version()
        self._scripts = scripts_for(version)
        await self._load()
        self.version = version

    async def _find_version(self) -> tuple[int, ...]:
        info = await self.info("server")
        if info is None:
            # What runs on the oldest runs on all.
            return OLDEST_VERSION
        version = parse_version(str(info.get("redis_version", "0")))
        if version < OLDEST_VERSION:
            wanted = ".".join(map(str, OLDEST_VERSION))
            raise FrontierRefused(self.address, f"Redis {info.get('redis_version')} is older than {wanted}")
        return version

    async def info(self, section: str) -> dict[str, Any] | None:
        """Return a section of the server's `INFO`, None for a user who may not see it."""
        try:
            found: dict[str, Any] = await self.ask(lambda client: client.info(section))
        except FrontierUnavailable as error:
            if isinstance(error.__cause__, exceptions.NoPermissionError):
                return None
            raise
        return found

    async def ask(self, command: Callable[[Redis], Any]) -> Any:
        """Run a plain command and return its answer.

        Raises:
            FrontierUnavailable: the connection failed or the server refused.
        """
        try:
            return await command(self.client)
        except _FAILURES as error:
            raise trouble(self.address, error) from error
        except (TypeError, ValueError) as error:
            # The client checks the types of some options only when it connects.
            if self.version:
                raise
            raise SettingError("PRIOQUEUE_REDIS_OPTIONS", sorted(self._options), str(error)) from error

    async def run(self, calls: Sequence[tuple[str, str, Sequence[Argument]]], *, wait_replicas: int = 0) -> list[Any]:
        """Run scripts in one round trip and return their replies, in order.

        Args:
            calls: (script name, state key, arguments) of each.
            wait_replicas: how many replicas must have what was written.

        Returns:
            a reply each; `FrontierFull` in the place of one that a full server refused.

        Raises:
            ServerChanged: once after each restart of the server, or when another one has taken its place.
            FrontierUnavailable: nothing is known of what was carried out, if it was sent at all.
        """
        await self.open()
        replies = await self._pipeline(calls, wait_replicas)
        if any(isinstance(reply, exceptions.NoScriptError) for reply in replies):
            # A server that was restarted knows no scripts: none of the calls has run.
            await self._load()
            replies = await self._pipeline(calls, wait_replicas)
        if wait_replicas:
            self._check_replicas(replies.pop(), wait_replicas)
        return [self._checked(reply) for reply in replies]

    def _check_replicas(self, found: Any, wanted: int) -> None:
        if isinstance(found, Exception):
            raise trouble(self.address, found) from found
        if found < wanted:
            # What was written will be sent again, which does no harm.
            why = f"only {found} of {wanted} replicas (PRIOQUEUE_WAIT_REPLICAS) have the newest writes"
            raise FrontierUnavailable(self.address, why)

    async def _pipeline(self, calls: Sequence[tuple[str, str, Sequence[Argument]]], wait_replicas: int) -> list[Any]:
        commands = [self._scripts[name].call(state_key, arguments) for name, state_key, arguments in calls]
        if wait_replicas:
            commands.append(("WAIT", wait_replicas, round(self._timeout_s * 1000 / 2)))
        pool = self.client.connection_pool
        try:
            line = await pool.get_connection()  # type: ignore[no-untyped-call]
        except _FAILURES as error:
            raise trouble(self.address, error, was_sent=False) from error
        try:
            self._check_identity(self._identities[line])
            return await _converse(line, commands)
        except _FAILURES as error:
            raise trouble(self.address, error) from error
        finally:
            await pool.release(line)

    def _check_identity(self, identity: str) -> None:
        last, self._identity = self._identity, identity
        if last and last != identity:
            raise ServerChanged(self.address, "it was restarted, or another server has taken its place", was_sent=False)

    def _checked(self, reply: Any) -> Any:
        if not isinstance(reply, exceptions.RedisError):
            return reply
        refusal = refusal_in_place(self.address, reply)
        if isinstance(refusal, FrontierFull):
            return refusal
        raise refusal from reply

    async def _load(self) -> None:
        for script in self._scripts.values():
            await self.ask(partial(_load_script, source=script.source))

    async def scan(self, pattern: str) -> AsyncIterator[list[bytes]]:
        """Iterate over the keys that match, some hundred at a time."""
        cursor = 0
        while True:
            cursor, keys = await self.ask(partial(_scan, cursor=cursor, pattern=pattern))
            if keys:
                yield keys
            if not cursor:
                return

    async def listen(self, channel: str, ring: Callable[[], object]) -> None:
        """Call `ring` for every message on a channel, until cancelled or the connection is lost.

        Raises:
            FrontierUnavailable: the connection was lost or the server refused.
        """
        pubsub = self.client.pubsub()
        try:
            await pubsub.subscribe(channel)
            while True:
                if await pubsub.get_message(ignore_subscribe_messages=True, timeout=None):
                    ring()
        except (exceptions.RedisError, OSError) as error:
            raise trouble(self.address, error) from error
        finally:
            await pubsub.aclose()  # type: ignore[no-untyped-call]

    async def close(self) -> None:
        """Close all connections."""
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()


async def _converse(line: Any, commands: Sequence[Sequence[Argument]]) -> list[Any]:
    """Send commands in one go and return the replies, an error in the place of each that was refused."""
    is_complete = False
    try:
        await line.send_packed_command(line.pack_commands(commands), check_health=False)
        replies = [await _reply(line) for _ in commands]
        is_complete = True
        return replies
    finally:
        if not is_complete:
            # A reply that comes later must not be read as the answer to another command.
            await line.disconnect(nowait=True)


async def _reply(line: Any) -> Any:
    try:
        return await line.read_response()
    except exceptions.ResponseError as error:
        return error


async def _load_script(client: Redis, *, source: str) -> Any:
    return await client.script_load(source)


async def _scan(client: Redis, *, cursor: int, pattern: str) -> Any:
    return await client.scan(cursor, match=pattern, count=500)


def parse_version(text: str) -> tuple[int, ...]:
    """Return "7.0.15" as (7, 0, 15); parts that are no numbers end it."""
    numbers = []
    for part in text.split("."):
        if not part.isdigit():
            break
        numbers.append(int(part))
    return tuple(numbers)
