"""Scrapy's Scheduler interface: chooses a queue, and lets no exception reach the engine."""

from __future__ import annotations

import logging
import shlex
import socket
from collections.abc import Sized
from copy import copy
from dataclasses import replace
from datetime import datetime, timezone
from functools import partial
from math import isinf
from typing import Any

from scrapy import Request, Spider, signals
from scrapy.core.scheduler import BaseScheduler
from scrapy.crawler import Crawler
from scrapy.dupefilters import BaseDupeFilter, RFPDupeFilter
from scrapy.exceptions import CloseSpider
from scrapy.utils.job import job_dir
from scrapy.utils.misc import build_from_crawler, load_object
from twisted.internet.defer import Deferred, inlineCallbacks

from scrapy_prioqueue.arguments import argument, description_of, difference
from scrapy_prioqueue.dupefilter import DupeFilter, filters_by_frontier
from scrapy_prioqueue.engine import Engine, StatCounter
from scrapy_prioqueue.errors import (
    CrawlEnded,
    FrontierFull,
    FrontierUnavailable,
    LayoutMismatch,
    NotPermitted,
    PrioQueueError,
    SettingError,
)
from scrapy_prioqueue.frontier import open_frontier, open_seeds
from scrapy_prioqueue.frontier.base import Frontier, FrontierConfig, Joined
from scrapy_prioqueue.frontier.processes import process_info
from scrapy_prioqueue.hints import frontier_command
from scrapy_prioqueue.invocation import Invocation, running_command
from scrapy_prioqueue.logs import CrawlLog, event, name_crawl, wrong_settings_named
from scrapy_prioqueue.monitoring.worker import check_installed, serve_worker
from scrapy_prioqueue.printable import counted, in_a_line
from scrapy_prioqueue.queues.base import ClosedQueue, RequestQueue
from scrapy_prioqueue.queues.frontier import FrontierQueue
from scrapy_prioqueue.queues.idle import holder_reasons
from scrapy_prioqueue.queues.layers import ESCALATION_META, arrive
from scrapy_prioqueue.queues.local import LocalQueue
from scrapy_prioqueue.runtime import Runner, suitable_runner
from scrapy_prioqueue.seeds.queue import SeededQueue
from scrapy_prioqueue.settings import Config
from scrapy_prioqueue.settings.scrapy_redis import (
    derives_from_filter,
    idle_time_of,
    is_scrapy_rediss_filter,
    is_set,
)
from scrapy_prioqueue.stats import ERRORS_STAT, LEASE_REAPED_STAT

logger = logging.getLogger(__name__)

FAILURE = "prioqueue_"
"""Prefix of the reasons for closing the spider that make the exit code of the command 1."""

FOREVER_S = 1e9
"""Lifetime of leases in process: no other worker waits for them, however long a callback takes."""


class Scheduler(BaseScheduler):
    """Keeps the requests of a crawl in a frontier that all its workers share.

    Set ``SCHEDULER = "scrapy_prioqueue.Scheduler"``; see `scrapy_prioqueue.settings` for the settings.

    Args:
        command: the command of Scrapy that uses this scheduler, if it doesn't crawl, such as `scrapy shell`.
    """

    def __init__(
        self, crawler: Crawler, config: Config, dupefilter: BaseDupeFilter, command: Invocation | None = None
    ) -> None:
        assert crawler.stats is not None
        self._crawler, self._stats = crawler, StatCounter(crawler.stats)
        self._command = command
        self._config = config
        self._dupefilter = dupefilter
        self._log = CrawlLog(logger, crawler.spider)
        self._queue: RequestQueue = ClosedQueue()
        self._is_missing = False
        self._peeked: list[Request | None] = []
        """Result of the next `next_request`, if it is known already."""

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Scheduler:
        """Read and check the settings.

        Raises:
            SettingError: a value can't be used.
        """
        command = running_command()
        try:
            with wrong_settings_named(logger, crawler):
                return cls._built(crawler, command)
        except SettingError:
            if command is not None:
                command.fail()
            raise

    @classmethod
    def _built(cls, crawler: Crawler, command: Invocation | None) -> Scheduler:
        config = _config(crawler, command)
        assert crawler.spider is not None
        name_crawl(crawler.spider, config.name, config.worker_id)
        if command is None or command.crawls(config.crawl_commands, crawler.settings["COMMANDS_MODULE"]):
            check_installed(config)
            return cls(crawler, config, build_from_crawler(_dupefilter_class(crawler), crawler))
        dupefilter = build_from_crawler(_dupefilter_class(crawler), _without_job_dir(crawler))
        return cls(crawler, config, dupefilter, command)

    @inlineCallbacks
    def open(self, spider: Spider) -> Any:
        """Join the crawl; without a server, act according to `PRIOQUEUE_FALLBACK`."""
        if self._command is not None:
            self._report_command(self._command)
            yield self._open_local(None)
            return
        self._say_how_duplicates_are_filtered()
        if self._config.from_scrapy_redis:
            read = ", ".join(self._config.from_scrapy_redis)
            self._log.info("Settings of scrapy-redis in use: %s", read)
        for warning in self._config.without_effect:
            self._log.warning(warning)
        try:
            yield self._open_shared()
        except FrontierUnavailable as error:
            if self._config.fallback == "error":
                self._close_with(error, "prioqueue_unavailable")
            else:
                yield self._open_alone(error)
        except CrawlEnded as error:
            self._log.info("%s: nothing to do", error)
            self._close_with(None, "finished")
        except (LayoutMismatch, NotPermitted, FrontierFull, SettingError) as error:
            self._close_with(error, "prioqueue_rejected")
        if self._config.metrics_port is not None and not isinstance(self._queue, ClosedQueue):
            serve_worker(self._crawler, self._config, self._queue)

    @inlineCallbacks
    def _open_shared(self) -> Any:
        config = self._config
        frontier = open_frontier(
            self._frontier_config(),
            config.redis_url,
            timeout_s=config.redis_timeout_s,
            options=config.redis_options,
        )
        runner = suitable_runner(is_local=False)
        try:
            yield self._join(self._shared_queue(frontier, runner), frontier)
        except PrioQueueError:
            yield runner.start(frontier.close())
            runner.close()
            raise

    def _shared_queue(self, frontier: Frontier, runner: Runner) -> FrontierQueue:
        config = self._config
        if not config.seeds_keys:
            return FrontierQueue(self._crawler, config, self._dupefilter, frontier, runner)
        seeds = open_seeds(
            frontier.config,
            config.redis_url,
            config.seeds_keys,
            timeout_s=config.redis_timeout_s,
            options=config.redis_options,
        )
        return SeededQueue(self._crawler, config, self._dupefilter, frontier, runner, seeds)

    @inlineCallbacks
    def _open_alone(self, error: FrontierUnavailable) -> Any:
        directory = job_dir(self._crawler.settings)
        where = f"on Scrapy's disk queue in {directory}" if directory else "in memory"
        self._log.warning(
            "%s; this worker crawls alone, %s, and shares nothing with other workers. Set PRIOQUEUE_FALLBACK ="
            ' "error" to close the spider instead.',
            error,
            where,
        )
        if self._config.seeds_keys:
            self._log.warning("Seeds (%s) are not read without the server", ", ".join(self._config.seeds_keys))
        if directory:
            yield self._open_local(directory)
        else:
            yield self._open_in_memory()

    @inlineCallbacks
    def _open_local(self, directory: str | None) -> Any:
        queue = LocalQueue(self._crawler, self._config, self._dupefilter, directory)
        yield queue.open()
        self._queue = queue

    @inlineCallbacks
    def _open_in_memory(self) -> Any:
        frontier = open_frontier(replace(self._frontier_config(), lease_ttl_s=FOREVER_S), None)
        runner = suitable_runner(is_local=True)
        # No other program can push to this process, so waiting for ever would hang it.
        idle_s = 0.0 if isinf(self._config.max_idle_s) else self._config.max_idle_s
        config = replace(self._config, max_idle_s=idle_s)
        yield self._join(FrontierQueue(self._crawler, config, self._dupefilter, frontier, runner), frontier)

    @inlineCallbacks
    def _join(self, queue: FrontierQueue, frontier: Frontier) -> Any:
        joined: Joined = yield queue.join()
        # From now on this worker counts as alive. If anything below fails, the engine closes the queue, and it leaves.
        self._queue = queue
        if joined.identity and filters_by_frontier(self._dupefilter):
            self._dupefilter.identify_as(joined.identity)  # type: ignore[attr-defined]
        yield self._dupefilter.open()
        self._log_joined(joined, frontier, queue)
        Engine(self._crawler).hold_back_empty(self._awaits_request)
        queue.start()

    def close(self, reason: str) -> Deferred[Any] | None:
        """Close the queue: commit what is done, release all other requests, leave the crawl."""
        # Scrapy takes any object as a reason, such as `CloseSpider(404)`.
        reason = str(reason)
        if reason.startswith(FAILURE) and (command := running_command()) is not None:
            command.fail()
        queue, self._queue = self._queue, ClosedQueue()
        return queue.close(reason)

    def enqueue_request(self, request: Request) -> bool:
        """Store a request; False if it is a duplicate or was rejected."""
        try:
            if ESCALATION_META in request.meta:
                arrive(request, self._stats)
            return self._queue.enqueue(request)
        except Exception:
            self._note_error(request)
            self._note_missing()
            return False

    def next_request(self) -> Request | None:
        """Return the request to start now, or None."""
        return self._peeked.pop() if self._peeked else self._take()

    def _take(self) -> Request | None:
        try:
            return self._queue.next_request()
        except Exception:
            self._note_error()
            return None

    def _awaits_request(self) -> bool:
        """Fetch the next request in advance; return whether there is none now but one may arrive soon."""
        if not self._peeked:
            self._peeked.append(self._take())
        if self._peeked[0] is not None:
            return False
        try:
            is_awaited = self._queue.awaits_request()
        except Exception:
            self._note_error()
            is_awaited = False
        if is_awaited:
            self._peeked.clear()
        return is_awaited

    def has_pending_requests(self) -> bool:
        """Return whether the crawl continues, here or in another worker."""
        try:
            return self._queue.has_pending()
        except Exception:
            self._note_error()
            return True

    def __len__(self) -> int:
        return len(self._queue)

    @property
    def dqs(self) -> Sized:
        """Has the number of waiting requests in the server or on disk as its length.

        Telnet's `est()` shows the lengths of both attributes, which are queues in Scrapy's scheduler.
        """
        return range(self._queue.outside)

    @property
    def mqs(self) -> Sized:
        """Has the number of waiting requests in this process as its length."""
        return range(len(self._queue) - self._queue.outside)

    def _report_command(self, command: Invocation) -> None:
        self._log.log(
            logging.INFO if command.is_scrapys else logging.WARNING,
            "scrapy %s works alone, in memory, and doesn't join the shared crawl.%s",
            command.name,
            "" if command.is_scrapys else " To make it join, add its name to PRIOQUEUE_CRAWL_COMMANDS.",
        )

    def _note_error(self, request: Request | None = None) -> None:
        """Log an exception. It must not reach the engine, which would lose the request, or all of `start()`."""
        self._log.exception("Unexpected error in the scheduler (%s)", request)
        self._stats.count(ERRORS_STAT)

    def _note_missing(self) -> None:
        """Note that requests are missing: the crawl must not end, and this worker must not close as finished."""
        self._queue.note_missing()
        if not self._is_missing:
            self._is_missing = True
            self._crawler.signals.connect(self._report_missing, signals.spider_idle)

    def _report_missing(self) -> None:
        # A worker that only waits for others gets this signal, too.
        if self.has_pending_requests():
            return
        self._log.error(
            "Requests were lost to errors, see above: the crawl is not over. Fix the cause and start the crawl again"
        )
        raise CloseSpider("shutdown")

    def _close_with(self, error: PrioQueueError | None, reason: str) -> None:
        if error is not None:
            self._log.error("Closing the spider: %s", error)
        Engine(self._crawler).close_spider(reason)

    def _frontier_config(self) -> FrontierConfig:
        assert self._crawler.spider is not None
        config = self._config
        return FrontierConfig(
            name=config.name,
            tiers=config.tiers,
            worker=config.worker_id,
            order=config.order,
            lease_ttl_s=config.lease_ttl_s,
            max_attempts=config.max_attempts,
            on_finish=config.on_finish,
            worker_info=process_info(socket.gethostname()),
            crawl_id=config.crawl_id,
            flush=config.flush_on_start,
            flush_if_alone=config.flush_if_alone,
            journal_s=config.journal_s,
            journal_limit=config.journal_limit,
            wait_replicas=config.wait_replicas,
            dead_on=config.dead_letter_on,
            dead_limit=config.dead_letter_limit,
            seen_name=config.seen_name,
            policy=config.policy,
            seen=config.seen,
            spider=description_of(self._crawler.spider),
            foreign_keys=() if config.flush_on_start else config.scrapy_redis_keys,
        )

    def _log_joined(self, joined: Joined, frontier: Frontier, queue: FrontierQueue) -> None:
        depth = joined.depth
        self._log.info(
            "%(how)s crawl in frontier %(name)s %(where)s as worker %(worker)s: %(pending)d pending,"
            " %(leased)d leased, %(seen)d seen, workers alive: %(workers)d",
            {
                "how": "New" if joined.is_new else "Joined" if depth.workers > 1 else "Resumed",
                "name": in_a_line(self._config.name),
                "where": "in this process" if frontier.is_local else f"at {frontier.address}",
                "worker": in_a_line(self._config.worker_id),
                "pending": depth.pending,
                "leased": depth.leased,
                "seen": joined.seen,
                "workers": depth.workers,
            },
            extra=event(
                "joined",
                is_new=joined.is_new,
                pending=depth.pending,
                delayed=depth.delayed,
                leased=depth.leased,
                seen=joined.seen,
                workers=depth.workers,
            ),
        )
        if joined.last_ended_ms and self._config.crawl_id is None:
            ended = datetime.fromtimestamp(joined.last_ended_ms / 1000, timezone.utc)
            self._log.info(
                "The last crawl in frontier %s finished at %s. If this worker should have joined it, it was started too"
                " late: set PRIOQUEUE_CRAWL_ID to a name for each crawl, so that late workers close instead of"
                " beginning a new crawl",
                in_a_line(self._config.name),
                f"{ended:%Y-%m-%d %H:%M:%S} UTC",
            )
        self._warn_of_scrapy_redis(joined)
        self._warn_of_another_spider(joined.spider)
        if joined.is_new and joined.seen:
            self._log.info(
                "The queue is empty, with %s kept from earlier crawls (PRIOQUEUE_ON_FINISH)",
                counted(joined.seen, "fingerprint"),
            )
        if self._config.seen.mode == "bloom" and not frontier.is_local:
            self._log.info(
                "Fingerprints are stored in a Bloom filter: up to %g %% of new pages are taken for duplicates and"
                " not fetched; scrapy frontier status estimates how many so far (PRIOQUEUE_SEEN)",
                100 * self._config.seen.error_rate,
            )
        if joined.recovered:
            self._log.info("Got back %s of an earlier process of this worker", counted(joined.recovered, "request"))
        if joined.gone:
            self._log.info(
                "Workers of this machine whose processes are gone: %s; their requests go to others now",
                ", ".join(joined.gone),
            )
        if joined.waits is not None and joined.waits.holders:
            held = "; ".join(reason.text for reason in holder_reasons(joined.waits, self._config.name))
            self._log.info("Requests held by other workers: %s", held)
        queue.count(LEASE_REAPED_STAT, joined.reaped)
        queue.note_answer(joined)

    def _warn_of_scrapy_redis(self, joined: Joined) -> None:
        """Warn if a new crawl begins although scrapy-redis has left one of this spider on the server."""
        requests, fingerprints = joined.foreign
        # A finished crawl leaves only fingerprints, which don't matter any more once the site was crawled here.
        if not requests and (not fingerprints or joined.seen):
            return
        assert self._crawler.spider is not None
        queue_key, seen_key = self._config.scrapy_redis_keys
        name = self._config.name
        self._log.warning(
            "scrapy-redis has left %s (%s) and %s (%s) of this spider. This worker begins a new"
            " crawl, which doesn't use them and fetches the pages of the old one again. To continue the old crawl, stop"
            " all workers, run `%s`, then `%s`, and start them again. To begin a new one, delete the two keys",
            counted(requests, "request"),
            queue_key,
            counted(fingerprints, "fingerprint"),
            seen_key,
            frontier_command("reset --all", name),
            frontier_command(f"migrate-from-scrapy-redis --spider {shlex.quote(self._crawler.spider.name)}", name),
        )

    def _warn_of_another_spider(self, there: str) -> None:
        """Warn if the crawl was begun by another spider, or with other arguments.

        Args:
            there: description of the spider that has begun it.
        """
        assert self._crawler.spider is not None
        found = difference(description_of(self._crawler.spider), there)
        if not found.texts:
            return
        name = "-".join(["%(spider)s", *(f"%({part})s" for part in found.arguments)]) if found.arguments else "another"
        self._log.warning(
            "The crawl in frontier %s was begun by another spider or with other arguments: %s. Workers of one"
            " frontier share all requests, so this worker may fetch pages meant for the others, and they may fetch"
            " pages meant for this one. Give each its own frontier, for example PRIOQUEUE_NAME = %r",
            in_a_line(self._config.name),
            in_a_line("; ".join(found.texts)),
            name,
        )

    def _say_how_duplicates_are_filtered(self) -> None:
        kind = type(self._dupefilter)
        name = f"{kind.__module__}.{kind.__qualname__}"
        if filters_by_frontier(self._dupefilter):
            self._log.debug("Duplicates are filtered by the frontier (%s)", name)
        elif kind is RFPDupeFilter:
            self._log.warning(
                "DUPEFILTER_CLASS = %r filters duplicates of this process only; leave it unset, or set"
                ' "scrapy_prioqueue.DupeFilter", to filter across all workers',
                name,
            )
        elif derives_from_filter(kind):
            self._log.warning(
                "DUPEFILTER_CLASS = %r filters duplicates of this process only, and blocks it. Derive the class from"
                " scrapy_prioqueue.DupeFilter, with fingerprint() in place of request_fingerprint()",
                name,
            )
        else:
            self._log.info("Duplicates are filtered by %s, for this process only", name)


def _config(crawler: Crawler, command: Invocation | None) -> Config:
    spider = crawler.spider
    assert spider is not None
    if command is not None:
        # A command that doesn't crawl uses no names, so an argument in them may be missing; its own name replaces it.
        config = Config.from_settings(crawler.settings, spider.name, str)
        if not command.crawls(config.crawl_commands, crawler.settings["COMMANDS_MODULE"]):
            return config
    config = Config.from_settings(crawler.settings, spider.name, partial(argument, spider))
    idle_s = None if is_set(crawler.settings, "PRIOQUEUE_MAX_IDLE") else idle_time_of(spider)
    return config if idle_s is None else replace(config, max_idle_s=idle_s)


def _dupefilter_class(crawler: Crawler) -> type[BaseDupeFilter]:
    settings = crawler.settings
    if settings.getpriority("DUPEFILTER_CLASS") == 0 or is_scrapy_rediss_filter(settings["DUPEFILTER_CLASS"]):
        # Scrapy's default is no choice of the user's, so workers get a filter that works across all of them.
        return DupeFilter
    chosen: type[BaseDupeFilter] = load_object(settings["DUPEFILTER_CLASS"])
    return chosen


def _without_job_dir(crawler: Crawler) -> Crawler:
    """Return a crawler for a filter that must not use `JOBDIR`, which belongs to a crawl."""
    if not job_dir(crawler.settings):
        return crawler
    other = copy(crawler)
    other.settings = crawler.settings.copy()
    other.settings.frozen = False
    other.settings.set("JOBDIR", None, "cmdline")
    return other
