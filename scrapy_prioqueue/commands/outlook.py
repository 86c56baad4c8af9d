"""When a crawl will be done: estimated and put into words once, for `status`, the HTML report and the dashboard."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from scrapy_prioqueue.commands.output import duration
from scrapy_prioqueue.frontier.redis.operators.findings import Status

Basis = Literal["nothing left", "stopped", "waiting", "pace", "rates of slots", "unknown"]
"""What the time left is estimated from; or why there is nothing to estimate."""


@dataclass(frozen=True, slots=True)
class Outlook:
    """The time left of a crawl.

    Args:
        left_s: seconds, None if it can't be estimated.
        text: the same in words, empty if it can't be estimated: about 3 min.
        is_growing: more requests are accepted than done.
    """

    basis: Basis
    left_s: float | None = None
    text: str = ""
    is_growing: bool = False


def outlook_of(status: Status) -> Outlook:
    """Return the time left of a crawl that has not ended."""
    state, pace, slots_s = status.state, status.pace, status.rate_left_s
    if not status.left:
        return Outlook("nothing left")
    if state.phase != "open" or "paused" in state.orders or not status.has_workers:
        return Outlook("stopped")
    if status.is_idle:
        return Outlook("waiting")
    if pace.left_s is not None and pace.left_s >= slots_s:
        return Outlook("pace", pace.left_s, f"about {_whole(pace.left_s)}")
    # Requests accepted at the beginning of the time of the rate don't mean that the crawl is growing now.
    is_growing = pace.left_s is None and pace.is_growing
    if slots_s:
        return Outlook("rates of slots", slots_s, f"at least {_whole(slots_s)}", is_growing)
    return Outlook("unknown", is_growing=is_growing)


def _whole(seconds: float) -> str:
    """Return an estimated time without tenths of a second."""
    return duration(seconds) if seconds >= 10 else f"{max(1, round(seconds))} s"
