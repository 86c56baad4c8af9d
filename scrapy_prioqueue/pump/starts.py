"""Which request starts next, and when those may start whose slots have limits."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import isinf
from typing import Any

from scrapy_prioqueue.frontier.base import Lease
from scrapy_prioqueue.pump.host import Host
from scrapy_prioqueue.pump.inbox import Inbox
from scrapy_prioqueue.pump.leases import Possession
from scrapy_prioqueue.pump.outage import Standby
from scrapy_prioqueue.pump.outbox import Hold
from scrapy_prioqueue.runtime import Alarm


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


class Choice:
    """Takes requests from the inbox and the standby as if they were one queue; at equal rank the inbox goes first.

    Args:
        host: knows which slots have room.
    """

    def __init__(self, inbox: Inbox, standby: Standby[Any], host: Host[Any]) -> None:
        self._inbox = inbox
        self._standby = standby
        self._host = host

    def next_hold(self) -> Hold | None:
        """Remove and return a request that may start now, else one that may wait in the downloader."""
        return self._best(self._may_start, self._host.may_start) or self._best(self._may_wait, self._host.may_wait)

    def _best(self, suits_lease: Callable[[Lease], bool], suits: Callable[[str], bool]) -> Hold | None:
        leased, found = self._inbox.best_rank(), self._standby.best_rank() if self._standby.is_on else None
        if leased is None and found is None:
            return None
        if found is None:
            return self._take_leased(suits_lease)
        takers = [partial(self._take_leased, suits_lease), partial(self._standby.take, suits)]
        if leased is None or found < leased:
            takers.reverse()
        return takers[0]() or takers[1]()

    def _take_leased(self, suits: Callable[[Lease], bool]) -> Hold | None:
        lease = self._inbox.take(suits)
        return None if lease is None else Hold(lease)

    def _may_start(self, lease: Lease) -> bool:
        # What has its time is to be at the site then, not whenever something else lets it.
        is_held_up = lease.late_ms is not None and lease.slot in self._host.held_up()
        return self._host.may_start(lease.slot) and not is_held_up

    def _may_wait(self, lease: Lease) -> bool:
        return lease.late_ms is None and self._host.may_wait(lease.slot)
