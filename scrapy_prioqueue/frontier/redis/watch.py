"""Notices, while a reply is awaited, that the server is another one now, and breaks off what waits for the old one."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from types import TracebackType
from typing import Any, cast
from weakref import WeakSet

from redis.asyncio.connection import AbstractConnection
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError

from scrapy_prioqueue.address import Host
from scrapy_prioqueue.frontier.redis.locating import Locator

WATCH_S = 0.5
"""Seconds between looks for the server while a reply is awaited."""


class Watch:
    """Looks where the server is while its context is entered; without it, a frozen server is noticed by a time-out.

    Args:
        locator: asked in another thread.
    """

    def __init__(self, locator: Locator) -> None:
        self._locator = locator
        self._connections: WeakSet[Any] = WeakSet()
        self._connecting: dict[asyncio.Task[None], Host] = {}
        self._waits = 0
        self._timer: asyncio.TimerHandle | None = None
        self._looking: asyncio.Task[None] | None = None

    async def __aenter__(self) -> None:
        self._waits += 1
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(WATCH_S, self._look)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._waits -= 1
        if not self._waits and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        self._timer = None
        if self._looking is None or self._looking.done():
            self._looking = asyncio.ensure_future(self._break_off())

    async def _break_off(self) -> None:
        try:
            host = await self._locate()
        except (RedisError, OSError):
            # There is none now; the next look may find one.
            pass
        else:
            for task in [task for task, old in self._connecting.items() if old != host]:
                del self._connecting[task]
                task.cancel()
            for connection in list(self._connections):
                if (connection.host, connection.port) != host:
                    await connection.disconnect(nowait=True)
        if self._waits and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(WATCH_S, self._look)

    async def _locate(self) -> Host:
        return await asyncio.to_thread(self._locator.locate)

    async def _connect(self, connection: Any, connecting: Coroutine[Any, Any, None]) -> None:
        connection.host, connection.port = host = await self._locate()
        task = asyncio.ensure_future(connecting)
        self._connecting[task] = host
        self._connections.add(connection)
        try:
            await task
        except asyncio.CancelledError:
            if task in self._connecting:
                raise
            raise RedisConnectionError("it is at another address now") from None
        finally:
            self._connecting.pop(task, None)

    def located(self, kind: type[AbstractConnection]) -> type[AbstractConnection]:
        """Return a class of connections each of which asks where the server is before it connects."""
        watch = self

        class LocatedConnection(kind):  # type: ignore[misc, valid-type]
            async def connect(self) -> None:
                if not self.is_connected:
                    await watch._connect(self, super().connect())

        return cast(type[AbstractConnection], LocatedConnection)
