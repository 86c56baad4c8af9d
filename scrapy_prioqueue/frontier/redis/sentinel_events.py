"""News of failovers: what Sentinels publish about a primary."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from typing import Any

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from scrapy_prioqueue.address import HostPort
from scrapy_prioqueue.frontier.redis.locating import ANSWER_S, SentinelLocator

BEGINS = "+failover-state-send-"
"""Published about 0.1 s before a replica is promoted. The old primary, if it runs, takes writes for seconds after that,
and then loses them."""

ENDS = ("+promoted-*", "+switch-*", "-failover-abort-*")

PING_S = 20.0
"""Seconds of silence after which a Sentinel gets a ping."""

CANCEL_S = 0.1
"""Time between two attempts to end a subscription."""

AGAIN_S = 2.0
"""Longest time between two attempts to subscribe."""


class SentinelEvents:
    """Subscriptions to all Sentinels, since only the one that leads a failover announces its beginning.

    Args:
        on_begin: called when a replica is about to be promoted.
        on_end: called with the Sentinel that announces the new primary, or that there will be none; and with None
            if news of one of them may have been missed.
    """

    def __init__(
        self, locator: SentinelLocator, on_begin: Callable[[], object], on_end: Callable[[HostPort | None], object]
    ) -> None:
        self._locator = locator
        self._on_begin = on_begin
        self._on_end = on_end
        self._tasks: Sequence[asyncio.Task[None]] = ()

    def start(self) -> None:
        """Subscribe in the running loop; does nothing if that was done before."""
        if not self._tasks:
            self._tasks = [asyncio.ensure_future(self._follow(host)) for host in self._locator.hosts]

    async def close(self) -> None:
        """Close the connections."""
        running, self._tasks = set(self._tasks), ()
        while running:
            # Repeated, since the client may swallow a cancellation.
            for task in running:
                task.cancel()
            _, running = await asyncio.wait(running, timeout=CANCEL_S)

    async def _follow(self, sentinel: HostPort) -> None:
        name, port = sentinel
        own = {"host": name, "port": port, "retry": Retry(NoBackoff(), 0), "socket_timeout": None}
        is_first = True
        while True:
            client = Redis(**{**self._locator.options, **own})
            pubsub = client.pubsub()
            try:
                await asyncio.wait_for(pubsub.psubscribe(f"{BEGINS}*", *ENDS), ANSWER_S)
                if not is_first:
                    self._on_end(None)
                await self._listen(pubsub, sentinel)
            except (RedisError, OSError, asyncio.TimeoutError):
                # It may be gone for long, or its user may not subscribe.
                pass
            finally:
                await pubsub.aclose()  # type: ignore[no-untyped-call]
                await client.aclose()
            is_first = False
            await asyncio.sleep(AGAIN_S * random.uniform(0.5, 1))
            self._on_end(None)

    async def _listen(self, pubsub: Any, sentinel: HostPort) -> None:
        while True:
            message = await pubsub.get_message(ignore_subscribe_messages=True, timeout=PING_S)
            if message is None:
                await asyncio.wait_for(pubsub.ping(), ANSWER_S)
                message = await asyncio.wait_for(pubsub.get_message(timeout=ANSWER_S), 2 * ANSWER_S)
                if message is None:
                    return
            if message["type"] == "pmessage" and self._locator.primary in message["data"].split(" "):
                if message["channel"].startswith(BEGINS):
                    self._on_begin()
                else:
                    self._on_end(sentinel)
