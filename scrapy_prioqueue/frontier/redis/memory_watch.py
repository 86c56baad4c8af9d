"""How full the server's memory is, looked at now and then, for the mark above which nothing is discovered."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import monotonic
from typing import Any

from scrapy_prioqueue.frontier.redis.connection import Connection
from scrapy_prioqueue.frontier.redis.scripts import Argument
from scrapy_prioqueue.frontier.redis.wire import memory_arguments

LOOK_S = 1.0
"""Seconds between two looks."""

LOW_PART = 0.9
"""The memory is no longer full where it is below this part of the mark."""


class MemoryWatch:
    """Tells whether the server's memory is above a mark.

    Args:
        mark: part of `maxmemory`, 0 to look at nothing.
    """

    def __init__(self, mark: float, clock: Callable[[], float] = monotonic) -> None:
        self._mark = mark
        self._clock = clock
        self._look_at = clock()
        self._is_high = False

    async def notes(self, connection: Connection) -> Sequence[Argument]:
        """Return what `note` is to be told, empty where it isn't time for a look."""
        if not self._mark or self._clock() < self._look_at:
            return ()
        self._look_at = self._clock() + LOOK_S
        used = used_part(await connection.info("memory"))
        if used is None:
            return ()
        self._is_high = used >= self._mark * (LOW_PART if self._is_high else 1)
        return memory_arguments(is_high=self._is_high)


def used_part(memory: dict[str, Any] | None) -> float | None:
    """Return which part of `maxmemory` is used, None where there is no such limit or it may not be seen."""
    if memory is None or not int(memory.get("maxmemory", 0)):
        return None
    return int(memory["used_memory"]) / int(memory["maxmemory"])
