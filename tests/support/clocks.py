"""Clocks that tests set; those of virtual time are in `tests.unit.virtual_time`."""

from __future__ import annotations


class Clock:
    """Stands still until it is told to go on, or set; in seconds."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        """Go on."""
        self.now += seconds
