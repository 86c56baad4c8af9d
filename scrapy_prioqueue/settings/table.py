"""The table of all settings; a test compares it with the reference in docs/."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from scrapy_prioqueue.frontier.seen import MOST_EXPECTED
from scrapy_prioqueue.settings.policies import (
    autothrottle,
    budgets,
    burst,
    layers,
    part,
    slots,
    tier_weights,
)
from scrapy_prioqueue.settings.readers import (
    LINEAGE_FIELDS,
    MAX_ATTEMPTS_LIMIT,
    MOST_SEEDS_AT_ONCE,
    Reader,
    backoff,
    choices,
    count,
    error_rate,
    field_names,
    flag,
    idle_time,
    interval,
    ip_address,
    limit,
    mapping,
    names,
    one_of,
    optional,
    ports,
    redis_url,
    revisit_time,
    seconds,
    seed_keys,
    text,
    tier_rules,
    tiers,
    timeout,
)

DEFAULT_REDIS_URL = "redis://127.0.0.1:6379/0"
DEFAULT_TIER = "normal"
SEEDS_KEY = "PRIOQUEUE_SEEDS_KEY"


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting.

    Args:
        default: the value where the user sets none.
        read: checks and converts a value, or raises `SettingError`.
        doc: what it means, with its unit.
        means_none: `None` is a value of its own, not the same as no value.
    """

    default: Any
    read: Reader
    doc: str
    means_none: bool = False


SETTINGS: Mapping[str, Setting] = {
    "PRIOQUEUE_REDIS_URL": Setting(
        None, optional(redis_url), f"URL of the Redis server; if unset, `REDIS_URL`, else `{DEFAULT_REDIS_URL}`."
    ),
    "PRIOQUEUE_REDIS_OPTIONS": Setting(
        {}, mapping, "Further keyword arguments of `redis.asyncio.Redis`; they override the URL."
    ),
    "PRIOQUEUE_REDIS_TIMEOUT": Setting(5.0, timeout, "Timeout in seconds for connecting, and for each reply."),
    "PRIOQUEUE_FALLBACK": Setting(
        "memory",
        one_of("memory", "error"),
        'If the server can\'t be used at start: crawl in process ("memory") or close the spider ("error").',
    ),
    "PRIOQUEUE_ON_OUTAGE": Setting(
        "continue",
        one_of("continue", "pause"),
        "If the server becomes unreachable during the crawl: continue with leased requests, then with a share"
        ' of those found ("continue"), or start no new requests ("pause").',
    ),
    "PRIOQUEUE_OUTAGE_GRACE": Setting(
        15.0,
        seconds,
        "Seconds of an outage in which a worker starts only requests that it has leased; after that it also"
        " starts its share of those that it finds.",
    ),
    "PRIOQUEUE_NAME": Setting(
        "%(spider)s",
        text,
        "Name of the frontier; `%(spider)s` is the spider's name, `%(country)s` its argument `country`.",
    ),
    "PRIOQUEUE_CRAWL_ID": Setting(
        None, optional(text), "Name of the crawl; a worker that starts after this crawl has ended closes at once."
    ),
    "PRIOQUEUE_CRAWL_COMMANDS": Setting(
        [],
        names,
        "Commands of installed packages that join the shared crawl, in addition to `crawl`, `runspider` and"
        " the project's own.",
    ),
    "PRIOQUEUE_WORKER_ID": Setting(
        None,
        optional(text),
        "Id of this worker, unique among living workers; by default host name, process id and a random part.",
    ),
    "PRIOQUEUE_TIERS": Setting(["urgent", "high", DEFAULT_TIER, "low"], tiers, "Names of the tiers, best first."),
    "PRIOQUEUE_DEFAULT_TIER": Setting(DEFAULT_TIER, text, "Tier of requests that get none from `meta` or a rule."),
    "PRIOQUEUE_TIER_RULES": Setting(
        [], tier_rules, "List of `{tier, url, callback}`: the first rule that matches sets the tier."
    ),
    "PRIOQUEUE_ORDER": Setting(
        None,
        optional(one_of("lifo", "fifo")),
        'Which of two requests of equal tier and priority is served first, the newest ("lifo") or the oldest ("fifo");'
        " by default the order of `SCHEDULER_MEMORY_QUEUE`.",
    ),
    "PRIOQUEUE_LEASE_TTL": Setting(
        60.0, partial(seconds, above=0.1), "Seconds without contact after which a worker's requests go to others."
    ),
    "PRIOQUEUE_MAX_ATTEMPTS": Setting(
        5,
        partial(count, limit=MAX_ATTEMPTS_LIMIT),
        "How often a request may be lost with its worker before it becomes a dead letter.",
    ),
    "PRIOQUEUE_DEAD_LETTER_ON": Setting(
        ["download", "callback", "lease", "decode", "budget", "escalation"],
        choices("download", "callback", "lease", "decode", "budget", "escalation"),
        "Reasons for which requests are kept as dead letters: their retries are exhausted (with"
        " `scrapy_prioqueue.RetryMiddleware`), their callback raises, workers are lost while they hold them, they"
        " can't be decoded, they exceed a budget, their last layer fails.",
    ),
    "PRIOQUEUE_DEAD_LETTER_LIMIT": Setting(
        10_000,
        count,
        "Number of dead letters kept for each reason; the oldest are dropped and counted, with a warning. Of"
        " those over budget only letters of earlier crawls are dropped.",
    ),
    "PRIOQUEUE_RETRY_BACKOFF": Setting(
        {"base": 1, "factor": 2, "cap": 300, "jitter": 0.5, "retry_after_cap": 3600},
        backoff,
        "Backoff of the retries of `scrapy_prioqueue.RetryMiddleware`; `None` for no backoff.",
        means_none=True,
    ),
    "PRIOQUEUE_REQUEUE_LIMIT": Setting(
        5, limit, "How often `requeue()` may put a request back before it becomes a dead letter."
    ),
    "PRIOQUEUE_SLOTS": Setting(
        None,
        optional(slots),
        "Limits of download slots, for all workers together: a dictionary of `{delay, concurrency, burst}` by"
        " slot, `*.example.com` or `*`.",
    ),
    "PRIOQUEUE_SLOT_DELAY": Setting(
        None,
        optional(seconds),
        "Seconds between two requests to a slot whose delay `PRIOQUEUE_SLOTS` doesn't set; by default no delay.",
    ),
    "PRIOQUEUE_SLOT_CONCURRENCY": Setting(
        None,
        optional(limit),
        "Requests in progress at a time to a slot whose concurrency `PRIOQUEUE_SLOTS` doesn't set; 0, the default, for"
        " no limit.",
    ),
    "PRIOQUEUE_SLOT_BURST": Setting(
        None,
        optional(burst),
        "Requests that may start at once after a pause, to a slot whose burst `PRIOQUEUE_SLOTS` doesn't set; by"
        " default 1.",
    ),
    "PRIOQUEUE_OBEY_RETRY_AFTER": Setting(
        True,
        flag,
        "Whether a 429 or 503 with `Retry-After` closes its slot for all workers until that time, at most for the"
        " `retry_after_cap` of `PRIOQUEUE_RETRY_BACKOFF`.",
    ),
    "PRIOQUEUE_AUTOTHROTTLE": Setting(
        None,
        optional(autothrottle),
        "Whether delays of slots follow their latency, for all workers together: `True` to use Scrapy's"
        " `AUTOTHROTTLE_` settings, or a dictionary that overrides `start_delay`, `max_delay` or"
        " `target_concurrency`; `False` to turn it off for all workers.",
    ),
    "PRIOQUEUE_ROBOTSTXT_CRAWL_DELAY": Setting(
        None,
        optional(flag),
        "Whether the `Crawl-delay` of a robots.txt that Scrapy reads is the minimum delay of its slot; by default"
        " only if another worker sets this.",
    ),
    "PRIOQUEUE_TIER_WEIGHTS": Setting(
        None,
        optional(tier_weights),
        "Dictionary with a weight for each tier: tiers that have requests share the crawl by weight. By default,"
        " and with `{}`, the best tier always comes first.",
    ),
    "PRIOQUEUE_BUDGETS": Setting(
        None,
        optional(budgets),
        "Caps on the pages, renders, bytes and seconds of a crawl: a dictionary of `{pages, renders, bytes, seconds}`"
        " by budget key, or `*`.",
    ),
    "PRIOQUEUE_HIGH_WATER": Setting(
        None,
        optional(limit),
        "Number of pending requests from which on discovery is held back: no request of `PRIOQUEUE_DISCOVERY_TIERS` is"
        " started, and `start()` and seeds are not read. By default unlimited. Of each slot only as many requests count"
        " as its delay allows within a minute.",
    ),
    "PRIOQUEUE_LOW_WATER": Setting(
        None,
        optional(limit),
        "Number of pending requests at which discovery continues; by default 80 % of the high mark.",
    ),
    "PRIOQUEUE_PENDING_LIMIT": Setting(
        None,
        optional(limit),
        "Number of all pending requests, including those of slots that must wait, from which on discovery is held"
        " back; by default ten times the high mark.",
    ),
    "PRIOQUEUE_MEMORY_HIGH_WATER": Setting(
        None,
        optional(part),
        "Used part of the server's `maxmemory`, above 0 and at most 1, from which on discovery is held back; it"
        " continues at nine tenths of that. By default unlimited.",
    ),
    "PRIOQUEUE_DISCOVERY_TIERS": Setting(
        None,
        optional(names),
        "Tiers that are not served while discovery is held back; by default the last one.",
    ),
    "PRIOQUEUE_LAYERS": Setting(
        None,
        optional(layers),
        "Extraction layers, cheapest first, through which `scrapy_prioqueue.escalate()` sends a request:"
        " names, or `{name, meta}`.",
    ),
    "PRIOQUEUE_LINEAGE_FIELDS": Setting(
        dict(LINEAGE_FIELDS),
        field_names,
        "Names of the fields that `scrapy_prioqueue.LineagePipeline` adds to items; `None` leaves a field out.",
    ),
    "PRIOQUEUE_ON_FINISH": Setting(
        "restart",
        one_of("restart", "keep"),
        'Whether the crawl after a finished one forgets ("restart") or keeps ("keep") the fingerprints seen.',
    ),
    "PRIOQUEUE_SEEN_NAME": Setting(
        None,
        optional(text),
        "Name of the frontier that holds the fingerprints seen, for spiders that share only those; by default"
        " this frontier.",
    ),
    "PRIOQUEUE_SEEN": Setting(
        "exact",
        one_of("exact", "compact", "bloom"),
        'How fingerprints are stored: with at least 80 bits each ("exact"), with at least 52 bits each ("compact"), or'
        ' in a Bloom filter ("bloom"), which takes some new pages for duplicates.',
    ),
    "PRIOQUEUE_SEEN_EXPECTED": Setting(
        None,
        optional(partial(count, limit=MOST_EXPECTED)),
        "Number of fingerprints that you expect, used to size their keys; a crawl may have more."
        ' "bloom" is sized for at least 10,000.',
    ),
    "PRIOQUEUE_SEEN_ERROR_RATE": Setting(
        0.01, error_rate, 'Share of new pages that "bloom" may take for duplicates, from 1e-9 to 0.1.'
    ),
    "PRIOQUEUE_REVISIT_AFTER": Setting(
        None,
        optional(revisit_time),
        "Seconds after which a fingerprint counts as new again; -1 for never, unless a request sets a time."
        " By default never, and no times are stored.",
    ),
    "PRIOQUEUE_FLUSH_ON_START": Setting(
        False,
        flag,
        "Delete everything in the frontier at start and begin a new crawl; rejected while other workers are alive.",
    ),
    "PRIOQUEUE_START": Setting(
        "once",
        one_of("once", "each"),
        'Whether a request that several workers or runs yield from `start()` is fetched once ("once"), or'
        ' each time it is yielded ("each").',
    ),
    "PRIOQUEUE_HOLD_UNTIL_START": Setting(
        False,
        flag,
        "A worker takes no shared requests until its own start requests, and those they lead to, are done.",
    ),
    "PRIOQUEUE_COOKIEJARS": Setting(
        "local",
        one_of("local", "shared"),
        'Whether a request with `meta["cookiejar"]` found on a page of the same jar stays in the worker that'
        ' has the cookies ("local"), or is shared like any other ("shared").',
    ),
    "PRIOQUEUE_MAX_IDLE": Setting(
        0.0, idle_time, "Seconds that an idle worker waits for requests pushed by other programs; -1 for ever."
    ),
    SEEDS_KEY: Setting(
        "%(name)s:start_urls",
        optional(seed_keys),
        "Redis key, or list of keys, best first, from which seeds are read; `%(name)s` is the spider's name,"
        " `%(country)s` its argument `country`. Read only if this is set or the spider has `SeedsMixin`.",
    ),
    "PRIOQUEUE_SEEDS_BATCH_SIZE": Setting(
        100,
        partial(count, limit=MOST_SEEDS_AT_ONCE),
        f"Number of seeds that a worker takes at once, from 1 to {MOST_SEEDS_AT_ONCE:,}.",
    ),
    "PRIOQUEUE_SLOW_PAGE": Setting(
        180.0,
        seconds,
        "Seconds in progress after which a page is reported as one that may never end, in the worker's log"
        " and by `scrapy frontier status`; 0 for never.",
    ),
    "PRIOQUEUE_CLOSE_TIMEOUT": Setting(
        10.0,
        timeout,
        "Seconds that a closing worker waits for the server, and for pages without progress, before it gives"
        " up with a warning.",
    ),
    "PRIOQUEUE_OUTBOX_LIMIT": Setting(
        10_000,
        count,
        "Number of uncommitted requests above which a worker doesn't read `start()` further. While the server is full"
        " or away, it also starts only one request at a time, and none at twice that number.",
    ),
    "PRIOQUEUE_JOURNAL_TIME": Setting(
        30.0,
        seconds,
        "Seconds for which a worker keeps its committed operations, to send them again to a server that lost"
        " its newest writes.",
    ),
    "PRIOQUEUE_JOURNAL_LIMIT": Setting(
        20_000, count, "Maximum number of operations that it keeps; they are also limited to 32 MiB in total."
    ),
    "PRIOQUEUE_WAIT_REPLICAS": Setting(
        0, partial(count, least=0, limit=100), "Replicas that must acknowledge a commit before it counts as done."
    ),
    "PRIOQUEUE_SEEN_CACHE": Setting(
        100_000,
        limit,
        "Number of fingerprints, about 25 bytes each, that a worker caches to recognise duplicates without"
        " asking the server; with `PRIOQUEUE_REVISIT_AFTER` each stays for a tenth of that time. 0 for none.",
    ),
    "PRIOQUEUE_LOG_INTERVAL": Setting(
        60.0,
        interval,
        "Seconds between two log lines of a worker about the whole crawl; 0 or `None` for none. If unset,"
        " `LOGSTATS_INTERVAL`.",
        means_none=True,
    ),
    "PRIOQUEUE_METRICS_PORT": Setting(
        None,
        optional(ports),
        "Port on which a worker serves its metrics for Prometheus, or the first and the last port of a range, of which"
        " each worker takes the first free one. With 0 the system chooses a free port. By default no metrics are"
        " served.",
    ),
    "PRIOQUEUE_METRICS_HOST": Setting(
        "127.0.0.1",
        ip_address,
        'IP address on which a worker serves its metrics; "0.0.0.0" for all addresses of its machine.',
    ),
    "PRIOQUEUE_SCALE_DRAIN_TIME": Setting(
        600.0,
        timeout,
        "Seconds in which the requests that can start should be done; determines how many workers"
        " `scrapy frontier scale` recommends.",
    ),
    "PRIOQUEUE_SCALE_MIN": Setting(
        0, limit, "Minimum number of workers that `scrapy frontier scale` recommends, also after the crawl."
    ),
    "PRIOQUEUE_SCALE_MAX": Setting(10, limit, "Maximum number of workers that `scrapy frontier scale` recommends."),
}
