"""What a request's `meta` says about when it counts as new again."""

from __future__ import annotations

from datetime import timedelta
from math import ceil
from typing import Any

from scrapy import Request

from scrapy_prioqueue.errors import RequestError
from scrapy_prioqueue.frontier.seen import NEVER_S, SeenPolicy

REVISIT_META = "prioqueue_revisit_after"
"""Key in `meta`: seconds, a number or a `timedelta`, after which the request counts as new again; None for never."""


def revisit_of(request: Request, policy: SeenPolicy | None = None) -> int | None:
    """Return the seconds after which a request counts as new again; None for the frontier's default.

    Args:
        policy: what the frontier remembers, where that is known.

    Raises:
        RequestError: the value is no such time, or the frontier keeps no times.
    """
    if REVISIT_META not in request.meta:
        return None
    value = request.meta[REVISIT_META]
    keeps_times = policy is None or policy.revisit_s is not None
    if value is None:
        # Without times nothing is ever new again.
        return NEVER_S if keeps_times else None
    if not keeps_times:
        why = "can't be used: what was seen is remembered without times; set PRIOQUEUE_REVISIT_AFTER, -1 for never"
        raise RequestError(request, f"meta[{REVISIT_META!r}] = {value!r} {why}")
    try:
        seconds = _seconds(value)
        if not seconds >= 0:
            raise ValueError("it must be 0 or more, or None for never")
    except (TypeError, ValueError) as error:
        raise RequestError(request, f"meta[{REVISIT_META!r}] = {value!r} can't be used: {error}") from None
    return ceil(min(seconds, NEVER_S))


def _seconds(value: Any) -> float:
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError("it must be a number of seconds, a timedelta, or None for never")
    return value
