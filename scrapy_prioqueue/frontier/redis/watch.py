"""Notices, while a reply is awaited, that the server is another one now, and breaks off what waits for the old one."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from contextlib import suppress
from math import inf
from time import monotonic
from types import TracebackType
from typing import Any, cast
from weakref import WeakSet

from redis.asyncio.connection import AbstractConnection
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError

from scrapy_prioqueue.address import HostPort
from scrapy_prioqueue.frontier.redis.locating import Locator, SentinelLocator
from scrapy_prioqueue.frontier.redis.sentinel_events import SentinelEvents

WATCH_S = 0.5
"""Seconds between looks for the server while a reply is awaited."""

LOOK_OUT_S = 30.0
"""Seconds after a failure for which a worker without news looks for another server."""

PROMOTION_S = 5.0
"""Longest time for which nothing is sent because Sentinels promote a replica; usually that takes a second."""

LEADER_S = 0.1
"""Seconds between looks whether the leader still waits for the end of a promotion."""

SPREAD_S = 0.2
"""Longest random time after that, so that not all workers come to the new primary at once."""


class Watch:
    """Looks where the server is while its context is entered; without it, a frozen server is noticed by a time-out.

    If Sentinels know the server, they send news of a failover. While they promote a replica, entering takes until that
    is over: what the old primary stored meanwhile would be lost.

    Args:
        locator: asked in another thread.
        leader: follow this one, which may belong to another thread, instead of a subscription of one's own.
    """

    def __init__(self, locator: Locator, *, leader: Watch | None = None) -> None:
        self._locator = locator
        self._leader = leader
        self._led_to = None if leader is None else leader.host
        self.host: HostPort | None = None
        """Where the server was last."""
        self._connections: WeakSet[Any] = WeakSet()
        self._connecting: dict[asyncio.Task[None], HostPort] = {}
        self._waits = 0
        self._timer: asyncio.TimerHandle | None = None
        self._looking: asyncio.Task[None] | None = None
        self._hearing: set[asyncio.Task[None]] = set()
        self._promotion: asyncio.Event | None = None
        self._promotion_timer: asyncio.TimerHandle | None = None
        self._on_move: Callable[[], object] | None = None
        self._looks_until = -inf
        self._news = (
            SentinelEvents(locator, self.begin_promotion, self._hear)
            if leader is None and isinstance(locator, SentinelLocator)
            else None
        )

    async def __aenter__(self) -> None:
        if self._news is not None:
            self._news.start()
        if self._promotion is not None:
            await self._promotion.wait()
            await asyncio.sleep(random.uniform(0, SPREAD_S))
        if self._leader is not None:
            await self._follow_leader(self._leader)
        self._waits += 1
        self._look_soon()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._waits -= 1
        if error is None:
            self._looks_until = -inf
        if not self._must_look and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    async def _follow_leader(self, leader: Watch) -> None:
        until = monotonic() + PROMOTION_S
        while leader._promotion is not None and monotonic() < until:
            # An event would belong to the loop of the leader, which may be blocked.
            await asyncio.sleep(LEADER_S)
        host, before, self._led_to = leader.host, self._led_to, leader.host
        if host is not None and host != before:
            await self._leave_others(host)

    @property
    def _must_look(self) -> bool:
        return self._waits > 0 or monotonic() < self._looks_until

    def look_out(self) -> None:
        """Look for another server also while no reply is awaited, since a call has failed and nobody sends news."""
        if self._news is None and self._on_move is not None:
            self._looks_until = monotonic() + LOOK_OUT_S
            self._look_soon()

    def _look_soon(self) -> None:
        if self._must_look and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(WATCH_S, self._look)

    async def follow(self, on_move: Callable[[], object]) -> None:
        """Call a function each time the server has moved, until cancelled."""
        self._on_move = on_move
        try:
            await asyncio.Event().wait()
        finally:
            self._on_move = None

    async def close(self) -> None:
        """Stop listening to news."""
        self._end_promotion()
        if self._news is not None:
            await self._news.close()
        for task in (*self._hearing, *([self._looking] if self._looking is not None else [])):
            task.cancel()

    def begin_promotion(self) -> None:
        """Let calls wait for news of the end of a promotion, but not for longer than `PROMOTION_S`."""
        if self._promotion is None:
            self._doubt()
            self._promotion = asyncio.Event()
            self._promotion_timer = asyncio.get_running_loop().call_later(PROMOTION_S, self._give_up_promotion)

    def _doubt(self) -> None:
        if isinstance(self._locator, SentinelLocator):
            self._locator.forget()

    def _give_up_promotion(self) -> None:
        # Nobody has said what has become of it.
        self._doubt()
        self._end_promotion()

    def _end_promotion(self) -> None:
        promotion, self._promotion = self._promotion, None
        timer, self._promotion_timer = self._promotion_timer, None
        if promotion is not None:
            promotion.set()
        if timer is not None:
            timer.cancel()

    def _hear(self, sentinel: HostPort | None) -> None:
        task = asyncio.ensure_future(self._follow_news(sentinel))
        self._hearing.add(task)
        task.add_done_callback(self._hearing.discard)

    async def _follow_news(self, sentinel: HostPort | None) -> None:
        if sentinel is not None and isinstance(self._locator, SentinelLocator):
            with suppress(RedisError, OSError):
                await asyncio.to_thread(self._locator.hear, sentinel)
        await self._break_off()
        if sentinel is not None:
            self._end_promotion()

    def _look(self) -> None:
        self._timer = None
        if self._looking is None or self._looking.done():
            self._looking = asyncio.ensure_future(self._look_once())

    async def _look_once(self) -> None:
        await self._break_off()
        self._look_soon()

    async def _break_off(self) -> None:
        """Close all connections to other servers than the one that is known now."""
        try:
            host = await self._locate()
        except (RedisError, OSError):
            # There is none now; the next look may find one.
            return
        await self._leave_others(host)

    async def _leave_others(self, host: HostPort) -> None:
        for task in [task for task, old in self._connecting.items() if old != host]:
            del self._connecting[task]
            task.cancel()
        for connection in list(self._connections):
            if (connection.host, connection.port) != host:
                await connection.disconnect(nowait=True)
        has_moved, self.host = self.host not in (None, host), host
        if has_moved and self._on_move is not None:
            self._looks_until = -inf
            self._on_move()

    async def _locate(self) -> HostPort:
        return await asyncio.to_thread(self._locator.locate)

    async def _connect(self, connection: Any, connect: Callable[[], Coroutine[Any, Any, None]]) -> None:
        connection.host, connection.port = host = await self._locate()
        self.host = host
        task = asyncio.ensure_future(connect())
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
                    await watch._connect(self, super().connect)

        return cast(type[AbstractConnection], LocatedConnection)
