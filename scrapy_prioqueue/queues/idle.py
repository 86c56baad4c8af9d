"""A worker without work: sends `spider_idle`, and logs what it is waiting for."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from time import monotonic
from typing import NamedTuple

from scrapy import Request, Spider, signals
from scrapy.crawler import Crawler
from scrapy.exceptions import CloseSpider, DontCloseSpider
from twisted.python.failure import Failure

from scrapy_prioqueue.engine import Engine
from scrapy_prioqueue.frontier.waits import MOST_LOOKED_AT, Blocked, Holder, SlotWait, SlowPage, Waits
from scrapy_prioqueue.hints import evict_command, frontier_command
from scrapy_prioqueue.logs import CrawlLog
from scrapy_prioqueue.printable import counted, in_a_line
from scrapy_prioqueue.pump.pump import Pump
from scrapy_prioqueue.queues.events import Events
from scrapy_prioqueue.queues.kept import KeptQueue

logger = logging.getLogger(__name__)


SIGNAL_S = 5.0
"""Seconds between two signals of a worker that stays idle, as between two heartbeats of Scrapy's engine."""


class Idleness:
    """Checks once a second whether this worker is idle; then logs why, and sends `spider_idle`.

    The engine sends the signal itself at the end of the crawl.

    Args:
        has_requests: returns whether requests are waiting, here or in the frontier, as far as is known. If so, no
            signal is sent, as in Scrapy.
        seeds_keys: keys of seeds that this worker reads.
    """

    def __init__(
        self,
        crawler: Crawler,
        engine: Engine,
        pump: Pump[Request],
        kept: KeptQueue,
        events: Events,
        has_requests: Callable[[], bool],
        seeds_keys: Sequence[str],
    ) -> None:
        assert crawler.spider is not None
        self._crawler = crawler
        self._reasons = IdleReasons(crawler.spider, engine, pump, kept, events, seeds_keys)
        self._engine = engine
        self._has_requests = has_requests
        self._looked_at = monotonic()
        self._signalled_at: float | None = None
        self.has_worked = False
        """A request was given to the engine since the last check."""
        self.since: float | None = None
        """Time since which no request has been in progress here, None if one is."""
        self.waited_s = 0.0
        """Total seconds without work."""

    def look(self) -> None:
        """Run the check; call it once a second."""
        self._look()
        self._reasons.look(self.since)

    def _look(self) -> None:
        now, looked_at = monotonic(), self._looked_at
        self._looked_at = now
        has_worked, self.has_worked = self.has_worked, False
        if has_worked or not self._engine.is_at_rest:
            self.since = None
            return
        self.since = looked_at if self.since is None else self.since
        self.waited_s += now - looked_at
        if self._is_due(now, self.since) and self._engine.may_signal_idle and not self._has_requests():
            self._signalled_at = now
            self._signal()

    def _is_due(self, now: float, since: float) -> bool:
        last = self._signalled_at
        return last is None or last < since or now - last >= SIGNAL_S

    def _signal(self) -> None:
        """Send the signal, in which the spider may add requests, or close this worker with its own reason."""
        expected = (DontCloseSpider, CloseSpider)
        results = self._crawler.signals.send_catch_log(
            signals.spider_idle, spider=self._crawler.spider, dont_log=expected
        )
        raised = [result.value for _, result in results if isinstance(result, Failure)]
        closings = [error for error in raised if isinstance(error, CloseSpider)]
        if closings and not any(isinstance(error, DontCloseSpider) for error in raised):
            self._engine.close_spider(closings[-1].reason)


WAIT_S = 10.0
"""Seconds without work after which a worker logs the reasons; also seconds between two checks for changed reasons."""

REPEAT_S = 60.0
"""Minimum seconds between two log lines with the same reasons, if the worker had work in between."""

SILENT_S = 10.0
"""Minimum seconds without contact of another worker that are mentioned; a living one has contact every few seconds."""

MOST_HOLDERS = 3
"""Maximum number of other workers that are named."""


class Awaited(NamedTuple):
    """One thing that the worker is waiting for.

    Args:
        key: identifies the reason; it stays the same when times and numbers in the text change.
        text: follows "waiting for".
    """

    key: str
    text: str


class IdleReasons:
    """Logs the reasons once a worker has been without work for `WAIT_S`, and again when they change."""

    def __init__(
        self,
        spider: Spider,
        engine: Engine,
        pump: Pump[Request],
        kept: KeptQueue,
        events: Events,
        seeds_keys: Sequence[str],
    ) -> None:
        self._log = CrawlLog(logger, spider)
        self._engine = engine
        self._pump = pump
        self._kept = kept
        self._events = events
        self._seeds_keys = seeds_keys
        self._asked_at = 0.0
        self._logged: frozenset[str] = frozenset()
        self._logged_at = 0.0
        self._logged_since = 0.0

    def look(self, since: float | None) -> None:
        """Find and log the reasons if that is due.

        Args:
            since: when the worker became idle, by the monotonic clock; None if it has work.
        """
        now = monotonic()
        if since is None or now - max(since, self._asked_at) < WAIT_S or self._engine.is_closing:
            return
        self._asked_at = now
        if self._pump.is_away:
            self._report(
                [Awaited("server", f"the server at {self._pump.frontier.address}, which can't be used now")], since
            )
        else:
            self._pump.ask(self._pump.frontier.waits, lambda waits: self._on_waits(waits, since))

    def _on_waits(self, waits: Waits, since: float) -> None:
        reasons = [*self._own_reasons(), *reasons_of(waits, self._pump.frontier.config.name)]
        self._report(reasons or [self._last_resort(waits)], since)

    def _own_reasons(self) -> Iterator[Awaited]:
        if self._engine.is_paused:
            yield Awaited("engine", "engine.unpause(), since the engine of this worker is paused")
        if self._pump.is_full:
            yield Awaited(
                "memory", f"free memory on the server, to store {_requests(self._pump.outbox.pushes)} found here"
            )
        if len(self._kept):
            what = counted(len(self._kept), "request that stays", "requests that stay")
            yield Awaited("own", f"{what} in this process, until its time comes")
        if not self._events.are_handled:
            yield Awaited("handlers", "handlers of this package's signals in the project, which are still running")
        if self._engine.reads_start and not self._pump.is_paused:
            is_open = self._pump.gate.is_open
            what = (
                "start() to yield more requests"
                if is_open
                else f"room in the frontier before it reads start() further{self._limit()}"
            )
            yield Awaited(f"start {is_open}", what)

    def _limit(self) -> str:
        policy, pending = self._pump.frontier.config.policy, self._pump.depth.pending
        is_at_limit = 0 < policy.pending_limit <= pending
        waiting = counted(pending, "request waits", "requests wait")
        return f" ({waiting}, PRIOQUEUE_PENDING_LIMIT = {policy.pending_limit})" if is_at_limit else ""

    def _last_resort(self, waits: Waits) -> Awaited:
        if waits.pending and self._pump.frontier.is_local:
            return Awaited("pending", f"the slots of {_requests(waits.pending)} pending")
        if waits.pending:
            what = "'scrapy frontier explain URL' and 'scrapy frontier slots' say why one isn't served"
            return Awaited("pending", f"a share of {_requests(waits.pending)} pending; {what}")
        seeds = f"seeds in {' or '.join(self._seeds_keys)}, " if self._seeds_keys else ""
        return Awaited("pushes", f"{seeds}pushed requests or PRIOQUEUE_MAX_IDLE, since nothing is left")

    def _report(self, reasons: Sequence[Awaited], since: float) -> None:
        keys, now = frozenset(reason.key for reason in reasons), monotonic()
        is_same = keys == self._logged and (since == self._logged_since or now - self._logged_at < REPEAT_S)
        self._logged_since = since
        if is_same:
            return
        self._logged, self._logged_at = keys, now
        text = in_a_line("; ".join(reason.text for reason in reasons))
        self._log.info("Nothing to do for %d s: waiting for %s", now - since, text)


def reasons_of(waits: Waits, frontier: str) -> Iterator[Awaited]:
    """Yield the reasons why the frontier has nothing for a worker."""
    if waits.is_paused:
        yield Awaited(
            "paused", f"an operator, who has paused the crawl ('{frontier_command('resume', frontier)}' resumes it)"
        )
    yield from holder_reasons(waits, frontier)
    for worker in waits.busy[:MOST_HOLDERS]:
        blocked = waits.blocked.get(worker)
        what = "which reads start(), has requests of its own, or waits for more"
        if blocked is not None:
            what = f"{_blocked_text(blocked)} ('{evict_command(worker, frontier)}' lets the crawl continue without it)"
        yield Awaited(f"busy {worker} {blocked is not None}", f"worker {worker}, {what}")
    if waits.delayed:
        first = "the first " if waits.delayed > 1 else ""
        text = f"{counted(waits.delayed, 'delayed request')}, {first}due in {_seconds(waits.due_in_s)}"
        yield Awaited("delayed", text)
    for slot in waits.first_slots:
        yield _slot_reason(slot)
    if more := waits.slots - len(waits.first_slots):
        last = f"the last of which opens in {_seconds(waits.last_opens_in_s)}"
        yield Awaited("slots", f"{counted(more, 'more slot')}, {last}")
    if waits.full_slots:
        yield Awaited("full", f"{counted(waits.full_slots, 'slot')} at full concurrency, until a request there is done")


def holder_reasons(waits: Waits, frontier: str) -> Iterator[Awaited]:
    """Yield the other workers that hold requests, and until when."""
    for holder in waits.holders[:MOST_HOLDERS]:
        yield Awaited(_holder_key(holder), _holder_text(holder, frontier))
    rest = waits.holders[MOST_HOLDERS:]
    if rest:
        named = sum(holder.leases for holder in waits.holders[:MOST_HOLDERS])
        is_sample = waits.leased > MOST_LOOKED_AT
        more = waits.leased - named if is_sample else sum(holder.leases for holder in rest)
        workers = f"{len(rest)}{' or more' if is_sample else ''} other worker{'' if len(rest) == 1 else 's'}"
        yield Awaited("holders", f"{_requests(more)} leased by {workers}")


def _holder_key(holder: Holder) -> str:
    is_silent = holder.heard_s > SILENT_S
    is_blocked = holder.blocked is not None
    return f"leases {holder.worker} {is_silent} {is_blocked} {[page.lease_id for page in holder.slow]}"


def _holder_text(holder: Holder, frontier: str) -> str:
    who = f"worker {holder.worker}" + (f" at {holder.host}" if holder.host else "")
    leases = "its lease expires" if holder.leases == 1 else "their leases expire"
    text = f"{_requests(holder.leases)} leased by {who}"
    if holder.heard_s > SILENT_S:
        text += f", without contact for {_seconds(holder.heard_s)}"
    if holder.expires_in_s > 0:
        text += f" ({leases} within {_seconds(holder.expires_in_s)} unless renewed)"
    else:
        text += " (expired, and given to others now)"
    if holder.blocked is not None:
        text += f", {_blocked_text(holder.blocked)}"
        text += f" ('{evict_command(holder.worker, frontier)}' gives all its requests to others)"
    for page in holder.slow[:1]:
        text += f", {slow_text(page, frontier)}"
    return text


def _blocked_text(blocked: Blocked) -> str:
    return f"whose event loop has been blocked for {_seconds(blocked.age_s)}, {blocked.where}"


def slow_text(page: SlowPage, frontier: str) -> str:
    """Return a text about a page that may never end, and what to do."""
    return (
        f"which has been at {page.url} for {_seconds(page.age_s)}, now in {page.stage}"
        f" ('{frontier_command(f'release {page.lease_id}', frontier)}' gives that page to others)"
    )


def _slot_reason(slot: SlotWait) -> Awaited:
    why = "closed by Retry-After" if slot.is_closed else "held back by its limits"
    return Awaited(f"slot {slot.slot} {slot.is_closed}", f"slot {slot.slot}, {why} for {_seconds(slot.opens_in_s)}")


def _requests(number: int) -> str:
    return counted(number, "request")


def _seconds(seconds: float) -> str:
    return f"{max(0.0, seconds):,.0f} s"
