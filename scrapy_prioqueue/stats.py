"""The table of all stats; a test compares it with the reference in docs/.

A name with angle brackets stands for several stats: one for each type, key or layer.
"""

from __future__ import annotations

from scrapy_prioqueue.frontier.base import (
    DEAD_BY_BUDGET,
    DEAD_BY_CALLBACK,
    DEAD_BY_DECODE,
    DEAD_BY_DOWNLOAD,
    DEAD_BY_ESCALATION,
    DEAD_BY_LEASE,
)

STATS: dict[str, str] = {}
"""Stats of this package: what each counts, as Markdown."""

SCRAPY_STATS: dict[str, str] = {}
"""Stats of Scrapy that count the requests of a frontier, too."""


def _ours(name: str, meaning: str) -> str:
    STATS[name] = meaning
    return name


def _scrapys(name: str, meaning: str) -> str:
    SCRAPY_STATS[name] = meaning
    return name


EXCHANGES_STAT = _ours("prioqueue/exchange/count", "Exchanges that were answered.")
EXCHANGE_FAILED_STAT = _ours(
    "prioqueue/exchange/failed",
    "Calls to the server without an answer, or with an unexpected error.",
)
EXCHANGE_FULL_STAT = _ours("prioqueue/exchange/full", "Exchanges in which a full server rejected requests.")
OUTAGES_STAT = _ours("prioqueue/outage/count", "How often the server became unavailable.")
RECALLS_STAT = _ours(
    "prioqueue/recall/count", "How often this worker had to restore what the server had lost in a crash."
)
RECALL_RESENT_STAT = _ours("prioqueue/recall/resent", "Operations that this worker sent again for that reason.")
LEASES_STAT = _ours("prioqueue/lease/count", "Requests leased to this worker.")
LEASE_RELEASED_STAT = _ours(
    "prioqueue/lease/released",
    "Leases released unstarted: a better request came, they had waited too long, the engine was paused or had"
    " dropped them, or the spider closed.",
)
LEASE_REFUSED_STAT = _ours(
    "prioqueue/lease/refused",
    "Leases refused because this worker doesn't know a callback, a class or a rule that the request names; see"
    " [rolling deploys](errors.md#rolling-deploys).",
)
LEASE_REAPED_STAT = _ours(
    "prioqueue/lease/reaped", "Expired leases, of any worker, that this worker's exchanges returned to the queue."
)
LEASE_LOST_STAT = _ours(
    "prioqueue/lease/lost",
    "Leases that this worker had lost when it renewed them: they had expired, or an operator had taken them.",
)
SLOW_STAT = _ours(
    "prioqueue/slow",
    "Warnings about pages that may never end, and about a blocked event loop, both after `PRIOQUEUE_SLOW_PAGE`"
    " seconds.",
)
ABANDONED_STAT = _ours(
    "prioqueue/abandoned",
    "Pages that this worker abandoned when it closed, since they made no progress (`PRIOQUEUE_CLOSE_TIMEOUT`).",
)
HEARTBEAT_RENEWED_STAT = _ours(
    "prioqueue/heartbeat/renewed",
    "Leases renewed by a thread because the spider's code blocked the event loop; a lease counts at each renewal.",
)
LEASE_CLAIMED_STAT = _ours(
    "prioqueue/lease/claimed",
    "Leases claimed for requests in progress: those started during an outage, and those whose leases the server had"
    " lost.",
)
LEASE_VOID_STAT = _ours(
    "prioqueue/lease/void",
    "Acks, releases and fails that came after the lease had expired, so that the page is fetched again. Also claims"
    " after an outage, if another worker holds the request or has done it.",
)
COOKIEJAR_KEPT_STAT = _ours(
    "prioqueue/cookiejar/kept",
    "Requests that stayed in this worker because it has the cookies of their cookie session.",
)
START_REPEATED_STAT = _ours(
    "prioqueue/start/repeated", "Start requests that an earlier run or another worker had already pushed."
)
DEAD_STATS = {
    DEAD_BY_DOWNLOAD: _ours("prioqueue/dead/download", "Dead letters because retries were exhausted."),
    DEAD_BY_CALLBACK: _ours(
        "prioqueue/dead/callback",
        "Dead letters because a callback or errback raised, or put the request back too often.",
    ),
    DEAD_BY_DECODE: _ours("prioqueue/dead/decode", "Dead letters of requests and seeds that could not be decoded."),
    DEAD_BY_LEASE: _ours(
        "prioqueue/dead/lease",
        "Dead letters of requests that this worker found lost too often (`PRIOQUEUE_MAX_ATTEMPTS`).",
    ),
    DEAD_BY_BUDGET: _ours(
        "prioqueue/dead/budget", "Dead letters of requests that this worker's exchanges found over a budget."
    ),
    DEAD_BY_ESCALATION: _ours(
        "prioqueue/dead/escalation", "Dead letters because the last of `PRIOQUEUE_LAYERS` failed."
    ),
}
"""The stats of dead letters, by reason."""

REQUEUED_STAT = _ours(
    "prioqueue/requeued", "Requests put back by `requeue()`, or because their callback closed the spider."
)
ESCALATED_STAT = _ours(
    "prioqueue/escalated", "Requests that `escalate()` sent to another layer, counted when they are scheduled."
)
ESCALATED_TO_STAT = _ours("prioqueue/escalated/<layer>/<reason>", "The same, by layer and reason.")
CONFIDENCE_STAT = _ours(
    "prioqueue/confidence/<class>",
    "Items that `LineagePipeline` has passed on with a confidence in that class, from `0-9` to `90-100`.",
)
DONE_TIER_STAT = _ours("prioqueue/done/tier/<tier>", "Pages done in this worker, by tier; set when it closes.")
DONE_SLOT_STAT = _ours(
    "prioqueue/done/slot/<slot>",
    "The same by slot, usually a host, for the 20 slots with the most pages; all others are counted as `(others)`.",
)
LETTERS_CRAWL_STAT = _ours(
    "prioqueue/letters/crawl",
    "Dead letters of this crawl, of all workers, when this worker left.",
)
LETTERS_KEPT_STAT = _ours(
    "prioqueue/letters/kept", "Dead letters in the frontier, including those of earlier crawls, when this worker left."
)
DRAINED_STAT = _ours("prioqueue/drained", "New requests that were dropped because of `scrapy frontier drain`.")
SEEDS_TAKEN_STAT = _ours("prioqueue/seeds/taken", "Seeds that this worker took.")
SEEDS_DROPPED_STAT = _ours(
    "prioqueue/seeds/dropped",
    "Seeds that led to no request: `make_request_from_seed()` made none, or the `process_start()` of a spider"
    " middleware left it out.",
)
SEEDS_RETURNED_STAT = _ours(
    "prioqueue/seeds/returned",
    "Seeds of lost workers, and of an earlier process with this worker's id, that this worker put back into their key.",
)
ITEMS_WRITTEN_STAT = _ours(
    "prioqueue/items/written",
    "Items that a [pipeline of `scrapy_prioqueue.compat`](../migrating.md#item-pipelines) has written to Redis.",
)
ITEMS_FAILED_STAT = _ours(
    "prioqueue/items/failed",
    "Items that such a pipeline could not write: too large, or the spider was closed while the server was unavailable.",
)
REJECTED_STAT = _ours(
    "prioqueue/rejected", "Requests that were invalid, or came after the end of their crawl; each is logged."
)
ERRORS_STAT = _ours("prioqueue/errors", "Unexpected errors in the scheduler; each is logged with its traceback.")
UNSERIALIZABLE_TYPE_STAT = _ours(
    "prioqueue/unserializable/<type>",
    "Requests that can't be stored, by the type of the value that [can't](values.md). All types after the first 100 are"
    " counted as `(others)`, and requests that are [too large](values.md#a-request-that-is-too-large) for the server as"
    " `(too large)`.",
)
BUDGET_PAGES_STAT = _ours(
    "prioqueue/budget/<key>/pages",
    "Pages of a budget key that this worker has done. All keys after the first 100 are counted as `(others)`.",
)
BUDGET_RENDERS_STAT = _ours("prioqueue/budget/<key>/renders", "Rendered pages of a budget key.")
BUDGET_BYTES_STAT = _ours("prioqueue/budget/<key>/bytes", "Bytes of responses of a budget key.")
BUDGET_SECONDS_STAT = _ours("prioqueue/budget/<key>/seconds", "Seconds that pages of a budget key took.")

ENQUEUED_STAT = _scrapys("scheduler/enqueued", "Requests stored, here or in the frontier; without duplicates.")
ENQUEUED_REDIS_STAT = _scrapys(
    "scheduler/enqueued/redis", "Requests stored in Redis, counted when the server has confirmed them."
)
ENQUEUED_MEMORY_STAT = _scrapys("scheduler/enqueued/memory", "Requests stored in this process.")
ENQUEUED_DISK_STAT = _scrapys("scheduler/enqueued/disk", "Requests stored in `JOBDIR`, without a server.")
DEQUEUED_STAT = _scrapys("scheduler/dequeued", "Requests handed to the engine.")
DEQUEUED_REDIS_STAT = _scrapys("scheduler/dequeued/redis", "Requests that came from Redis.")
DEQUEUED_MEMORY_STAT = _scrapys(
    "scheduler/dequeued/memory",
    "Requests that came from this process, because they can't be stored or because of an outage.",
)
DEQUEUED_DISK_STAT = _scrapys("scheduler/dequeued/disk", "Requests that came from `JOBDIR`, without a server.")
UNSERIALIZABLE_STAT = _scrapys(
    "scheduler/unserializable",
    "Requests that can't be stored, and so stay in this process; `prioqueue/unserializable/<type>` counts them by"
    " type.",
)
FILTERED_STAT = _scrapys("dupefilter/filtered", "Duplicates, whether this worker or only the frontier recognised them.")
