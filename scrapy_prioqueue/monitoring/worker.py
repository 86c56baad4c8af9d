"""The metrics of one worker, and the thread in the worker's process that serves them.

They are read from Scrapy's stats and from the pump when Prometheus scrapes them, so they cost the crawl almost nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from threading import Thread
from typing import TYPE_CHECKING, Any

from scrapy import signals
from scrapy.crawler import Crawler
from scrapy.statscollectors import DummyStatsCollector

from scrapy_prioqueue import stats
from scrapy_prioqueue.engine import StatCounter
from scrapy_prioqueue.errors import SettingError
from scrapy_prioqueue.frontier.runs import LATENCY_BOUNDS_S
from scrapy_prioqueue.logs import CrawlLog
from scrapy_prioqueue.monitoring.metrics import Buckets, Metric, Values, families
from scrapy_prioqueue.monitoring.serving import METRICS_PATH, Endpoint, metrics_app, missing, routed
from scrapy_prioqueue.pump.pump import Pump
from scrapy_prioqueue.queues.base import RequestQueue
from scrapy_prioqueue.settings import Config

if TYPE_CHECKING:
    from prometheus_client.core import Metric as Family

logger = logging.getLogger(__name__)

_TYPE_PREFIX = stats.UNSERIALIZABLE_TYPE_STAT.removesuffix("<type>")


@dataclass(frozen=True, slots=True)
class Worker:
    """The values from which the metrics of a worker are read.

    Args:
        stats: a copy of Scrapy's stats, whose values may be anything; empty if the collector keeps none.
    """

    stats: Mapping[str, Any]
    queue: RequestQueue
    spider: str
    config: Config

    def stat(self, name: str) -> Any:
        """Return the value of a stat, 0 if nothing was counted, None if it is unknown."""
        return self.stats.get(name, 0) if self.stats else None


def _stat(name: str, stat: str, doc: str) -> Metric[Worker]:
    return Metric(name, "counter", doc, lambda worker: worker.stat(stat))


def _stats(name: str, label: str, by_label: Mapping[str, str], doc: str) -> Metric[Worker]:
    """Return a counter whose values, by label, are stats."""
    return Metric(
        *(name, "counter", doc, lambda worker: {value: worker.stat(stat) for value, stat in by_label.items()}),
        labels=(label,),
    )


def _pump(name: str, doc: str, read: Callable[[Pump[Any]], Values]) -> Metric[Worker]:
    """Return a gauge of the pump; a crawl on Scrapy's disk queue has none."""
    return Metric(name, "gauge", doc, lambda worker: None if worker.queue.pump is None else read(worker.queue.pump))


def _round_trips(worker: Worker) -> Buckets | None:
    if worker.queue.pump is None:
        return None
    found = worker.queue.pump.round_trips
    return Buckets(LATENCY_BOUNDS_S, found.counts, found.total_s)


def _unserializable(worker: Worker) -> Mapping[str, float]:
    # The stats have at most a hundred types, and one name for all others.
    return {
        name.removeprefix(_TYPE_PREFIX): count for name, count in worker.stats.items() if name.startswith(_TYPE_PREFIX)
    }


WORKER_METRICS: Sequence[Metric[Worker]] = (
    Metric(
        "prioqueue_worker_info",
        "gauge",
        "Always 1; the labels describe the worker.",
        lambda worker: {(worker.config.worker_id, worker.spider): 1},
        labels=("worker", "spider"),
    ),
    _stats(
        "prioqueue_worker_requests_enqueued_total",
        "storage",
        {"redis": stats.ENQUEUED_REDIS_STAT, "memory": stats.ENQUEUED_MEMORY_STAT, "disk": stats.ENQUEUED_DISK_STAT},
        "Requests stored, without duplicates, by where they are stored.",
    ),
    _stats(
        "prioqueue_worker_requests_dequeued_total",
        "storage",
        {"redis": stats.DEQUEUED_REDIS_STAT, "memory": stats.DEQUEUED_MEMORY_STAT, "disk": stats.DEQUEUED_DISK_STAT},
        "Requests handed to the engine, by where they were stored.",
    ),
    _stat("prioqueue_worker_duplicates_total", stats.FILTERED_STAT, "Requests that were filtered as duplicates."),
    _stat(
        "prioqueue_worker_starts_repeated_total",
        stats.START_REPEATED_STAT,
        "Start requests that an earlier run or another worker had already pushed.",
    ),
    _stat(
        "prioqueue_worker_requests_rejected_total",
        stats.REJECTED_STAT,
        "Requests that were rejected, for example because they are invalid; each is logged.",
    ),
    _stat("prioqueue_worker_requests_requeued_total", stats.REQUEUED_STAT, "Requests put back by `requeue()`."),
    _stat("prioqueue_worker_retries_total", "retry/count", "Retries of requests whose download failed."),
    _stat("prioqueue_worker_escalations_total", stats.ESCALATED_STAT, "Requests sent to another extraction layer."),
    _stats(
        "prioqueue_worker_dead_letters_total",
        "reason",
        stats.DEAD_STATS,
        "Dead letters that this worker found, by reason.",
    ),
    _stat("prioqueue_worker_seeds_taken_total", stats.SEEDS_TAKEN_STAT, "Seeds that this worker took."),
    Metric(
        "prioqueue_worker_requests_unserializable_total",
        "counter",
        "Requests that can't be stored and so stay in this process, by the type of the value that can't.",
        _unserializable,
        labels=("type",),
    ),
    _stat(
        "prioqueue_worker_requests_kept_for_session_total",
        stats.COOKIEJAR_KEPT_STAT,
        "Requests that stay in this process because it has the cookies of their session.",
    ),
    Metric(
        "prioqueue_worker_requests_kept",
        "gauge",
        "Requests that exist only in this process now, waiting or in progress.",
        lambda worker: worker.queue.kept,
    ),
    _stat("prioqueue_worker_leases_total", stats.LEASES_STAT, "Requests leased to this worker."),
    _stat("prioqueue_worker_leases_released_total", stats.LEASE_RELEASED_STAT, "Leases that were released unstarted."),
    _stat(
        "prioqueue_worker_leases_refused_total",
        stats.LEASE_REFUSED_STAT,
        "Leases of requests that this worker's code can't decode.",
    ),
    _stat(
        "prioqueue_worker_leases_reaped_total",
        stats.LEASE_REAPED_STAT,
        "Expired leases, of any worker, that this worker returned to the queue.",
    ),
    _stat(
        "prioqueue_worker_leases_lost_total",
        stats.LEASE_LOST_STAT,
        "Leases that this worker has lost, because they expired or an operator took them.",
    ),
    _stat(
        "prioqueue_worker_leases_claimed_total",
        stats.LEASE_CLAIMED_STAT,
        "Leases claimed for requests in progress, after an outage or because the server had lost the leases.",
    ),
    _stat(
        "prioqueue_worker_leases_void_total",
        stats.LEASE_VOID_STAT,
        "Ends of leases that came too late, so that the page is fetched again.",
    ),
    _pump("prioqueue_worker_leases_held", "Leases whose requests are in progress.", lambda pump: len(pump.held)),
    _pump("prioqueue_worker_inbox_requests", "Leased requests that are not started yet.", lambda pump: len(pump.inbox)),
    _pump(
        "prioqueue_worker_outbox_requests",
        "Requests found by this worker that the server has not confirmed yet.",
        lambda pump: pump.outbox.pushes,
    ),
    _pump("prioqueue_worker_outbox_bytes", "Size of these requests.", lambda pump: pump.outbox.pushed_bytes),
    Metric(
        "prioqueue_worker_exchange_duration_seconds",
        "histogram",
        "Durations of answered exchanges with the frontier.",
        _round_trips,
    ),
    _stat(
        "prioqueue_worker_exchanges_failed_total",
        stats.EXCHANGE_FAILED_STAT,
        "Calls to the server without an answer, or with an unexpected error.",
    ),
    _stat(
        "prioqueue_worker_exchanges_full_total",
        stats.EXCHANGE_FULL_STAT,
        "Exchanges in which a full server rejected requests.",
    ),
    _stat(
        "prioqueue_worker_recalls_total",
        stats.RECALLS_STAT,
        "How often this worker had to restore what the server had lost in a crash.",
    ),
    _stat("prioqueue_worker_outages_total", stats.OUTAGES_STAT, "How often the server became unavailable."),
    _pump("prioqueue_worker_outage", "1 while the server doesn't answer, else 0.", lambda pump: pump.is_away),
    _pump("prioqueue_worker_server_full", "1 while the server has no memory for requests.", lambda pump: pump.is_full),
    _pump(
        "prioqueue_worker_heartbeat_lag_seconds",
        "Seconds since the server last answered this worker.",
        lambda pump: pump.silence_s,
    ),
    _pump(
        "prioqueue_worker_loop_lag_seconds",
        "Seconds by which the event loop is late, for example because code of the spider blocks it.",
        lambda pump: pump.loop_lag_s,
    ),
    _stat(
        "prioqueue_worker_leases_renewed_by_thread_total",
        stats.HEARTBEAT_RENEWED_STAT,
        "Leases renewed by a thread because code of the spider blocked the event loop.",
    ),
    _stat(
        "prioqueue_worker_slow_pages_total",
        stats.SLOW_STAT,
        "Warnings about pages that may never end, and about a blocked event loop.",
    ),
    _stat("prioqueue_worker_pages_total", "response_received_count", "Responses that the engine received."),
    _stat("prioqueue_worker_items_total", "item_scraped_count", "Items scraped."),
    _stat("prioqueue_worker_items_dropped_total", "item_dropped_count", "Items that a pipeline dropped."),
    _stat("prioqueue_worker_errors_total", stats.ERRORS_STAT, "Unexpected errors in the scheduler."),
    _stat("prioqueue_worker_log_errors_total", "log_count/ERROR", "Log lines at level ERROR or above."),
)
"""All metrics of a worker; a test compares them with the reference in docs/."""


class WorkerCollector:
    """Reads the metrics of a worker; called by the threads that serve them."""

    def __init__(self, crawler: Crawler, config: Config, queue: RequestQueue) -> None:
        assert crawler.spider is not None and crawler.stats is not None
        self._stats, self._spider = StatCounter(crawler.stats), crawler.spider.name
        self._config, self._queue = config, queue

    def collect(self) -> Iterator[Family]:
        """Yield the metrics in the library's format."""
        worker = Worker(self._stats.read(), self._queue, self._spider, self._config)
        return families(WORKER_METRICS, ("frontier",), [((self._config.name,), worker)])


def check_installed(config: Config) -> None:
    """Check that a worker can serve the metrics that its settings ask for.

    Raises:
        SettingError: a package is missing.
    """
    if config.metrics_port is not None and (why := missing()):
        raise SettingError("PRIOQUEUE_METRICS_PORT", _shown(config.metrics_port), why)


def serve_worker(crawler: Crawler, config: Config, queue: RequestQueue) -> None:
    """Serve the metrics of this worker until the spider is closed; if that fails, the log says why."""
    assert config.metrics_port is not None
    log = CrawlLog(logger, crawler.spider)
    app = routed({METRICS_PATH: metrics_app([WorkerCollector(crawler, config, queue)])})
    try:
        endpoint = Endpoint(app, config.metrics_host, config.metrics_port)
    except OSError as error:
        log.error(
            "The metrics of this worker are not served at %s, port %s: %s. Several workers on one machine need a range"
            " such as PRIOQUEUE_METRICS_PORT = [9451, 9470], or 0 for any free port",
            config.metrics_host,
            _shown(config.metrics_port),
            error.strerror,
        )
        return
    if isinstance(crawler.stats, DummyStatsCollector):
        log.warning(
            "Most metrics of this worker are missing, since they are read from Scrapy's stats, and STATS_CLASS is"
            " a collector that keeps none"
        )
    log.info("The metrics of this worker are at %s%s", endpoint.url, METRICS_PATH)
    # In a thread, since it waits for the server's thread; as a daemon, so that the process doesn't.
    end = Thread(target=endpoint.close, name="prioqueue metrics end", daemon=True)
    crawler.signals.connect(end.start, signals.spider_closed, weak=False)


def _shown(ports: Sequence[int]) -> int | list[int]:
    return ports[0] if len(ports) == 1 else [ports[0], ports[-1]]
