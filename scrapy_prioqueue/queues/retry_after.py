"""What a response says of when it may be asked for again; nothing else lives here."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime
from time import time

from scrapy.http import Response

RETRY_AFTER_CODES = frozenset({429, 503})
"""Status codes whose `Retry-After` is respected."""


def retry_after_s(response: Response, cap_s: float, now: Callable[[], float] = time) -> float:
    """Return how many seconds a server wants to be left alone, at most `cap_s`; 0 if it doesn't say.

    A date counts from the `Date` of the response, where there is one, so that clocks need not agree.
    """
    if response.status not in RETRY_AFTER_CODES:
        return 0.0
    value = _header(response, "Retry-After")
    if value.isascii() and value.isdigit():
        wanted = float(value[:12])
    else:
        until = _date(value)
        wanted = 0.0 if until is None else until - (_date(_header(response, "Date")) or now())
    return min(max(wanted, 0.0), cap_s)


def _header(response: Response, name: str) -> str:
    return (response.headers.get(name) or b"").decode("latin-1").strip()


def _date(value: str) -> float | None:
    try:
        date: datetime = parsedate_to_datetime(value)
        # A date in GMT has no time zone here if it says "-0000".
        return (date if date.tzinfo else date.replace(tzinfo=timezone.utc)).timestamp()
    except (TypeError, ValueError, OverflowError, IndexError):
        return None
