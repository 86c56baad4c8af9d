"""A timer on the crawler's loop that notes how late it is; in the crawling process, so it imports next to nothing."""

from __future__ import annotations

import asyncio
from time import monotonic

INTERVAL_S = 0.01


class TimerWatch:
    """Fires every 10 ms and notes when, and how much later than it should have."""

    def __init__(self) -> None:
        self._samples: list[tuple[float, float]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._due_s = 0.0

    def start(self) -> None:
        """Begin, on the running loop."""
        self._due_s = monotonic() + INTERVAL_S
        self._timer = asyncio.get_running_loop().call_later(INTERVAL_S, self._fire)

    def stop(self) -> list[tuple[float, float]]:
        """End and return (seconds on the machine's monotonic clock, seconds late) of each firing."""
        if self._timer is not None:
            self._timer.cancel()
        return self._samples

    def _fire(self) -> None:
        now = monotonic()
        self._samples.append((now, now - self._due_s))
        self.start()
