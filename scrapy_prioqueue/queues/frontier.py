"""The queue over a frontier: turns Scrapy's requests into pushes, and leases into requests, and counts the requests."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from itertools import chain
from math import ceil
from time import monotonic
from typing import Any
from weakref import WeakKeyDictionary

from scrapy import Request, Spider, signals
from scrapy.crawler import Crawler
from scrapy.dupefilters import BaseDupeFilter
from twisted.internet.defer import Deferred

from scrapy_prioqueue.codec import RequestCodec
from scrapy_prioqueue.codec.blanks import twin_of
from scrapy_prioqueue.codec.objects import ObjectCodec
from scrapy_prioqueue.download_slots import SLOT_META, names_slot
from scrapy_prioqueue.dupefilter import DupeFilter, SeenCache, filters_by_frontier
from scrapy_prioqueue.engine import Engine, StatCounter
from scrapy_prioqueue.errors import CrawlEnded, DecodeError, EncodeError, RequestError
from scrapy_prioqueue.frontier.base import (
    ALWAYS_TAKEN,
    Claim,
    DeadLetter,
    Exchanged,
    Frontier,
    Joined,
    Lease,
    Orders,
    Push,
    Recall,
    Release,
    Report,
)
from scrapy_prioqueue.frontier.kept import Kept
from scrapy_prioqueue.frontier.policy import SlotNote
from scrapy_prioqueue.frontier.runs import FleetTotals
from scrapy_prioqueue.logs import CrawlLog
from scrapy_prioqueue.printable import in_a_line
from scrapy_prioqueue.pump.delegate import Trouble
from scrapy_prioqueue.pump.leases import FoundOn
from scrapy_prioqueue.pump.outbox import HeldRequest, Outcome
from scrapy_prioqueue.pump.pump import Pump
from scrapy_prioqueue.queues.base import RequestQueue, pump_config
from scrapy_prioqueue.queues.budgets import Costs, with_label
from scrapy_prioqueue.queues.endings import Endings
from scrapy_prioqueue.queues.events import Events
from scrapy_prioqueue.queues.feeds import Feeds
from scrapy_prioqueue.queues.fleet import FleetLog
from scrapy_prioqueue.queues.idle import Idleness
from scrapy_prioqueue.queues.kept import COOKIEJAR, CookieSessions, KeptQueue, KeptRequest
from scrapy_prioqueue.queues.layers import Layers
from scrapy_prioqueue.queues.lineages import DONT_RECORD_META, LINEAGE_META, Lineages, is_again, is_redirect_to_itself
from scrapy_prioqueue.queues.meta import DELAY_METAS, NO_DELAY, REVISIT_META, Delay, UnknownKeys, delay_of, revisit_of
from scrapy_prioqueue.queues.politeness import Politeness
from scrapy_prioqueue.queues.recording import RunReports
from scrapy_prioqueue.queues.reports import Reports, too_large
from scrapy_prioqueue.queues.siblings import Siblings
from scrapy_prioqueue.queues.slow_pages import SlowPages
from scrapy_prioqueue.queues.starts import OWN_META, Holding, StartRequests, is_once_mark, once_mark
from scrapy_prioqueue.queues.verdicts import Requeue, Verdicts, again_of, note_lost, was_handed_out
from scrapy_prioqueue.runtime import Runner, Timer, call_later
from scrapy_prioqueue.settings import Config
from scrapy_prioqueue.settings.slot_names import ALWAYS_SHORT, why_too_long
from scrapy_prioqueue.signals import frontier_degraded, frontier_recovered, lease_lost, request_not_stored
from scrapy_prioqueue.stats import (
    DEQUEUED_MEMORY_STAT,
    DEQUEUED_REDIS_STAT,
    DEQUEUED_STAT,
    DRAINED_STAT,
    ENQUEUED_MEMORY_STAT,
    ENQUEUED_REDIS_STAT,
    ENQUEUED_STAT,
    LEASE_CLAIMED_STAT,
    LEASE_VOID_STAT,
    REJECTED_STAT,
)
from scrapy_prioqueue.tiers import INHERITED_META, TierPolicy

logger = logging.getLogger(__name__)

CHECK_S = 1.0
"""Seconds between two rounds of the checks that no event starts."""

GIVE_WAY_S = 2.0
"""Seconds for which a worker takes no requests after it has abandoned a page, so that another worker gets that page."""

_TIME_METAS = DELAY_METAS | {REVISIT_META}

_NOT_STORED = frozenset({INHERITED_META, LINEAGE_META, OWN_META}) | DELAY_METAS


class FrontierQueue(RequestQueue):
    """The scheduler's queue over any frontier; it is the pump's delegate.

    Requests that can't be stored stay in a queue of this process, as under Scrapy's disk queue.
    """

    def __init__(
        self,
        crawler: Crawler,
        config: Config,
        dupefilter: BaseDupeFilter,
        frontier: Frontier,
        runner: Runner,
    ) -> None:
        assert crawler.spider is not None and crawler.stats is not None
        assert crawler.request_fingerprinter is not None
        self.spider: Spider = crawler.spider
        self._log = CrawlLog(logger, crawler.spider)
        self._signals, self._counter = crawler.signals, StatCounter(crawler.stats)
        self._config, self._dupefilter = config, dupefilter
        self._filters: DupeFilter | None = dupefilter if filters_by_frontier(dupefilter) else None  # type: ignore[assignment]
        self.engine = Engine(crawler)
        self._slots = self.engine.slots
        self._objects = ObjectCodec(crawler.spider, was_handed_out) if frontier.is_local else None
        self._codec = self._objects or RequestCodec(crawler.spider)
        self._take_found = self._objects.take_found if self._objects else self._codec.decode_found
        self._tiers = TierPolicy(config.tiers, config.default_tier, config.tier_rules)
        self._lineages = Lineages(self._tiers, config.worker_id)
        self._cache = SeenCache(config.seen_cache, config.seen.revisit_s)
        self._starts = StartRequests(crawler.request_fingerprinter.fingerprint, are_marked=config.starts == "once")
        self._kept = KeptQueue(
            is_lifo=config.order == "lifo",
            are_starts_lifo=config.start_order == "lifo",
            may_start=self._slots.may_start,
            may_wait=self._slots.may_wait,
            wake_later=lambda delay_s: call_later(delay_s, self.engine.wake),
            policy=config.policy,
            revisit_s=config.seen.revisit_s,
        )
        self._sessions = CookieSessions(crawler, config, is_shared=not frontier.is_local)
        self._in_progress: dict[int, tuple[Request, Lease]] = {}
        self._siblings = None if frontier.is_local else Siblings(crawler.spider)
        self._unknown_keys = UnknownKeys(crawler.spider)
        self._reported_kept = Kept()
        self._pages: WeakKeyDictionary[Request, Request] = WeakKeyDictionary()
        self._reports = Reports(crawler, config.policy, self.has_pending)
        self._timer: Timer | None = None
        self._gives_way_until = 0.0
        self._closed_for = ""
        self._is_drained = False
        self._holding = Holding(
            self._starts, self._kept, self._lineages, self.engine, self._reports, is_on=config.holds_until_start
        )
        self._enqueued_stat, self._dequeued_stat = (
            (ENQUEUED_MEMORY_STAT, DEQUEUED_MEMORY_STAT)
            if frontier.is_local
            else (ENQUEUED_REDIS_STAT, DEQUEUED_REDIS_STAT)
        )
        self._feeds = Feeds(self.engine, crawler.spider)
        self._storing: Request | None = None
        self._events = Events(crawler, lambda: self._pump.consider())
        self._pump: Pump[Request] = Pump(frontier, runner, self, pump_config(config))
        seeds_keys = () if frontier.is_local else config.seeds_keys
        self._idleness = Idleness(
            crawler, self.engine, self._pump, self._kept, self._events, self._has_requests, seeds_keys
        )
        self._fleet = FleetLog(crawler.spider, self._pump, config.log_interval_s)
        self._slow_pages = SlowPages(crawler, config, self.engine, self._pump, self._lease_of, self._give_up)
        self._run = RunReports(crawler, config, self._pump)
        self._verdicts = Verdicts(crawler, self.engine, config, Layers(crawler, config))
        self._budgets = Costs(crawler, None if frontier.is_local else config.name)
        self._politeness = Politeness(crawler, config, self._slots, self._note)
        self._endings = Endings(
            crawler, config, self.engine, self._verdicts, self._codec, self._pump, self._budgets, self._events
        )

    def join(self) -> Deferred[Joined]:
        """Join the crawl."""
        return self._pump.open().addCallback(self._note_joined)

    def _note_joined(self, joined: Joined) -> Joined:
        self._fleet.begin(joined.depth)
        if joined.depth.done:
            # Scrapy's feeds are set up when they get this signal, before this receiver does.
            self._signals.connect(self._feeds.warn_of_overwritten, signals.spider_opened, weak=False)
        return joined

    def start(self) -> None:
        """Begin to work; call it after `join` has succeeded."""
        self._verdicts.watch()
        if self._config.policy.budgets is not None:
            self._budgets.turn_on()
        self._politeness.watch()
        on_done: Callable[[Request], None] = self._on_done
        if self.engine.feeds and not self._pump.frontier.is_local:
            on_done = self._feeds.flush_before(on_done)
        self.engine.watch_done(on_done)
        self._slots.watch(self._slot_of, self._pump.note_room)
        self.engine.watch_found(self._pages.__setitem__)
        if self._siblings is not None:
            self.engine.watch_results(self._siblings.note_result)
        self.engine.watch_start(self._starts.note, self._pump.gate.wait, self._on_start_end)
        self.engine.spare_waiting(lambda: self._idleness.waited_s)
        self._pump.start(self._slow_pages.at_work)
        self._look()

    def _look(self) -> None:
        """Run the checks that are due once a second."""
        self._timer = call_later(CHECK_S, self._look)
        self._idleness.look()
        self._slow_pages.look()
        self._starts.are_lasting = True
        kept = self.changed_kept()
        if kept is not None:
            self._pump.note(kept)
        self._run.look()
        with self._log.guard("the log line about the whole crawl"):
            self._fleet.look()

    def _note(self, note: SlotNote) -> None:
        """Apply a note about a slot, here and in the frontier."""
        self._kept.note(note)
        self._pump.note(note)

    def _lease_of(self, request: Request) -> Lease | None:
        entry = self._in_progress.get(id(request))
        return None if entry is None else entry[1]

    def _give_up(self, request: Request) -> bool:
        """Abandon a running request; return whether other workers can fetch it, or the page from which it comes."""
        entry = self._in_progress.pop(id(request), None)
        if entry is not None:
            self._pump.finish(Release(entry[1].lease_id, entry[1].attempt))
        self.engine.abandon(request)
        # The roots of a request in this process are released with everything else.
        return not self._pump.frontier.is_local and (entry is not None or bool(self._kept.roots_of(request)))

    # RequestQueue

    def enqueue(self, request: Request) -> bool:
        page = self._pages.pop(request, None)
        try:
            return self._enqueue(request, page)
        except RequestError as error:
            self._log.error("Request rejected: %s", in_a_line(error))
            self.count(REJECTED_STAT)
            return False
        except Exception as error:
            # From the user's fingerprinter or filter. The page must not be acked without its requests.
            note_lost(request, page, error)
            raise

    def _enqueue(self, request: Request, page: Request | None) -> bool:
        if self._holding.is_on and self._holding.takes(request, page):
            self._keep_own(request, page)
            return True
        if self._is_drained and self._is_discovered(request, page):
            self.count(DRAINED_STAT)
            return False
        self._unknown_keys.look(request)
        rank, (delay, revisit_s) = self._tiers.rank(request), self._times_of(request)
        is_filtered = not (request.dont_filter or self._is_redirect_to_itself(request))
        fingerprint = self._fingerprint(request) if is_filtered else None
        is_unrecorded = self._lineages.is_unrecorded(request, page)
        once = once_mark(fingerprint) if is_unrecorded and fingerprint is not None else None
        # Most requests are duplicates, so this is checked before the work for storing one.
        if is_filtered and self._is_seen_here(request, once or fingerprint, revisit_s):
            if fingerprint is not None:
                self._pump.note_duplicate(once or fingerprint, self._found_on(page))
            self._dupefilter.log(request, self.spider)
            return False
        is_start = self._config.start_order is not None and bool(request.meta.get("is_start_request"))
        is_from_start = self._starts.are_coming and self._starts.is_latest(request)
        mark = (self._starts.mark(request, is_filtered=fingerprint is not None) if is_from_start else None) or once
        slot = self._slot_for(request)
        payload = self._payload(request, slot, page, is_from_start=is_from_start)
        if payload is None:
            if fingerprint is not None and not self._kept.is_new(once or fingerprint, revisit_s):
                self._dupefilter.log(request, self.spider)
                return False
            roots = self._roots(request, page, is_from_start=is_from_start)
            self._keep(request, rank, delay, page, is_start=is_start, roots=roots)
            return True
        if self._siblings is not None and page is not None:
            self._siblings.look(request, page)
        fingerprint = None if once else fingerprint
        push = Push(rank, slot, payload, fingerprint, is_start, mark, delay.delay_ms, delay.not_before_ms, revisit_s)
        if is_start and self._config.start_order == "lifo":
            push.is_lifo_start = True
        return self._store(push, request, page)

    def _keep_own(self, request: Request, page: Request | None) -> None:
        """Keep a request in this process that the worker does before it takes shared ones."""
        is_start = self._starts.is_latest(request)
        self._sessions.note_common(request)
        self._keep(request, self._tiers.rank(request), delay_of(request), page, is_start=is_start, roots=())

    def _times_of(self, request: Request) -> tuple[Delay, int | None]:
        """Return when a request may be served, and after how many seconds its fingerprint expires."""
        if _TIME_METAS.isdisjoint(request.meta):
            return NO_DELAY, None
        return delay_of(request), revisit_of(request, self._config.seen)

    def _slot_for(self, request: Request) -> str:
        """Return the slot under which a request is stored.

        Raises:
            RequestError: its name is too long.
        """
        slot = self._slots.slot_of(request)
        if len(slot) > ALWAYS_SHORT and (too_long := why_too_long(slot, is_named=names_slot(request))) is not None:
            raise RequestError(request, too_long)
        return slot

    def _store(self, push: Push, request: Request, page: Request | None) -> bool:
        self._storing = request
        try:
            self._pump.push(push, request, self._found_on(page))
            return self._storing is request
        finally:
            self._storing = None

    def next_request(self) -> Request | None:
        request = self._next_kept() if self._kept.waiting else None
        if request is not None:
            self._idleness.has_worked = True
            self._verdicts.hand_out(request)
            self._lineages.mark_kept(request, self._kept.roots_of(request), is_own=self._holding.is_on)
            self._counter.add(DEQUEUED_STAT, DEQUEUED_MEMORY_STAT)
            return request
        while not self._holding.is_on and (lease := self._pump.take()) is not None:
            request = self._taken(lease)
            if request is not None:
                self._idleness.has_worked = True
                # A request found here in an outage has a negative lease id.
                stat = DEQUEUED_MEMORY_STAT if lease.lease_id < 0 else self._dequeued_stat
                self._counter.add(DEQUEUED_STAT, stat)
                return request
        return None

    def _taken(self, lease: Lease) -> Request | None:
        """Return the request of a lease, None if it can't be decoded."""
        request = None
        try:
            request, found = self._take_found(lease.payload, lease.slot)
            if self._endings.unreadable.is_alert:
                self._endings.unreadable.note_decoded(request)
            self._in_progress[id(request)] = (request, lease)
            self._tiers.mark(request, lease.rank)
            self._lineages.mark(request, lease, found)
            self._verdicts.hand_out(request, self._codec.decode, lease.payload, lease.slot)
        except Exception as error:
            # Any exception must end the lease, since a lease without a running request would be renewed for ever.
            self._in_progress.pop(id(request), None)
            self._endings.unreadable.settle(lease, error)
            return None
        return request

    def _next_kept(self) -> Request | None:
        if self._pump.is_paused:
            return None
        return self._kept.next(None if self._holding.is_on else self._pump)

    def has_pending(self) -> bool:
        if self._starts.are_missing:
            return bool(self._kept) or self._starts.are_coming or self._pump.sees_work
        return bool(self._kept) or not self._pump.has_ended

    def _has_requests(self) -> bool:
        """Return whether requests are waiting, as far as is known; True if the crawl has ended."""
        is_known = self._pump.depth.workers > 0 and not self._pump.has_ended
        return not is_known or len(self) > 0 or not self.has_pending()

    def awaits_request(self) -> bool:
        if not self.engine.reports_empty:
            return False
        # While requests are pending, the end of a running one makes room for the next.
        return self._pump.awaits_answer() or (bool(self.engine.active) and self._pump.depth.pending > 0)

    def note_missing(self) -> None:
        self._starts.are_missing = True

    def close(self, reason: str) -> Deferred[Any]:
        self._closed_for = reason
        if self._timer is not None:
            self._timer.cancel()
        self._in_progress.clear()
        self._slots.close()
        if not self._holding.is_on:
            self._reports.kept_at_close(len(self._kept), self._kept.count_rootless())
        closed: Deferred[Any] = self._pump.close(self._config.close_timeout_s)
        self._run.close()
        closed.addCallback(self._reports.left, self._config.name)
        closed.addCallback(lambda _: self._events.close(self._config.close_timeout_s))
        return closed.addCallback(lambda _: self._dupefilter.close(reason))

    @property
    def pump(self) -> Pump[Request]:
        return self._pump

    @property
    def kept(self) -> int:
        return self._kept.unfinished

    @property
    def outside(self) -> int:
        depth = self._pump.depth
        return 0 if self._pump.frontier.is_local else depth.pending + depth.delayed

    def __len__(self) -> int:
        return len(self._pump) + len(self._kept)

    # Details of enqueuing and dequeuing

    def _fingerprint(self, request: Request) -> bytes | None:
        return None if self._filters is None else self._filters.fingerprint(request)

    def _is_redirect_to_itself(self, request: Request) -> bool:
        if self._filters is None or not request.meta.get("redirect_times"):
            return False
        in_progress = (original for original, _ in self._in_progress.values())
        return is_redirect_to_itself(request, in_progress, self._filters.fingerprint)

    def _found_on(self, page: Request | None) -> FoundOn:
        """Return the lease id of a page, or its roots.

        For an unknown page, return those of all pages that it may be; None stands for all held pages.
        """
        entry = None if page is None else self._in_progress.get(id(page))
        if entry is not None:
            return entry[1].lease_id
        roots = None if page is None else self._kept.roots_of(page)
        if roots is None and self._kept.is_running:
            roots = [*{*self._pump.held.values(), *self._kept.roots_in_progress()}]
        return roots

    def _roots(self, request: Request, page: Request | None, *, is_from_start: bool) -> Sequence[HeldRequest]:
        """Return the pages that aren't acked before a request that stays in this process is done."""
        found_on = () if is_from_start else self._lineages.origin(request) if page is None else None
        is_known = found_on is not None and (not isinstance(found_on, int) or found_on in self._pump.held)
        return self._pump.keep(found_on if is_known else self._found_on(page))

    def _is_seen_here(self, request: Request, fingerprint: bytes | None, revisit_s: int | None) -> bool:
        if self._filters is None:
            return self._dupefilter.request_seen(request)
        return fingerprint is not None and self._cache.knows(fingerprint, revisit_s)

    def _is_discovered(self, request: Request, page: Request | None) -> bool:
        return self._starts.is_latest(request) or (page is not None and not is_again(request, page))

    def _is_in_session(self, request: Request, page: Request | None, *, is_from_start: bool) -> bool:
        """Return whether a request needs cookies that only this worker has."""
        if not self._sessions.are_kept or COOKIEJAR not in request.meta or is_from_start:
            return False
        # Without a page it is a redirect, a retry or from an errback, of some request in progress.
        running = chain((known for known, _ in self._in_progress.values()), self._kept.running())
        return self._sessions.has(request, running if page is None else (page,))

    def _payload(self, request: Request, slot: str, page: Request | None, *, is_from_start: bool) -> bytes | None:
        """Return the payload of a request, None if it stays in this process."""
        if self._is_in_session(request, page, is_from_start=is_from_start):
            self._sessions.note_kept()
            return None
        found = self._lineages.found(request, page)
        without = () if _NOT_STORED.isdisjoint(request.meta) else _NOT_STORED
        if SLOT_META in request.meta and not names_slot(request):
            without = _NOT_STORED | {SLOT_META}
        try:
            payload = self._codec.encode(request, slot, without_meta=without, found=found)
            if len(payload) > ALWAYS_TAKEN and len(payload) > self._pump.frontier.payload_limit:
                raise too_large(payload)
        except EncodeError as error:
            self._note_unstorable(request, error, is_from_start=is_from_start)
            return None
        return with_label(request, payload) if self._budgets.is_on else payload

    def _note_unstorable(self, request: Request, error: EncodeError, *, is_from_start: bool) -> None:
        """Count and log a request that stays in this process, since it can't be stored.

        Raises:
            RequestError: it must not stay in this process.
        """
        self._reports.kept(request, error, is_from_start=is_from_start)
        self._events.send(request_not_stored, request=request, kind=error.kind, reason=str(error))

    def too_large(self, push: Push, tag: Request | None, roots: Sequence[HeldRequest]) -> None:
        assert tag is not None
        mark, delay = push.start_mark, Delay(push.delay_ms, push.not_before_ms)
        is_from_start = mark is not None and not is_once_mark(mark)
        self._note_unstorable(tag, too_large(push.payload), is_from_start=is_from_start)
        if push.fingerprint is not None:
            self._kept.is_new(push.fingerprint, push.revisit_s)
        self._keep(tag, push.rank, delay, is_start=push.is_start, roots=roots)

    def _keep(
        self,
        request: Request,
        rank: int,
        delay: Delay,
        page: Request | None = None,
        *,
        is_start: bool = False,
        roots: Sequence[HeldRequest],
    ) -> None:
        if self._kept.has(request) or was_handed_out(request):
            # The engine can't process one object twice at a time.
            request = twin_of(request)
        copied = () if names_slot(request) else (SLOT_META,)
        for key in (*DELAY_METAS, *copied):
            request.meta.pop(key, None)
        self._lineages.keep(request, page)
        slot = self._slots.slot_of(request)
        self._kept.push(request, rank, is_start=is_start, delay_s=delay.left_s(), roots=roots, slot=slot)
        self._counter.add(ENQUEUED_STAT, ENQUEUED_MEMORY_STAT)
        self._pump.consider()

    # Events of the engine

    def _on_done(self, request: Request) -> None:
        entry = self._in_progress.pop(id(request), None)
        if entry is not None:
            lease = entry[1]
            if self._endings.end(request, lease):
                self._run.coverage.note(lease.slot, lease.rank)
                if self._objects is not None and self._objects.objects:
                    self._objects.forget(lease.payload)
        elif (kept := self._kept.finish(request)) is not None:
            self._reports.done_here += 1
            self._run.coverage.note(kept.slot, kept.rank)
            self._end_kept(request, kept)
            self._pump.let_go(kept.roots)
            self._holding.look()
            self._pump.consider()

    def _end_kept(self, request: Request, kept: KeptRequest) -> None:
        verdict, scheduled = self._verdicts.decide_kept(request), kept.scheduled
        if verdict is None or scheduled is None:
            return
        rank = self._tiers.rank(scheduled)
        if isinstance(verdict, Requeue):
            delay, roots = Delay(ceil(verdict.delay_s * 1000)), self._pump.keep(kept.roots)
            self._keep(again_of(scheduled), rank, delay, roots=roots)
        elif not (self._holding.is_on or self._pump.frontier.is_local):
            found = self._lineages.kept(request)
            self._endings.dead_letter_kept(scheduled, verdict, rank, self._slots.slot_of(scheduled), found)

    def _forget(self, payload: bytes) -> None:
        """Drop the request object of a payload that is no longer needed."""
        if self._objects is not None:
            self._objects.forget(payload)

    def _on_start_end(self, is_used_up: bool) -> None:
        self._starts.end(is_used_up=is_used_up)
        self._holding.look()
        self._pump.consider()

    # The pump's delegate

    def note_outcome(self, outcome: Outcome[Request]) -> None:
        if isinstance(outcome.operation, Claim):
            self._note_claim(outcome)
            return
        if not isinstance(outcome.operation, Push):
            self.count(LEASE_VOID_STAT, outcome.is_void)
            return
        request = outcome.tag
        assert request is not None
        if outcome.is_repeated_start and not is_once_mark(outcome.operation.start_mark):
            self._reports.start_repeated(request)
        elif outcome.is_duplicate or outcome.is_repeated_start:
            self._dupefilter.log(request, self.spider)
        else:
            self._counter.add(ENQUEUED_STAT, self._enqueued_stat)
            return
        self._forget(outcome.operation.payload)
        if request is self._storing:
            # This runs inside of `enqueue_request`, after whose result the engine sends the signal itself.
            self._storing = None
        else:
            self._signals.send_catch_log(signals.request_dropped, request=request, spider=self.spider)

    def _note_claim(self, outcome: Outcome[Request]) -> None:
        """Count claims of requests started in an outage, and of leases that the server had lost."""
        self.count(LEASE_VOID_STAT if outcome.is_void else LEASE_CLAIMED_STAT)
        if outcome.tag is not None:
            self._counter.add(ENQUEUED_STAT, ENQUEUED_MEMORY_STAT)

    def note_answer(self, answer: Exchanged | Joined) -> None:
        if answer.has_budgets:
            self._budgets.turn_on()
        if answer.lost:
            self._reports.lost(answer.lost)
        for letter in answer.dead_letters:
            self._note_buried(letter)
        if answer.has_forgotten:
            self._reports.forgotten()
        for warning in answer.warnings:
            self._reports.warn(warning)
        if isinstance(answer, Exchanged):
            self._note_given_up(answer)

    def _note_given_up(self, answer: Exchanged) -> None:
        if answer.over_budget:
            self._budgets.over(answer.over_budget)
        if answer.letters_dropped:
            name = None if self._pump.frontier.is_local else self._config.name
            self._reports.letters_dropped(answer.letters_dropped, name, self._pump.frontier.config.dead_limit)

    def _note_buried(self, letter: DeadLetter) -> None:
        """Report a request that the frontier has made a dead letter, since it was lost too often."""
        request = self._decoded(letter)
        self._reports.dead_lettered(request, letter)
        self._events.dead_lettered(request, letter.reason, letter.detail, letter_id=letter.lease_id)
        self._forget(letter.payload)

    def _decoded(self, stored: DeadLetter | Lease) -> Request | None:
        try:
            return self._codec.decode(stored.payload, stored.slot)
        except DecodeError:
            return None

    def degraded(self, cause: Trouble, detail: str) -> None:
        self._events.send(frontier_degraded, cause=cause, detail=detail)

    def recovered(self, cause: Trouble, after_s: float) -> None:
        self._events.send(frontier_recovered, cause=cause, after_s=after_s)

    def lost_leases(self, leases: Sequence[Lease], *, are_started: bool) -> None:
        running = {lease.lease_id: request for request, lease in self._in_progress.values()}
        for lease in leases:
            request = running.get(lease.lease_id) or self._decoded(lease)
            self._events.send(lease_lost, request=request, is_started=are_started)

    def ordered(self, orders: Orders) -> None:
        self._is_drained = orders.is_drained
        self._reports.ordered(orders, self._pump.depth.pending)
        if orders.stop_reason is not None:
            self.engine.close_spider(orders.stop_reason)
        self.engine.wake()

    def changed_kept(self) -> Kept | None:
        unfinished = self._kept.unfinished
        states: dict[str, Any] = {
            "has_more_starts": self._starts.are_coming and self._starts.are_lasting,
            "is_paused": self.engine.is_paused,
            "unstorable": self._reports.unstorable,
            "has_handlers": self._events.are_lasting,
        }
        is_none = not (unfinished or any(states.values())) and self._reported_kept == Kept()
        if is_none or self._pump.frontier.is_local or self._holding.is_on:
            return None
        kept = replace(self._pump.kept(unfinished), **states)
        if kept == self._reported_kept:
            return None
        self._reported_kept = kept
        return kept

    def recalled(self, recall: Recall) -> None:
        # Requests that the server has lost may be found again, and must be stored again.
        self._cache.clear()
        self._reports.recalled(recall)

    def lost(self, lease_id: int) -> bool:
        for request, lease in list(self._in_progress.values()):
            if lease.lease_id == lease_id:
                del self._in_progress[id(request)]
                self._reports.lost_slow(request)
                self.engine.abandon(request)
        if self._pump.depth.workers < 2:
            return False
        self._gives_way_until = monotonic() + GIVE_WAY_S
        return True

    def push_of(self, lease: Lease) -> Push:
        try:
            request = self._codec.decode(lease.payload, lease.slot)
        except DecodeError:
            return Push(lease.rank, lease.slot, lease.payload)
        is_filtered = not (request.dont_filter or request.meta.get(DONT_RECORD_META))
        fingerprint = self._fingerprint(request) if is_filtered else None
        is_start = self._config.start_order is not None and bool(request.meta.get("is_start_request"))
        is_lifo_start = is_start and self._config.start_order == "lifo"
        return Push(lease.rank, lease.slot, lease.payload, fingerprint, is_start, is_lifo_start=is_lifo_start)

    def stop(self, why: Exception) -> None:
        self._log.error("Closing: %s", why)
        self.engine.close_spider("finished" if isinstance(why, CrawlEnded) else "prioqueue_rejected")

    def has_own_work(self) -> bool:
        # If `start()` or a filter has raised, the crawl must not end: a later run reads `start()` again and continues.
        has_requests = self._starts.are_coming or self._starts.are_missing or self._kept.unfinished > 0
        return has_requests or not self._events.are_handled

    def free_places(self) -> int:
        takes_none = self._holding.is_on or self._gives_way_until > monotonic()
        return 0 if takes_none else self.engine.free_places()

    def _slot_of(self, request: Request) -> str:
        known = self._in_progress.get(id(request))
        return known[1].slot if known is not None else self._slots.slot_of(request)

    def held_up(self) -> Collection[str]:
        return self._politeness.held_up

    def count(self, stat: str, change: int = 1) -> None:
        if change:
            self._counter.count(stat, change)

    def last_report(self) -> Report | None:
        return self._run.last(self._closed_for)

    def note_totals(self, totals: FleetTotals | None) -> None:
        if totals is not None:
            with self._log.guard("the stats of all workers in the log"):
                self._run.log_totals(totals)
