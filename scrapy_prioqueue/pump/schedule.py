"""When leases of slots with limits may start, and when it is too late for that."""

from __future__ import annotations

from collections.abc import Callable
from math import isinf
from typing import Any

from scrapy_prioqueue.pump.alarm import Alarm
from scrapy_prioqueue.pump.inbox import Inbox
from scrapy_prioqueue.pump.possession import Possession


class Schedule:
    """Gives notice when a lease may start, and gives back those that could not start in time.

    Args:
        clock: monotonic, in seconds.
        on_turn: what is called when some lease may start or was given back.
    """

    def __init__(
        self,
        inbox: Inbox,
        possession: Possession[Any],
        clock: Callable[[], float],
        on_turn: Callable[[], object],
    ) -> None:
        self._inbox = inbox
        self._possession = possession
        self._alarm = Alarm(clock, self._go_off)
        self._on_turn = on_turn

    def look(self) -> None:
        """Give back what is too late, and see when to look again; whoever adds leases calls it."""
        self._possession.give_back(self._inbox.take_late())
        at = self._inbox.next_turn()
        if not isinf(at):
            self._alarm.set(at)

    def close(self) -> None:
        """Give no more notice."""
        self._alarm.cancel()

    def _go_off(self) -> None:
        self.look()
        self._on_turn()
