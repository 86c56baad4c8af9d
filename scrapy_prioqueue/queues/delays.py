"""What a request's `meta` says about when it may be served."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from math import ceil
from time import time
from typing import Any

from scrapy import Request

from scrapy_prioqueue.errors import RequestError

DELAY_META = "prioqueue_delay"
"""Key in `meta`: seconds for which the request is kept back, a number or a `timedelta`."""

NOT_BEFORE_META = "prioqueue_not_before"
"""Key in `meta`: moment before which it is not served, an aware `datetime` or a Unix time in seconds."""

DELAY_METAS = frozenset({DELAY_META, NOT_BEFORE_META})

LONGEST_S = 2**40
"""Some 35,000 years; what is beyond that is no time but a mistake."""


@dataclass(frozen=True, slots=True)
class Delay:
    """When a request may be served, in the terms of `Push`."""

    delay_ms: int = 0
    not_before_ms: int = 0

    def left_s(self) -> float:
        """Return how many seconds there are until then, by this machine's clock."""
        return max(self.delay_ms, self.not_before_ms - time() * 1000, 0) / 1000


NO_DELAY = Delay()


def delay_of(request: Request) -> Delay:
    """Return when a request may be served.

    Raises:
        RequestError: one of the keys has a value that is no time.
    """
    meta = request.meta
    if DELAY_META not in meta and NOT_BEFORE_META not in meta:
        return NO_DELAY
    return Delay(_read(request, meta, DELAY_META, _delay_s), _read(request, meta, NOT_BEFORE_META, _moment_s))


def _read(request: Request, meta: Mapping[str, Any], key: str, read: Any) -> int:
    value = meta.get(key)
    if value is None:
        return 0
    try:
        seconds = float(read(value))
        if not abs(seconds) <= LONGEST_S:
            raise ValueError("it is out of range")
    except (TypeError, ValueError, OverflowError) as error:
        raise RequestError(request, f"meta[{key!r}] = {value!r} can't be used: {error}") from None
    # A moment that has passed, and what is left until then, is now.
    return max(0, ceil(seconds * 1000))


def _delay_s(value: Any) -> float:
    if isinstance(value, timedelta):
        return value.total_seconds()
    return _number(value, "a number of seconds or a timedelta")


def _moment_s(value: Any) -> float:
    if isinstance(value, datetime):
        if value.utcoffset() is None:
            raise ValueError("it has no time zone; give it one, such as datetime.now(timezone.utc)")
        return value.timestamp()
    return _number(value, "a datetime with a time zone or a Unix time in seconds")


def _number(value: Any, what: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"it must be {what}")
    return value
