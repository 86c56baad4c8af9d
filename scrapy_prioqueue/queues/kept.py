"""The queue of requests that stay in this process, as objects, in the frontier's order."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from time import monotonic, time
from typing import TYPE_CHECKING, Any

from scrapy import Request
from scrapy.crawler import Crawler

from scrapy_prioqueue.codec.blanks import twin_of
from scrapy_prioqueue.engine import StatCounter
from scrapy_prioqueue.frontier.base import Order
from scrapy_prioqueue.frontier.memory.limits import SlotLimits
from scrapy_prioqueue.frontier.memory.pending import Delayed, Envelope, Pending, lease_id_of
from scrapy_prioqueue.frontier.memory.seen import SeenSet
from scrapy_prioqueue.frontier.policy import Closing, CrawlDelay, Policy, SlotNote
from scrapy_prioqueue.frontier.seen import NEVER_S
from scrapy_prioqueue.logs import CrawlLog
from scrapy_prioqueue.pump.outbox import HeldRequest
from scrapy_prioqueue.settings import Config
from scrapy_prioqueue.stats import COOKIEJAR_KEPT_STAT

if TYPE_CHECKING:
    from scrapy_prioqueue.pump.pump import Pump

logger = logging.getLogger(__name__)

_NO_POLICY = Policy()


@dataclass(slots=True)
class KeptRequest:
    """A request of this queue.

    Args:
        roots: the leased pages that it comes from, over any number of steps; they are not acked before it is done.
        slot: its download slot.
        running: the request, once it is in progress.
        scheduled: a copy of it as it was scheduled, since middlewares add data for one download only.
    """

    roots: Sequence[HeldRequest]
    slot: str
    rank: int
    running: Request | None = None
    scheduled: Request | None = None


class KeptQueue:
    """`Request` objects in the frontier's order, waiting or in progress.

    The limits of slots are applied to these requests alone: no other worker knows of them.

    Args:
        may_start: returns whether a request of a slot can start now.
        may_wait: returns whether a request of a slot may wait in the downloader, if no other request can start.
        wake_later: called with seconds after which a request may be able to start.
        policy: has the limits of slots.
        revisit_s: seconds after which a fingerprint expires; None for never.
    """

    def __init__(
        self,
        *,
        is_lifo: bool,
        are_starts_lifo: bool = False,
        may_start: Callable[[str], bool] = lambda _: True,
        may_wait: Callable[[str], bool] = lambda _: False,
        wake_later: Callable[[float], object] = lambda _: None,
        policy: Policy = _NO_POLICY,
        revisit_s: int | None = None,
    ) -> None:
        self._order: Order = "lifo" if is_lifo else "fifo"
        self._are_starts_lifo = are_starts_lifo
        self._may_start, self._may_wait, self._wake_later = may_start, may_wait, wake_later
        self._pending = Pending()
        self.waiting: dict[int, Request] = {}
        """Waiting requests, by their ids in the order."""
        self._delayed = Delayed()
        self._kept: dict[int, KeptRequest] = {}
        self._in_progress: dict[int, KeptRequest] = {}
        self._limits = SlotLimits(self._pending.has_slot)
        self._limits.adopt(policy)
        self._has_limits = policy.limits_slots
        self._wakes_at = 0.0
        self._seen = SeenSet()
        self._revisit_s = revisit_s
        self._arrivals = count(1)
        if self._has_limits:
            self._pending.arrange(1, self._limits)

    def push(
        self,
        request: Request,
        rank: int,
        *,
        is_start: bool,
        delay_s: float = 0.0,
        roots: Sequence[HeldRequest] = (),
        slot: str = "",
    ) -> None:
        """Add a new request, to be served after this delay."""
        lease_id = lease_id_of(
            next(self._arrivals), order=self._order, is_start=is_start, is_lifo_start=self._are_starts_lifo
        )
        self._kept[id(request)] = KeptRequest(roots, slot, rank)
        self.waiting[lease_id] = request
        envelope = Envelope(rank, lease_id, 0, b"")
        if delay_s > 0:
            self._delayed.put(int((monotonic() + delay_s) * 1000), slot, envelope)
            self._wake_later(delay_s)
        else:
            self._pending.put(slot, envelope)

    def note(self, note: SlotNote) -> None:
        """Apply a note about a slot."""
        if not self._has_limits and isinstance(note, (Closing, CrawlDelay)):
            self._has_limits = True
            self._pending.arrange(1, self._limits)
            self._limits.count_running(kept.slot for kept in self._in_progress.values())
        if self._has_limits:
            self._limits.note(note, _now_ms())

    def is_new(self, fingerprint: bytes, revisit_s: int | None) -> bool:
        """Add a fingerprint; return whether it was missing or expired.

        The frontier doesn't get these fingerprints, since the pages of such requests may have to be fetched again by
        another worker.

        Args:
            revisit_s: seconds after which it expires; None for the default.
        """
        if revisit_s is None or self._revisit_s is None:
            revisit_s = self._revisit_s
        return self._seen.add(fingerprint, int(time() * 1000), None if revisit_s == NEVER_S else revisit_s)

    def pop(self, other_rank: int | None) -> Request | None:
        """Return the best request that may start, None if there is none or a request of `other_rank` is better."""
        for slot, envelope in self._delayed.take_due(_now_ms(), len(self._delayed)):
            self._pending.put(slot, envelope)
        if self._pending.waiting is not None:
            self._pending.waiting.update_all(_now_ms(), 0)
        best = self._pending.best_rank()
        if best is None or (other_rank is not None and other_rank < best):
            self._wake_when_open()
            return None
        taken = self._pending.take_one(self._may_start) or self._pending.take_one(self._may_wait)
        if taken is None:
            self._wake_when_open()
            return None
        slot, envelope = taken
        if other_rank is not None and other_rank < envelope.rank:
            self._pending.put(slot, envelope)
            return None
        request = self.waiting.pop(envelope.lease_id)
        kept = self._kept[id(request)]
        kept.running, kept.scheduled = request, twin_of(request)
        self._in_progress[id(request)] = kept
        if self._has_limits:
            self._limits.charge(slot, _now_ms())
        return request

    def _wake_when_open(self) -> None:
        """Set a timer that asks for a request when a waiting slot opens."""
        waiting, now_s = self._pending.waiting, monotonic()
        opens_ms = None if waiting is None else waiting.first_opens_ms()
        if opens_ms is None or now_s < self._wakes_at <= opens_ms / 1000:
            return
        self._wakes_at = opens_ms / 1000
        self._wake_later(max(0.001, self._wakes_at - now_s))

    def next(self, pump: Pump[Request] | None) -> Request | None:
        """Return the best request that may start; None if the frontier has, or may soon send, a better one.

        Args:
            pump: the pump of the frontier; None to return a request even if the frontier has a better one.
        """
        if pump is None:
            return self.pop(None)
        return pump.take_other(lambda best: None if best is None and pump.awaits_answer() else self.pop(best))

    def finish(self, request: Request) -> KeptRequest | None:
        """Note that a request is done and return its record; None if it is not from this queue."""
        kept = self._in_progress.pop(id(request), None)
        if kept is not None:
            del self._kept[id(request)]
            if self._has_limits:
                self._limits.discharge(kept.slot)
        return kept

    def has(self, request: Request) -> bool:
        """Return whether this object is in the queue."""
        return id(request) in self._kept

    def roots_of(self, request: Request) -> Sequence[HeldRequest] | None:
        """Return the roots of a request, None if it is not in this queue."""
        kept = self._kept.get(id(request))
        return None if kept is None else kept.roots

    def running(self) -> Iterator[Request]:
        """Yield the requests in progress."""
        return (kept.running for kept in self._in_progress.values() if kept.running is not None)

    def roots_in_progress(self) -> Iterator[HeldRequest]:
        """Yield the roots of the requests in progress."""
        return (root for kept in self._in_progress.values() for root in kept.roots)

    def count_rootless(self) -> int:
        """Return the number of waiting requests without roots."""
        return sum(kept.running is None and not kept.roots for kept in self._kept.values())

    @property
    def is_running(self) -> bool:
        """Whether a request is in progress."""
        return bool(self._in_progress)

    @property
    def unfinished(self) -> int:
        """Number of requests waiting or in progress."""
        return len(self._kept)

    def __len__(self) -> int:
        return len(self.waiting)


def _now_ms() -> int:
    return int(monotonic() * 1000)


COOKIEJAR = "cookiejar"
"""Scrapy's key in `meta` for the cookie jar of a session."""


class CookieSessions:
    """Distinguishes requests that continue a cookie session from first requests, which any worker may fetch.

    Args:
        is_shared: other workers take requests from the same frontier.
    """

    def __init__(self, crawler: Crawler, config: Config, *, is_shared: bool) -> None:
        assert crawler.stats is not None
        self._stats = StatCounter(crawler.stats)
        self._log = CrawlLog(logger, crawler.spider)
        self.are_kept = is_shared and config.cookiejars == "local" and crawler.settings.getbool("COOKIES_ENABLED")
        self._common: list[Any] = []
        self._is_logged = False

    def note_common(self, request: Request) -> None:
        """Note a request that every worker makes, so that every worker has the cookies of its jar."""
        jar = request.meta.get(COOKIEJAR)
        if jar is not None and jar not in self._common:
            self._common.append(jar)

    def has(self, request: Request, pages: Iterable[Request]) -> bool:
        """Return whether a request continues a cookie session.

        Args:
            pages: pages on one of which it was found.
        """
        jar = request.meta.get(COOKIEJAR)
        if jar is None or jar in self._common:
            return False
        return any(page.meta.get(COOKIEJAR) == jar for page in pages)

    def note_kept(self) -> None:
        """Count a request that stays in this process for its session; the first one is logged."""
        self._stats.count(COOKIEJAR_KEPT_STAT)
        if self._is_logged:
            return
        self._is_logged = True
        self._log.info(
            "Requests that continue a session (meta['cookiejar']) stay in the worker that has its cookies. If"
            ' they need no cookies, set PRIOQUEUE_COOKIEJARS = "shared" to let any worker fetch them'
        )
