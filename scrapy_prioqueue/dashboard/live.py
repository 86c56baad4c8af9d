"""Server-sent events: each view is rendered once for all its viewers, and a slow viewer only misses updates."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from starlette.types import Receive, Scope, Send

logger = logging.getLogger(__name__)

INTERVAL_S = 1.0
MOST_VIEWERS = 100

KEEP_ALIVE_S = 15.0
"""Seconds after which an event without changes is sent, to notice viewers that have gone."""

SLOW_S = 30.0
"""Seconds after which a viewer that reads nothing is dropped."""

AGE = "age"
"""Name of the text with the age of the last reading, in seconds, at the time when the event is sent."""

Fragments = Mapping[str, str]
"""Maps the ids of elements to their HTML, and names to further texts."""


@dataclass
class _Channel:
    """The newest state of a view."""

    fragments: Fragments = field(default_factory=dict)
    viewers: int = 0
    changed: asyncio.Condition = field(default_factory=asyncio.Condition)
    version: int = 0
    task: asyncio.Task[None] | None = None


class Live:
    """Sends views to viewers.

    Args:
        render: returns the fragments of a view; called in a thread.
        interval_s: least seconds between two updates.
        most_viewers: of all views together.
    """

    def __init__(
        self,
        render: Callable[[str], Fragments],
        *,
        interval_s: float = INTERVAL_S,
        most_viewers: int = MOST_VIEWERS,
    ) -> None:
        self._render = render
        self._interval_s = interval_s
        self._most_viewers = most_viewers
        self._channels: dict[str, _Channel] = {}
        self._is_closed = False

    @property
    def has_room(self) -> bool:
        """Whether another viewer may come."""
        return sum(channel.viewers for channel in self._channels.values()) < self._most_viewers

    async def close(self) -> None:
        """End all streams."""
        self._is_closed = True
        for channel in list(self._channels.values()):
            async with channel.changed:
                channel.changed.notify_all()

    async def stream(self, view: str, receive: Receive, send: Send) -> None:
        """Send updates of a view until the viewer goes."""
        channel = self._channels.setdefault(view, _Channel())
        channel.viewers += 1
        if channel.task is None:
            channel.task = asyncio.create_task(self._update(view, channel))
        sending = asyncio.create_task(self._send(channel, send))
        gone = asyncio.create_task(_gone(receive))
        try:
            await asyncio.wait((sending, gone), return_when=asyncio.FIRST_COMPLETED)
        finally:
            channel.viewers -= 1
            if not channel.viewers and channel.task is not None:
                channel.task.cancel()
                self._channels.pop(view, None)
            for task in (sending, gone):
                task.cancel()
            await asyncio.gather(sending, gone, return_exceptions=True)

    async def _update(self, view: str, channel: _Channel) -> None:
        while True:
            try:
                fragments = await asyncio.to_thread(self._render, view)
            except Exception:  # viewers keep what they have, and the next update may work
                logger.exception("The view %r can't be rendered", view)
            else:
                async with channel.changed:
                    channel.fragments, channel.version = fragments, channel.version + 1
                    channel.changed.notify_all()
            await asyncio.sleep(self._interval_s)

    def _is_new(self, channel: _Channel, version: int) -> bool:
        return channel.version != version or self._is_closed

    async def _send(self, channel: _Channel, send: Send) -> None:
        sent: Fragments = {}
        version = 0
        while not self._is_closed:
            async with channel.changed:
                with suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(
                        channel.changed.wait_for(partial(self._is_new, channel, version)), KEEP_ALIVE_S
                    )
                is_new = version != channel.version
                version, fragments = channel.version, channel.fragments
            changes = {name: text for name, text in fragments.items() if sent.get(name) != text}
            # The same age in a newer event means a newer reading.
            changes |= {AGE: fragments[AGE]} if is_new and AGE in fragments else {}
            sent = fragments
            await asyncio.wait_for(send(_body(b"data: " + json.dumps(changes).encode() + b"\n\n")), SLOW_S)
        await asyncio.wait_for(send(_body(b"", more=False)), SLOW_S)


def _body(text: bytes, *, more: bool = True) -> dict[str, Any]:
    return {"type": "http.response.body", "body": text, "more_body": more}


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class EventStream:
    """The response with the updates of a view."""

    def __init__(self, live: Live, view: str) -> None:
        self._live = live
        self._view = view

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-store")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await self._live.stream(self._view, receive, send)
