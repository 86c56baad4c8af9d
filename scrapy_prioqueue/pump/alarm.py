"""One timer, set to the earliest time that anybody asked for."""

from __future__ import annotations

from collections.abc import Callable

from scrapy_prioqueue.runtime import Timer, call_later


class Alarm:
    """Calls a function once, at the earliest time that it was set to.

    Args:
        clock: monotonic, in seconds.
        on_time: what is called; the alarm may be set again from there.
    """

    def __init__(self, clock: Callable[[], float], on_time: Callable[[], object]) -> None:
        self._clock = clock
        self._on_time = on_time
        self._timer: Timer | None = None
        self._at = 0.0

    @property
    def is_set(self) -> bool:
        """It will go off."""
        return self._timer is not None

    def set(self, at: float) -> None:
        """Go off at that time, unless it goes off earlier anyway."""
        if self._timer is not None and self._at <= at:
            return
        self.cancel()
        self._at = at
        self._timer = call_later(max(0, at - self._clock()), self._go_off)

    def cancel(self) -> None:
        """Don't go off."""
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()

    def _go_off(self) -> None:
        self._timer = None
        self._on_time()
