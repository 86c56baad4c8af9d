"""Who has yet to tell, after an outage, what it did meanwhile; the frontier hands nothing out before."""

from __future__ import annotations

from collections.abc import Iterable

MOST_RETURN_MS = 10_000
"""The longest that workers are awaited."""


class Returns:
    """Follows the workers that an outage has cut off."""

    def __init__(self) -> None:
        self._until_ms = 0
        self._awaited: set[str] = set()

    @property
    def is_on(self) -> bool:
        """Some are awaited, as far as is known."""
        return bool(self._awaited)

    def left_ms(self, worker: str, away_ms: int, silent: Iterable[str], now_ms: int, ttl_ms: int) -> int | None:
        """Take note of what a worker says; return for how long nothing is to be handed out, None if nobody is awaited.

        Args:
            away_ms: for how long it was cut off, 0 where it has told all that it did.
            silent: the workers that lived when the outage began, and were not heard of since.
        """
        is_on = now_ms < self._until_ms
        if away_ms > 0 and not is_on:
            is_on, self._until_ms, self._awaited = True, now_ms + min(MOST_RETURN_MS, ttl_ms), set(silent)
        if away_ms > 0:
            self._awaited.add(worker)
        else:
            self._awaited.discard(worker)
        if is_on and self._awaited:
            return self._until_ms - now_ms
        self._until_ms = 0
        self._awaited.clear()
        return None

    def forget(self, worker: str) -> None:
        """Don't wait for a worker that has left."""
        self._awaited.discard(worker)
