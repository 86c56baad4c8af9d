"""Which fault happens when: drawn from a seed, several at a time where they don't get into each other's way."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from shop_chaos.faults import FAULTS, Fault, Scene

CALM_S = (0.1, 1.2)
"""Seconds from the beginning of one fault to that of the next."""


@dataclass(frozen=True, slots=True)
class _Active:
    name: str
    fault: Fault
    until: float


class Storm:
    """Lets faults begin and end.

    Args:
        scene: what they happen to.
        names: which may happen.
        say: takes note of each.
    """

    def __init__(self, scene: Scene, names: Sequence[str], say: Callable[[str], None]) -> None:
        self._scene = scene
        self._names = names
        self._say = say
        self._active: list[_Active] = []
        self._next_at = time.monotonic()
        self._changed_at = self._next_at
        self.counts: Counter[str] = Counter()

    @property
    def calm_s(self) -> float:
        """Seconds since the last fault; 0 while one lasts."""
        return 0.0 if self._active else time.monotonic() - self._changed_at

    def blow(self) -> None:
        """End what has lasted long enough, and begin what is due; to be called often."""
        now = time.monotonic()
        for active in [each for each in self._active if each.until <= now]:
            self._end(active)
        if now >= self._next_at:
            self._begin()
            self._next_at = time.monotonic() + self._scene.lottery.uniform(*CALM_S)

    def calm(self) -> None:
        """End everything, at once and for ever."""
        for active in list(self._active):
            self._end(active)
        self._next_at = float("inf")

    def _begin(self) -> None:
        (name,) = self._scene.lottery.choices(self._names, [FAULTS[each].weight for each in self._names])
        fault = FAULTS[name](self._scene)
        # One at a time of each kind, as the end of one would end the other; and of those that the server suffers from.
        if any(active.name == name and name not in ("kill", "stop") for active in self._active):
            return
        if fault.needs_server and not self._scene.server_is_free:
            return
        what = fault.begin()
        if what is None:
            return
        self.counts[name] += 1
        self._changed_at = time.monotonic()
        duration_s = self._scene.lottery.uniform(*fault.lasts_s)
        self._say(f"{name}: {what}, for {duration_s:.1f} s")
        self._active.append(_Active(name, fault, time.monotonic() + duration_s))
        self._scene.server_is_free &= not fault.needs_server
        self._scene.server_answers &= not fault.silences_server

    def _end(self, active: _Active) -> None:
        self._active.remove(active)
        active.fault.end()
        self._changed_at = time.monotonic()
        self._say(f"{active.name} is over")
        self._scene.server_is_free |= active.fault.needs_server
        self._scene.server_answers |= active.fault.silences_server
