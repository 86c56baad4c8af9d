"""Clocks that tests set; those of virtual time are in `tests.unit.virtual_time`."""

from __future__ import annotations


class Clock:
    """Stands still until it is advanced or set; in seconds."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        """Go on."""
        self.now += seconds


class UnixClock:
    """The same in milliseconds of Unix time, as frontiers count."""

    def __init__(self) -> None:
        self.now_ms = 1_700_000_000_000

    def __call__(self) -> int:
        return self.now_ms

    def advance(self, seconds: float) -> None:
        """Go on."""
        self.now_ms += round(seconds * 1000)
