"""How something that was never in the frontier becomes a dead letter: it is claimed and failed, handed to nobody."""

from __future__ import annotations

from typing import TypeVar

from scrapy_prioqueue.frontier.base import Fail, Lease, Push
from scrapy_prioqueue.pump.holds import Hold
from scrapy_prioqueue.pump.outbox import Outbox

Tag = TypeVar("Tag")

UNKNOWN_ID = 0
"""Of a lease that the frontier has yet to give an id; an outbox fills it in."""


def bury(outbox: Outbox[Tag], push: Push, reason: str, detail: str, traceback: str = "") -> None:
    """Put a dead letter into the outbox; once the claim is settled it can't be lost."""
    hold = Hold(Lease(UNKNOWN_ID, 1, push.rank, push.slot, push.payload))
    outbox.begin(outbox.push(push, None), hold)
    outbox.settle(Fail(UNKNOWN_ID, 1, reason, detail, traceback), hold)
