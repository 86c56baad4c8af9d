"""Reads the times in a request's `meta`, and checks which keys may be there and who may set them."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from math import ceil
from time import time
from typing import Any

from scrapy import Request, Spider

from scrapy_prioqueue.codec.reasons import brief
from scrapy_prioqueue.errors import RequestError
from scrapy_prioqueue.frontier.seen import NEVER_S, SeenPolicy
from scrapy_prioqueue.hints import did_you_mean
from scrapy_prioqueue.logs import CrawlLog
from scrapy_prioqueue.printable import in_a_line
from scrapy_prioqueue.queues.budgets import BUDGET_META, RENDER_META
from scrapy_prioqueue.queues.layers import ESCALATION_META, LAYER_KEPT_META
from scrapy_prioqueue.queues.lineages import CONFIDENCE_META, DONT_RECORD_META
from scrapy_prioqueue.queues.starts import OWN_META
from scrapy_prioqueue.queues.verdicts import REQUEUES_META
from scrapy_prioqueue.settings import LAYER_META
from scrapy_prioqueue.tiers import INHERITED_META, TIER_META

logger = logging.getLogger(__name__)

DELAY_META = "prioqueue_delay"
"""Key in `meta`: delay of the request in seconds, a number or a `timedelta`."""

NOT_BEFORE_META = "prioqueue_not_before"
"""Key in `meta`: time before which the request is not served, an aware `datetime` or a Unix time in seconds."""

DELAY_METAS = frozenset({DELAY_META, NOT_BEFORE_META})

LONGEST_S = 2**40
"""Longest valid time, about 35,000 years; a longer one is certainly a mistake."""


@dataclass(frozen=True, slots=True)
class Delay:
    """When a request may be served, with the fields of `Push`."""

    delay_ms: int = 0
    not_before_ms: int = 0

    def left_s(self) -> float:
        """Return the seconds until then, by this machine's clock."""
        return max(self.delay_ms, self.not_before_ms - time() * 1000, 0) / 1000


NO_DELAY = Delay()


def delay_of(request: Request) -> Delay:
    """Return when a request may be served.

    Raises:
        RequestError: the value of a key isn't a valid time.
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
    # A time in the past means now.
    return max(0, ceil(seconds * 1000))


def _delay_s(value: Any, what: str = "a number of seconds or a timedelta") -> float:
    return value.total_seconds() if isinstance(value, timedelta) else _number(value, what)


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


REVISIT_META = "prioqueue_revisit_after"
"""Key in `meta`: seconds, a number or a `timedelta`, after which the request counts as new again; None for never."""


def revisit_of(request: Request, policy: SeenPolicy | None = None) -> int | None:
    """Return the seconds after which the fingerprint of a request expires; None for the frontier's default.

    Args:
        policy: of the frontier, if known.

    Raises:
        RequestError: the value isn't a valid time, or the frontier stores no times.
    """
    if REVISIT_META not in request.meta:
        return None
    value = request.meta[REVISIT_META]
    keeps_times = policy is None or policy.revisit_s is not None
    if value is None:
        # Without times no fingerprint ever expires.
        return NEVER_S if keeps_times else None
    if not keeps_times:
        why = "can't be used: what was seen is remembered without times; set PRIOQUEUE_REVISIT_AFTER, -1 for never"
        raise RequestError(request, f"meta[{REVISIT_META!r}] = {value!r} {why}")
    try:
        seconds = _delay_s(value, "a number of seconds, a timedelta, or None for never")
        if not seconds >= 0:
            raise ValueError("it must be 0 or more, or None for never")
    except (TypeError, ValueError) as error:
        raise RequestError(request, f"meta[{REVISIT_META!r}] = {value!r} can't be used: {error}") from None
    return ceil(min(seconds, NEVER_S))


PREFIX = "prioqueue_"
"""Prefix of our keys in `meta`; no other key may begin with it."""

USERS_METAS = (
    *(TIER_META, DELAY_META, NOT_BEFORE_META, REVISIT_META, DONT_RECORD_META, OWN_META, CONFIDENCE_META),
    *(BUDGET_META, RENDER_META, LAYER_META),
)
"""Keys that other programs may set."""

INTERNAL_METAS = (INHERITED_META, REQUEUES_META, ESCALATION_META, LAYER_KEPT_META)
"""Keys that other programs must not set, since the scheduler trusts their values."""


def rejection_of_meta(meta: Mapping[Any, Any]) -> str | None:
    """Return why a request from another program may not have this `meta`, None if it may."""
    for key in meta:
        if isinstance(key, str) and key.startswith(PREFIX) and key not in USERS_METAS:
            if key in INTERNAL_METAS:
                return f"meta[{key!r}] is set by the scheduler only; leave it out"
            return _unknown(key)
    slot = meta.get("download_slot")
    return f"meta['download_slot'] must be a string, not {brief(slot)}" if isinstance(slot, (list, dict)) else None


def _unknown(key: str) -> str:
    question = did_you_mean(key, USERS_METAS, prefix=PREFIX)
    return f"meta[{brief(key)}] is no key of the scheduler; {question or 'no other key begins with ' + PREFIX}"


_MOST_KEYS = 1000


class UnknownKeys:
    """Logs keys in `meta` that begin as the scheduler's but are none of them, each once."""

    def __init__(self, spider: Spider) -> None:
        self._log = CrawlLog(logger, spider)
        self._looked_at: set[Any] = {*USERS_METAS, *INTERNAL_METAS}

    def look(self, request: Request) -> None:
        """Check the keys of a request, up to a thousand different ones in all."""
        if not self._looked_at.issuperset(request.meta):
            self._note(request)

    def _note(self, request: Request) -> None:
        for key in request.meta.keys() - self._looked_at:
            if len(self._looked_at) > _MOST_KEYS:
                return
            self._looked_at.add(key)
            if isinstance(key, str) and key.startswith(PREFIX):
                self._log.warning("%s (logged once for each key; %s)", _unknown(key), in_a_line(request))
