"""Scrapy's own queues with our order: on disk, for a crawl with `JOBDIR` but no server; in memory, for a command."""

from __future__ import annotations

import logging
from typing import Any
from weakref import WeakKeyDictionary

from scrapy import Request
from scrapy.core.scheduler import Scheduler as ScrapyScheduler
from scrapy.crawler import Crawler
from scrapy.dupefilters import BaseDupeFilter
from scrapy.pqueues import ScrapyPriorityQueue
from scrapy.utils.misc import load_object
from twisted.internet.defer import Deferred

from scrapy_prioqueue.codec.blanks import twin_of
from scrapy_prioqueue.engine import Engine, StatCounter
from scrapy_prioqueue.errors import RequestError
from scrapy_prioqueue.logs import CrawlLog
from scrapy_prioqueue.printable import in_a_line
from scrapy_prioqueue.queues.base import RequestQueue
from scrapy_prioqueue.queues.layers import Layers
from scrapy_prioqueue.queues.lineages import Lineages
from scrapy_prioqueue.queues.verdicts import Requeue, Verdicts, again_of
from scrapy_prioqueue.settings import Config
from scrapy_prioqueue.stats import REJECTED_STAT
from scrapy_prioqueue.tiers import TierPolicy

logger = logging.getLogger(__name__)


def _tier_policy(config: Config, *, is_quiet: bool = False) -> TierPolicy:
    return TierPolicy(config.tiers, config.default_tier, config.tier_rules, is_quiet=is_quiet)


class RankedPriorityQueue(ScrapyPriorityQueue):
    """Scrapy's priority queue, ordered by tier first."""

    def __init__(self, crawler: Crawler, *args: Any, **kwargs: Any) -> None:
        assert crawler.spider is not None
        # The names aren't used here, so each argument in them is replaced by its own name.
        config = Config.from_settings(crawler.settings, crawler.spider.name, str)
        # `LocalQueue` checks each request first, and logs any problem.
        self._tiers = _tier_policy(config, is_quiet=True)
        super().__init__(crawler, *args, **kwargs)

    def priority(self, request: Request) -> int:
        """Return the rank of a request; lower is served first."""
        return self._tiers.rank(request)


class LocalQueue(RequestQueue):
    """Requests of one process: the same objects in memory, or a directory in which they are saved at the end.

    Args:
        directory: that of `JOBDIR`, None for memory.
    """

    def __init__(self, crawler: Crawler, config: Config, dupefilter: BaseDupeFilter, directory: str | None) -> None:
        settings = crawler.settings
        assert crawler.stats is not None
        self._crawler = crawler
        self._stats = StatCounter(crawler.stats)
        self._log = CrawlLog(logger, crawler.spider)
        self._tiers = _tier_policy(config)
        self._lineages = Lineages(self._tiers, config.worker_id)
        self._pages: WeakKeyDictionary[Request, Request] = WeakKeyDictionary()
        self._engine = Engine(crawler)
        self._verdicts = Verdicts(crawler, self._engine, config, Layers(crawler, config), can_delay=False)
        self._scheduler = ScrapyScheduler(
            dupefilter,
            jobdir=directory,
            dqclass=load_object(settings["SCHEDULER_DISK_QUEUE"]),
            mqclass=load_object(settings["SCHEDULER_MEMORY_QUEUE"]),
            logunser=True,
            stats=crawler.stats,
            pqclass=RankedPriorityQueue,
            crawler=crawler,
        )

    def open(self) -> Deferred[None] | None:
        """Open the queue, including the requests that an earlier run has left in the directory."""
        assert self._crawler.spider is not None
        self._verdicts.watch()
        self._engine.watch_done(self._on_done)
        self._engine.watch_found(self._pages.__setitem__)
        return self._scheduler.open(self._crawler.spider)

    def _on_done(self, request: Request) -> None:
        if isinstance(self._verdicts.decide_kept(request), Requeue):
            self._scheduler.enqueue_request(again_of(twin_of(request)))

    def enqueue(self, request: Request) -> bool:
        try:
            self._tiers.mark(request, self._tiers.rank(request))
        except RequestError as error:
            self._log.error("Request rejected: %s", in_a_line(error))
            self._stats.count(REJECTED_STAT)
            return False
        self._lineages.keep(request, self._pages.pop(request, None))
        return self._scheduler.enqueue_request(request)

    def next_request(self) -> Request | None:
        request = self._scheduler.next_request()
        if request is not None:
            self._lineages.mark_kept(request, is_own=False)
            self._verdicts.hand_out(request)
        return request

    def has_pending(self) -> bool:
        return self._scheduler.has_pending_requests()

    def close(self, reason: str) -> Deferred[None] | None:
        return self._scheduler.close(reason)

    @property
    def outside(self) -> int:
        return len(self._scheduler.dqs or ())

    def __len__(self) -> int:
        return len(self._scheduler)
