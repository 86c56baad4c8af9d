"""Putting a request back from a callback."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from scrapy.http import Response

from scrapy_prioqueue.queues import verdicts
from scrapy_prioqueue.queues.meta import LONGEST_S
from scrapy_prioqueue.queues.verdicts import Requeue


def requeue(response: Response, delay: float | timedelta = 0, reason: str = "") -> Any:
    """Put the request of a response back, to be fetched again by any worker.

    Use it in callbacks, also as ``yield requeue(…)`` or ``return requeue(…)``. When the page is done, its request is
    stored again unchanged, with its rank, and ``meta["prioqueue_requeue_times"]`` is increased. After
    `PRIOQUEUE_REQUEUE_LIMIT` times the request becomes a dead letter. Other results of the callback are used as usual.

    Args:
        delay: seconds until the request may be fetched.
        reason: for the log and the dead letter.

    Returns:
        None, always.

    Raises:
        ValueError: the delay is invalid, or the request of the response is not in progress.
    """
    delay_s = delay.total_seconds() if isinstance(delay, timedelta) else float(delay)
    if not 0 <= delay_s <= LONGEST_S:
        raise ValueError(f"requeue() with a delay of {delay!r}: it must be a number of seconds >= 0")
    request = verdicts.in_progress(response)
    if request is None:
        raise ValueError(
            f"requeue() of {response!r}: it belongs to no request in progress of scrapy_prioqueue.Scheduler"
        )
    verdicts.note_verdict(request, Requeue(delay_s, str(reason)))
    return None
