"""Scrapy's own scheduler on its disk queue, in our order: what a crawl with `JOBDIR` runs on without a server."""

from __future__ import annotations

import logging
from typing import Any

from scrapy import Request
from scrapy.core.scheduler import Scheduler as ScrapyScheduler
from scrapy.crawler import Crawler
from scrapy.dupefilters import BaseDupeFilter
from scrapy.pqueues import ScrapyPriorityQueue
from scrapy.utils.job import job_dir
from scrapy.utils.misc import load_object
from twisted.internet.defer import Deferred

from scrapy_prioqueue.engine import Engine
from scrapy_prioqueue.errors import RequestError
from scrapy_prioqueue.queues.base import RequestQueue
from scrapy_prioqueue.queues.endings import Judge
from scrapy_prioqueue.queues.lines import in_a_line
from scrapy_prioqueue.settings import Config
from scrapy_prioqueue.tiers import TierPolicy

logger = logging.getLogger(__name__)


def _config(crawler: Crawler) -> Config:
    assert crawler.spider is not None
    return Config.from_settings(crawler.settings, crawler.spider.name)


def _tier_policy(config: Config) -> TierPolicy:
    return TierPolicy(config.tiers, config.default_tier, config.tier_rules)


class RankedPriorityQueue(ScrapyPriorityQueue):
    """Scrapy's priority queue, ordered by tier first."""

    def __init__(self, crawler: Crawler, *args: Any, **kwargs: Any) -> None:
        self._tiers = _tier_policy(_config(crawler))
        super().__init__(crawler, *args, **kwargs)

    def priority(self, request: Request) -> int:
        """Return the rank of a request; lower is served first."""
        return self._tiers.rank(request)


class DiskQueue(RequestQueue):
    """Requests in `JOBDIR`, for one process; they are saved when the spider is closed."""

    def __init__(self, crawler: Crawler, dupefilter: BaseDupeFilter) -> None:
        settings = crawler.settings
        self._crawler = crawler
        config = _config(crawler)
        self._tiers = _tier_policy(config)
        self._engine = Engine(crawler)
        self._judge = Judge(crawler, self._engine, config)
        self._scheduler = ScrapyScheduler(
            dupefilter,
            jobdir=job_dir(settings),
            dqclass=load_object(settings["SCHEDULER_DISK_QUEUE"]),
            mqclass=load_object(settings["SCHEDULER_MEMORY_QUEUE"]),
            logunser=True,
            stats=crawler.stats,
            pqclass=RankedPriorityQueue,
            crawler=crawler,
        )

    def open(self) -> Deferred[None] | None:
        """Open the queue in `JOBDIR`, with what an earlier run left in it."""
        assert self._crawler.spider is not None
        self._judge.watch()
        self._engine.watch_done(self._on_done)
        return self._scheduler.open(self._crawler.spider)

    def _on_done(self, request: Request) -> None:
        again = self._judge.again(request)
        if again is not None:
            self._scheduler.enqueue_request(again[0])

    def enqueue(self, request: Request) -> bool:
        try:
            self._tiers.mark(request, self._tiers.rank(request))
        except RequestError as error:
            logger.error("Request refused: %s", in_a_line(error), extra={"spider": self._crawler.spider})
            assert self._crawler.stats is not None
            self._crawler.stats.inc_value("prioqueue/refused")
            return False
        return self._scheduler.enqueue_request(request)

    def next_request(self) -> Request | None:
        request = self._scheduler.next_request()
        if request is not None:
            self._judge.hand_out(request)
        return request

    def has_pending(self) -> bool:
        return self._scheduler.has_pending_requests()

    def close(self, reason: str) -> Deferred[None] | None:
        return self._scheduler.close(reason)

    def __len__(self) -> int:
        return len(self._scheduler)
