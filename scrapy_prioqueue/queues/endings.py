"""Ends the leases of requests that are done, according to their verdicts."""

from __future__ import annotations

import logging
from collections import Counter
from math import ceil

from scrapy import Request
from scrapy.crawler import Crawler

from scrapy_prioqueue.codec import RequestCodec
from scrapy_prioqueue.codec.lineage import Found
from scrapy_prioqueue.engine import Engine, StatCounter
from scrapy_prioqueue.errors import DecodeError, EncodeError, RequestError
from scrapy_prioqueue.frontier.base import DEAD_BY_DOWNLOAD, Ack, Fail, Lease, Push, Release
from scrapy_prioqueue.frontier.labels import label_of, labelled
from scrapy_prioqueue.logs import CrawlLog, dead_letter
from scrapy_prioqueue.printable import in_a_line
from scrapy_prioqueue.pump.outbox import push_dead_letter
from scrapy_prioqueue.pump.pump import Pump
from scrapy_prioqueue.queues.budgets import Costs, with_label
from scrapy_prioqueue.queues.events import Events
from scrapy_prioqueue.queues.reports import too_large
from scrapy_prioqueue.queues.unreadable import Unreadable
from scrapy_prioqueue.queues.verdicts import Dead, Dropped, Requeue, Verdicts, again_of
from scrapy_prioqueue.settings import Config
from scrapy_prioqueue.stats import DEAD_STATS, LEASE_RELEASED_STAT

logger = logging.getLogger(__name__)

MOST_DROPS = 10
"""How often the engine of a worker that isn't closing may drop a request before its download."""


class Endings:
    """Settles the leases of requests that are done."""

    def __init__(
        self,
        crawler: Crawler,
        config: Config,
        engine: Engine,
        verdicts: Verdicts,
        codec: RequestCodec,
        pump: Pump[Request],
        budgets: Costs,
        events: Events,
    ) -> None:
        assert crawler.stats is not None
        self._stats = StatCounter(crawler.stats)
        self._log = CrawlLog(logger, crawler.spider)
        self._verdicts = verdicts
        self._codec = codec
        self._pump = pump
        self._budgets = budgets
        self._events = events
        self.unreadable = Unreadable(crawler, engine, pump, config.name, events)
        self._dead_on = config.dead_letter_on
        self._engine = engine
        self._drops: Counter[int] = Counter()

    def end(self, request: Request, lease: Lease) -> bool:
        """End the lease of a request that is done, according to its verdict; False if the lease was only released."""
        verdict = self._verdicts.decide(request)
        if isinstance(verdict, Requeue):
            try:
                self._put_back(lease, verdict)
            except (DecodeError, EncodeError) as error:
                # The user's request class can't always be built. A released request is fetched again, too.
                self._log.error("%s is released instead of put back: %s", in_a_line(request), in_a_line(error))
                self._pump.finish(Release(lease.lease_id, lease.attempt))
                return False
        if isinstance(verdict, Dropped) and (verdict := self._given_up(lease)) is None:
            self._stats.count(LEASE_RELEASED_STAT)
            self._pump.finish(Release(lease.lease_id, lease.attempt))
            return False
        self._pump.finish(self._settling(request, lease, verdict))
        return True

    def _given_up(self, lease: Lease) -> Dead | None:
        """Return the verdict that makes a request a dead letter if the engine has dropped it too often, else None."""
        self._drops[lease.lease_id] += 1
        if self._engine.is_closing or self._drops[lease.lease_id] <= MOST_DROPS:
            return None
        return Dead(DEAD_BY_DOWNLOAD, f"the engine dropped it {MOST_DROPS} times before it was downloaded")

    def _put_back(self, lease: Lease, verdict: Requeue) -> None:
        # The stored request is used, since middlewares may have added headers and meta for this download only.
        stored, found = self._codec.decode_found(lease.payload, lease.slot)
        payload = self._codec.encode(again_of(stored), lease.slot, found=found)
        label = label_of(lease.payload)
        if label is not None:
            payload = labelled(payload, label)
        push = Push(lease.rank, lease.slot, payload, delay_ms=ceil(verdict.delay_s * 1000))
        self._pump.push(push, stored, lease.lease_id)

    def dead_letter_kept(self, request: Request, verdict: Dead, rank: int, slot: str, found: Found) -> None:
        """Make a dead letter of a request that stayed in this process, given as it was scheduled.

        A request that can't be stored is only logged.
        """
        if verdict.reason not in self._dead_on:
            return
        self._note_dead(request, verdict)
        try:
            payload = self._codec.encode(request, slot, found=found)
            if self._budgets.is_on:
                payload = with_label(request, payload)
            if len(payload) > self._pump.frontier.payload_limit:
                raise too_large(payload)
        except (EncodeError, RequestError) as error:
            self._log.warning("%s can't be kept as a dead letter: %s", in_a_line(request), in_a_line(error))
            return
        push_dead_letter(
            self._pump.outbox, Push(rank, slot, payload), verdict.reason, verdict.detail, verdict.traceback
        )

    def _settling(self, request: Request, lease: Lease, verdict: Dead | Requeue | None) -> Ack | Fail:
        spent = self._budgets.spent(request, lease) if self._budgets.is_on else None
        if not isinstance(verdict, Dead) or verdict.reason not in self._dead_on:
            return Ack(lease.lease_id, lease.attempt, spent)
        self._note_dead(request, verdict, lease.lease_id)
        return Fail(lease.lease_id, lease.attempt, verdict.reason, verdict.detail, verdict.traceback, spent)

    def _note_dead(self, request: Request, verdict: Dead, letter_id: int | None = None) -> None:
        self._stats.count(DEAD_STATS[verdict.reason])
        self._log.info(
            "%s becomes a dead letter (%s): %s",
            *(in_a_line(request), verdict.reason, in_a_line(verdict.detail)),
            extra=dead_letter(request, verdict.reason, letter_id),
        )
        self._events.dead_lettered(
            request, verdict.reason, verdict.detail, traceback=verdict.traceback, letter_id=letter_id
        )
