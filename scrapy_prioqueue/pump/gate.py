"""Holds `start()` back while too many of its requests wait to be stored, so that it may yield millions."""

from __future__ import annotations

from collections.abc import Callable

from twisted.internet.defer import Deferred


class StartGate:
    """Closed while too much waits.

    Args:
        has_room: asked whether the gate may open.
    """

    def __init__(self, has_room: Callable[[], bool]) -> None:
        self._has_room = has_room
        self._waiters: list[Deferred[None]] = []

    @property
    def is_open(self) -> bool:
        """There is room for more."""
        return self._has_room()

    def wait(self) -> Deferred[None] | None:
        """Return None if the gate is open, else a Deferred that fires when it opens."""
        if self._has_room():
            return None
        waiter: Deferred[None] = Deferred()
        self._waiters.append(waiter)
        return waiter

    def look(self) -> None:
        """Open the gate if it may be opened by now."""
        if self._waiters and self._has_room():
            waiters, self._waiters = self._waiters, []
            for waiter in waiters:
                waiter.callback(None)
