"""Chooses the request to start next: the best leased one or, in an outage, the best one found here."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from scrapy_prioqueue.frontier.base import Lease
from scrapy_prioqueue.pump.holds import Hold
from scrapy_prioqueue.pump.host import Host
from scrapy_prioqueue.pump.inbox import Inbox
from scrapy_prioqueue.pump.standby import Standby


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
