"""A request that this worker works on, whatever happens to its lease meanwhile; plain data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from scrapy_prioqueue.frontier.base import Lease


@dataclass(slots=True, eq=False)
class Hold:
    """A request that was handed to this worker.

    Args:
        lease: under which it is held; replaced when a claim gives it another one.
        is_claiming: the frontier has not agreed to the lease yet; what settles it waits until it has.
        is_void: the frontier has not agreed: the request is done, or another worker has it. Nothing settles it.
        uncut_children: requests that may have been found on its page and are in no batch yet; its ack waits for them.
        kept: requests of this process only that may have been found on its page, or on one that such a request has led
            to, and are not done yet; its ack waits for them, too.
        roots: pages that wait for this request, which is worked on without a lease; it is among their `kept`.
        is_slow: it may never end, so that it is given up where its lease is lost.
        started_at: when it was handed out, by the clock of the pump.
    """

    lease: Lease
    is_claiming: bool = False
    is_void: bool = False
    uncut_children: int = 0
    kept: int = 0
    roots: Sequence[Hold] = ()
    is_slow: bool = False
    started_at: float = 0.0

    @property
    def token(self) -> tuple[int, int]:
        """What the frontier knows the lease by."""
        return self.lease.lease_id, self.lease.attempt

    @property
    def is_leased(self) -> bool:
        """The frontier knows of the lease, as far as is known here."""
        return not (self.is_claiming or self.is_void)
