"""A limit to how long something may take that doesn't count while the event loop is held up; nothing here knows why."""

from __future__ import annotations

import asyncio
from types import TracebackType

LOOKS = 10
"""Turns of the loop, at equal distances, after the last of which the time is over."""


class Patience:
    """Cancels what is done under it when its time is over, as `asyncio.timeout` does.

    Where a callback blocks the loop for longer than that, an answer may be there and nobody could have read it. So the
    time is over after some looks at the clock, of which a late one counts as one.

    Args:
        seconds: None for no limit.

    Raises:
        asyncio.TimeoutError: at its end, in the place of the cancellation.
    """

    def __init__(self, seconds: float | None) -> None:
        self._seconds = seconds
        self._looks_left = LOOKS
        self._cancellations = 0
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[object] | None = None

    async def __aenter__(self) -> None:
        self._task = asyncio.current_task()
        self._wait()

    def _wait(self) -> None:
        if self._seconds is not None:
            self._timer = asyncio.get_running_loop().call_later(self._seconds / LOOKS, self._look)

    def _look(self) -> None:
        self._looks_left -= 1
        if self._looks_left <= 0 and self._task is not None:
            # Again each time, since a client may swallow a cancellation.
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
        """Take back the cancellations, and return how many of other people's there are; Python 3.10 can't tell."""
        uncancel = getattr(self._task, "uncancel", None)
        if uncancel is None:
            return 0
        left = 0
        for _ in range(self._cancellations):
            left = uncancel()
        return int(left)
