"""Watches the server's memory for the mark at which a flood begins."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import monotonic
from typing import Any

from scrapy_prioqueue.frontier.redis.connection import Connection
from scrapy_prioqueue.frontier.redis.scripts import Argument
from scrapy_prioqueue.frontier.redis.wire import memory_arguments

MEMORY_CHECK_S = 1.0
"""Seconds between two reads of the memory in use."""

LOW_PART = 0.9
"""Part of the mark below which the memory counts as free again."""


class MemoryWatch:
    """Compares the server's memory with a mark.

    Args:
        mark: part of `maxmemory`, 0 to watch nothing.
    """

    def __init__(self, mark: float, clock: Callable[[], float] = monotonic) -> None:
        self._mark = mark
        self._clock = clock
        self._look_at = clock()
        self._is_high = False

    async def notes(self, connection: Connection) -> Sequence[Argument]:
        """Return the arguments for `note`, empty until it is time for a look."""
        if not self._mark or self._clock() < self._look_at:
            return ()
        self._look_at = self._clock() + MEMORY_CHECK_S
        used = used_part(await connection.info("memory"))
        if used is None:
            return ()
        self._is_high = used >= self._mark * (LOW_PART if self._is_high else 1)
        return memory_arguments(is_high=self._is_high)


def used_part(memory: dict[str, Any] | None) -> float | None:
    """Return the used part of `maxmemory`, None if that isn't set or may not be read."""
    if memory is None or not int(memory.get("maxmemory", 0)):
        return None
    return int(memory["used_memory"]) / int(memory["maxmemory"])
