"""The metrics of whole frontiers and of their server, read when Prometheus asks."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar

from scrapy_prioqueue.errors import PrioQueueError
from scrapy_prioqueue.frontier.redis.link import Link
from scrapy_prioqueue.frontier.redis.operators.findings import Status, WorkerFound
from scrapy_prioqueue.frontier.redis.operators.frontiers import frontier_names
from scrapy_prioqueue.frontier.redis.operators.inspector import Inspector
from scrapy_prioqueue.frontier.redis.servers import version_text
from scrapy_prioqueue.monitoring.metrics import Metric, Values, families
from scrapy_prioqueue.monitoring.reading import BUSY, SHARE, FrontierReading, Reading

if TYPE_CHECKING:
    from prometheus_client.core import Metric as Family

MOST_FRONTIERS = 100
"""Maximum number of frontiers that are exported; each has about a hundred values."""

SEARCH_S, RETRY_S = 60.0, 5.0
"""Seconds between two searches for frontiers, and after one that failed."""

REST_S = 0.1
"""Seconds between two calls of a search, except of the first search."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class FrontierSeen:
    """The values from which the metrics of a frontier are read.

    Args:
        status: None if there is no such frontier, or if it can't be read.
        letters: dead letters by reason.
        reported: sums of what the workers of this crawl have reported, empty if none has.
        age_s: age of the status in seconds, None if it was never read.
        is_known: whether the server, when it was asked last, said whether there is such a frontier.
    """

    status: Status | None = None
    letters: Mapping[str, int] = field(default_factory=dict)
    reported: Mapping[str, Any] = field(default_factory=dict)
    age_s: float | None = None
    is_known: bool = True


def _status(
    name: str, doc: str, read: Callable[[Status], Values], kind: Any = "gauge", labels: Sequence[str] = ()
) -> Metric[FrontierSeen]:
    return Metric(name, kind, doc, lambda seen: None if seen.status is None else read(seen.status), labels)


def _count(name: str, counter: str, doc: str) -> Metric[FrontierSeen]:
    return _status(name, doc, lambda status: status.counts[counter], "counter")


def _reported(name: str, figure: str, doc: str) -> Metric[FrontierSeen]:
    """Return a counter that adds up what workers have reported."""
    return Metric(name, "counter", doc, lambda seen: seen.reported.get(figure))


WORKER_STATES = ("busy", "idle", "paused", "blocked", "stopping", "silent")


def _state_of(worker: WorkerFound, *, is_paused: bool) -> str:
    if not worker.is_alive:
        return "silent"
    if worker.stop:
        return "stopping"
    if worker.blocked is not None:
        return "blocked"
    if worker.is_paused:
        return "paused"
    if worker.is_busy:
        return "busy"
    return "paused" if is_paused else "idle"


def _workers(status: Status) -> Mapping[str, int]:
    is_paused = "paused" in status.state.orders and not status.state.has_ended
    found = Counter(_state_of(worker, is_paused=is_paused) for worker in status.workers)
    return {state: found[state] for state in WORKER_STATES}


def _slots(status: Status) -> Mapping[str, int]:
    waiting = {
        "rate": status.waiting_for_rate,
        "concurrency": status.waiting_for_leases,
        "retry_after": status.closed_waiting,
    }
    return {"ready": max(0, status.slots - sum(waiting.values())), **waiting}


def _crawl(status: Status) -> Mapping[str, int]:
    state = status.state
    return {
        "open": state.phase == "open",
        "ended": state.has_ended,
        **{order: order in state.orders for order in ("paused", "drained", "stopping")},
        "flooded": state.policy.is_flooded,
        "memory_high": state.policy.is_memory_high,
    }


def _budgets(status: Status) -> Mapping[str, float]:
    """Return the part of its cap that the nearest budget key has used, by kind of cost."""
    found: dict[str, float] = {}
    for budget in status.budgets.nearest:
        for cost, cap in budget.caps.items():
            found[cost] = max(found.get(cost, 0.0), budget.used[cost] / cap.value if cap.value else 1.0)
    return found


def _seeds(status: Status) -> Mapping[str, int]:
    return {found.key: found.entries for found in status.seeds if found.entries is not None}


def _lag_s(status: Status) -> float | None:
    return max((worker.heard_s for worker in status.workers if worker.is_alive), default=None)


FRONTIER_METRICS: Sequence[Metric[FrontierSeen]] = (
    Metric(
        "prioqueue_frontier_exists",
        "gauge",
        "1 if the frontier exists, 0 if not or if another release has written it, missing while its server doesn't"
        " say; unless it is 1, the other metrics of the frontier are missing.",
        lambda seen: seen.status is not None if seen.is_known else None,
    ),
    Metric(
        "prioqueue_frontier_age_seconds",
        "gauge",
        "Seconds since the frontier was read; it is read less often if that takes much of the server's time.",
        lambda seen: seen.age_s,
    ),
    _status(
        "prioqueue_requests",
        "Requests in each state: pending, delayed, leased, or given up in this crawl (dead).",
        lambda status: {state: status.counts[state] for state in ("pending", "delayed", "leased", "dead")},
        labels=("state",),
    ),
    _status(
        "prioqueue_pending_requests",
        "Pending requests by tier; estimated from a sample if there are more than 1,000 slots.",
        lambda status: {tier.tier: tier.pending for tier in status.tiers},
        labels=("tier",),
    ),
    # When an operator removes requests, the server's counter falls; Prometheus would take that for a reset to 0.
    _status(
        "prioqueue_requests_accepted_total",
        "Requests stored in this crawl.",
        lambda status: status.counts["accepted"] + status.counts["removed"],
        "counter",
    ),
    _count("prioqueue_requests_done_total", "done", "Requests done in this crawl."),
    _count("prioqueue_requests_removed_total", "removed", "Requests removed by operators."),
    Metric(
        "prioqueue_pages_total",
        "counter",
        "Pages done in this crawl by tier, as reported by workers.",
        lambda seen: seen.reported.get("by_tier"),
        labels=("tier",),
    ),
    _reported("prioqueue_items_total", "items", "Items scraped in this crawl, as reported by workers."),
    _reported("prioqueue_retries_total", "retries", "Retries of requests in this crawl, as reported by workers."),
    _reported(
        "prioqueue_escalations_total",
        "escalations",
        "Requests sent to another extraction layer, as reported by workers.",
    ),
    _reported("prioqueue_log_errors_total", "errors", "Log lines at level ERROR or above, as reported by workers."),
    _count(
        "prioqueue_duplicates_total",
        "duplicates",
        "Duplicates found by the server; workers recognise most duplicates themselves.",
    ),
    _count("prioqueue_leases_reaped_total", "reaped", "Leases that expired, usually because a worker was lost."),
    _count("prioqueue_leases_void_total", "void", "Ends of leases that came too late."),
    _count("prioqueue_dead_letters_dropped_total", "dead_dropped", "Dead letters that were not kept, or were deleted."),
    Metric(
        "prioqueue_dead_letters",
        "gauge",
        "Dead letters that are kept, of this crawl and earlier ones, by reason.",
        lambda seen: {reason or "other": count for reason, count in seen.letters.items()},
        labels=("reason",),
    ),
    _status(
        "prioqueue_slots",
        "Slots with pending requests, by what they wait for: nothing (ready), their rate, their concurrency, or the"
        " end of a Retry-After.",
        _slots,
        labels=("state",),
    ),
    _status("prioqueue_suspects", "Pending requests that may have killed workers.", lambda status: status.suspects),
    _status("prioqueue_seen_fingerprints", "Fingerprints of requests seen.", lambda status: status.state.seen),
    _status(
        "prioqueue_requests_kept",
        "Requests that stay in the memory of living workers and are not stored, waiting or in progress.",
        lambda status: sum(worker.kept for worker in status.workers if worker.is_alive),
    ),
    _status(
        "prioqueue_pages_kept",
        "Pages that stay leased until requests that stay in workers, and come from these pages, are done.",
        lambda status: sum(worker.kept_pages for worker in status.workers if worker.is_alive),
    ),
    _status(
        "prioqueue_requests_unserializable",
        "Requests that living workers could not store since they started.",
        lambda status: sum(worker.unstorable for worker in status.workers if worker.is_alive),
    ),
    _status(
        "prioqueue_workers",
        "Workers in each state; a silent worker has had no contact for PRIOQUEUE_LEASE_TTL, and is forgotten some"
        " time later.",
        _workers,
        labels=("state",),
    ),
    _status(
        "prioqueue_heartbeat_lag_seconds",
        "Longest time, in seconds, since a living worker last had contact with the server.",
        _lag_s,
    ),
    _status(
        "prioqueue_slow_pages",
        "Pages in progress that may never end (PRIOQUEUE_SLOW_PAGE).",
        lambda status: sum(len(worker.slow) for worker in status.workers),
    ),
    _status("prioqueue_crawl_state", "1 for each state that the crawl is in, else 0.", _crawl, labels=("state",)),
    _status(
        "prioqueue_crawl_start_timestamp_seconds",
        "When the crawl began.",
        lambda status: status.state.created_ms / 1000,
    ),
    _status(
        "prioqueue_crawl_end_timestamp_seconds",
        "When the crawl ended; missing while it is open.",
        lambda status: status.state.ended_ms / 1000 if status.state.has_ended else None,
    ),
    _status(
        "prioqueue_crawl_left_seconds",
        "Seconds until no request is left, at the rates of the last seconds; missing if that is unknown, or if the"
        " frontier grows.",
        lambda status: status.pace.left_s,
    ),
    _status(
        "prioqueue_budget_keys", "Budget keys for which something was counted.", lambda status: status.budgets.keys
    ),
    _status(
        "prioqueue_budget_used_ratio",
        "Largest used part of a cap, by kind of cost; 1 means that a cap is used up.",
        _budgets,
        labels=("cost",),
    ),
    _status(
        "prioqueue_requests_over_budget",
        "Requests given up because they exceeded a budget.",
        lambda status: status.budgets.over,
    ),
    _status("prioqueue_seeds", "Seeds that wait in each key of PRIOQUEUE_SEEDS_KEY.", _seeds, labels=("key",)),
)
"""All metrics of a frontier; a test compares them with the reference in docs/."""


@dataclass(frozen=True, slots=True)
class ServerSeen:
    """The values from which the metrics of a server are read.

    Args:
        info: the server's INFO; None if the server doesn't answer, empty if the Redis user may not call it.
        frontiers: number of frontiers that are exported.
        left_out: number of frontiers that are not exported, since there are too many.
        taken_s: seconds that all readings together took.
    """

    info: Mapping[str, Any] | None
    frontiers: int
    left_out: int
    taken_s: float


def _info(name: str, field: str, doc: str, kind: Any = "gauge") -> Metric[ServerSeen]:
    return Metric(name, kind, doc, lambda seen: _number((seen.info or {}).get(field)))


def _number(value: Any) -> float | None:
    return value if isinstance(value, (int, float)) else None


SERVER_METRICS: Sequence[Metric[ServerSeen]] = (
    Metric("prioqueue_up", "gauge", "1 if the server answers, else 0.", lambda seen: seen.info is not None),
    Metric(
        "prioqueue_scrape_duration_seconds",
        "gauge",
        "Seconds that the exporter took to read all of this.",
        lambda seen: seen.taken_s,
    ),
    Metric("prioqueue_frontiers", "gauge", "Frontiers that are exported.", lambda seen: seen.frontiers),
    Metric(
        "prioqueue_frontiers_left_out",
        "gauge",
        f"Frontiers of the server that are not exported, since there are more than {MOST_FRONTIERS}.",
        lambda seen: seen.left_out,
    ),
    Metric(
        "prioqueue_redis_info",
        "gauge",
        "Always 1; the labels describe the server.",
        lambda seen: {(version_text(dict(seen.info)), seen.info.get("role", "")): 1} if seen.info else None,
        labels=("version", "role"),
    ),
    Metric(
        "prioqueue_redis_eviction_policy",
        "gauge",
        "Always 1; the label is the server's maxmemory-policy. A frontier needs noeviction or volatile-….",
        lambda seen: {seen.info["maxmemory_policy"]: 1} if seen.info and "maxmemory_policy" in seen.info else None,
        labels=("policy",),
    ),
    _info("prioqueue_redis_memory_used_bytes", "used_memory", "Memory used by the server."),
    _info("prioqueue_redis_memory_limit_bytes", "maxmemory", "The server's maxmemory; 0 for no limit."),
    _info("prioqueue_redis_evicted_keys_total", "evicted_keys", "Keys that the server has evicted.", "counter"),
    _info("prioqueue_redis_clients", "connected_clients", "Connections of clients."),
    _info("prioqueue_redis_commands_total", "total_commands_processed", "Commands executed.", "counter"),
    _info("prioqueue_redis_uptime_seconds", "uptime_in_seconds", "Seconds since the server's start."),
    _info("prioqueue_redis_aof_enabled", "aof_enabled", "1 if the server writes an append-only file, else 0."),
    Metric(
        "prioqueue_redis_write_failed",
        "gauge",
        "1 if the server's last snapshot, or its last write of the append-only file, failed, else 0.",
        lambda seen: _write_failed(seen.info) if seen.info else None,
    ),
)
"""All metrics of a server and of the exporter; a test compares them with the reference in docs/."""


def _write_failed(info: Mapping[str, Any]) -> bool:
    return "err" in (info.get("aof_last_write_status"), info.get("rdb_last_bgsave_status"))


class Search:
    """Looks for the frontiers of a server again and again, in a thread that leaves the server most of its time."""

    def __init__(self, link: Link, report: Callable[[str], object]) -> None:
        self._link = link
        self._report = report
        self._names: Sequence[str] = ()
        self._closed = threading.Event()
        threading.Thread(target=self._run, name="prioqueue search", daemon=True).start()

    def names(self) -> Sequence[str]:
        """Return the names of the frontiers that were found last."""
        return self._names

    def close(self) -> None:
        self._closed.set()

    def _run(self) -> None:
        rest: Callable[[int], object] | None = None
        trouble = ""
        while not self._closed.is_set():
            before, trouble, silent = trouble, "", list[str]()
            try:
                names = frontier_names(self._link, rest, on_silent=silent.append)
                rest = self._rest
            except PrioQueueError as error:
                trouble = f"the frontiers of the server can't be listed: {error}"
            else:
                # Those of a node that can't be used are known from before.
                self._names = sorted({*names, *(self._names if silent else ())})
                trouble = f"the frontiers of some nodes can't be listed: {'; '.join(silent)}" if silent else ""
            if trouble not in ("", before):
                self._report(trouble)
            self._closed.wait(RETRY_S if trouble else SEARCH_S)

    def _rest(self, _: int) -> None:
        self._closed.wait(REST_S)


class FleetCollector:
    """Reads the metrics of frontiers and their server; called by the threads that serve them.

    Args:
        report: called with a text when something can't be read.
        lease_ttl_s: seconds for which a silent worker counts as alive.
    """

    def __init__(
        self,
        link: Link,
        names: Callable[[], Sequence[str]],
        report: Callable[[str], object],
        *,
        lease_ttl_s: float,
        seeds_keys: Sequence[str] = (),
    ) -> None:
        self._link = link
        self._names = names
        self._report = report
        self._lease_ttl_s = lease_ttl_s
        self._seeds_keys = seeds_keys
        self._server = self._reading("", 1)
        self._readings: dict[str, FrontierReading] = {}
        self._troubles: dict[str, str] = {}
        self._lock = threading.Lock()

    def collect(self) -> Iterator[Family]:
        """Yield the metrics in the library's format."""
        with self._lock:
            found, server = self._look()
        yield from families(FRONTIER_METRICS, ("frontier",), [((name,), seen) for name, seen in found.items()])
        yield from families(SERVER_METRICS, (), [((), server)])

    def _look(self) -> tuple[Mapping[str, FrontierSeen], ServerSeen]:
        begun, names = time.perf_counter(), self._names()
        shown = self._shown(names)
        server = self._checked("", self._server.get("info", lambda inspector: inspector.link.info() or {}))
        found = {} if server.trouble else {name: self._seen(name) for name in shown}
        info = None if server.trouble else server.value
        return found, ServerSeen(info, len(shown), len(names) - len(shown), time.perf_counter() - begun)

    def reading_of(self, name: str) -> FrontierReading | None:
        """Return the reading of a frontier; without a name, of the only one. None if it isn't exported here."""
        with self._lock:
            shown = self._shown(self._names())
            return self._readings.get(name or (shown[0] if len(shown) == 1 else ""))

    def _shown(self, names: Sequence[str]) -> Sequence[str]:
        """Return the frontiers that are read, and prepare to read them."""
        shown = names[:MOST_FRONTIERS]
        if [*self._readings] != [*shown]:
            self._readings = {name: self._reading(name, len(shown)) for name in shown}
        return shown

    def _reading(self, name: str, count: int) -> FrontierReading:
        return FrontierReading(Inspector(self._link, name, lease_ttl_s=self._lease_ttl_s), share=SHARE / count)

    def _seen(self, name: str) -> FrontierSeen:
        found = self._checked(name, self._readings[name].get("exported", self._read))
        seen = FrontierSeen() if found.trouble or found.value is None else found.value
        return replace(seen, age_s=found.age_s, is_known=not found.is_away and found.trouble != BUSY)

    def _read(self, inspector: Inspector) -> FrontierSeen | None:
        status = inspector.status(self._seeds_keys)
        if status is None:
            return None
        return FrontierSeen(status, inspector.letters_by_reason(), inspector.runs.sums())

    def _checked(self, name: str, reading: Reading[T]) -> Reading[T]:
        """Return a reading, and report a new trouble."""
        if reading.trouble and reading.trouble != self._troubles.get(name):
            self._report(f"frontier {name!r}: {reading.trouble}" if name else reading.trouble)
        self._troubles[name] = reading.trouble
        return reading
