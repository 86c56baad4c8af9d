"""The table of all settings: what the reference in docs/ is compared with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

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
    Reader,
    attempts,
    backoff,
    choices,
    count,
    error_rate,
    expected,
    field_names,
    flag,
    idle_time,
    lease_ttl,
    limit,
    mapping,
    names,
    one_of,
    optional,
    redis_url,
    replicas,
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
        None, optional(redis_url), f"Address of the server; else `REDIS_URL`, else `{DEFAULT_REDIS_URL}`."
    ),
    "PRIOQUEUE_REDIS_OPTIONS": Setting(
        {}, mapping, "Further keyword arguments of `redis.asyncio.Redis`; they win over the URL."
    ),
    "PRIOQUEUE_REDIS_TIMEOUT": Setting(5.0, timeout, "Seconds that connecting, and an answer, may take."),
    "PRIOQUEUE_FALLBACK": Setting(
        "memory",
        one_of("memory", "error"),
        'Without a server at start: crawl in process ("memory") or close the spider ("error").',
    ),
    "PRIOQUEUE_ON_OUTAGE": Setting(
        "continue",
        one_of("continue", "pause"),
        'Without the server in mid-crawl: go on with what is leased, then with a share of what is found ("continue"),'
        ' or start nothing new ("pause").',
    ),
    "PRIOQUEUE_OUTAGE_GRACE": Setting(
        15.0,
        seconds,
        "Seconds without the server in which a worker that goes on starts only what it has leased; after that it starts"
        " its share of what is found, too.",
    ),
    "PRIOQUEUE_NAME": Setting(
        "%(spider)s",
        text,
        "Name of the frontier; `%(spider)s` is the spider's name, `%(country)s` its argument `country`.",
    ),
    "PRIOQUEUE_CRAWL_ID": Setting(
        None, optional(text), "Name of the run; a worker that comes after its end closes at once."
    ),
    "PRIOQUEUE_CRAWL_COMMANDS": Setting(
        [],
        names,
        "Commands of installed packages that take part in the shared crawl, beside `crawl`, `runspider` and the"
        " project's own; see below.",
    ),
    "PRIOQUEUE_WORKER_ID": Setting(
        None,
        optional(text),
        "Id of this worker, unique among the living; by default host, process id and a random part.",
    ),
    "PRIOQUEUE_TIERS": Setting(["urgent", "high", DEFAULT_TIER, "low"], tiers, "Names of the tiers, best first."),
    "PRIOQUEUE_DEFAULT_TIER": Setting(DEFAULT_TIER, text, "Tier of a request to which nothing else gives one."),
    "PRIOQUEUE_TIER_RULES": Setting(
        [], tier_rules, "List of `{tier, url, callback}`: the first rule that matches gives the tier."
    ),
    "PRIOQUEUE_ORDER": Setting(
        None,
        optional(one_of("lifo", "fifo")),
        'Which of two requests of equal rank goes first, the newest ("lifo") or the oldest ("fifo");'
        " by default as `SCHEDULER_MEMORY_QUEUE` says.",
    ),
    "PRIOQUEUE_LEASE_TTL": Setting(
        60.0, lease_ttl, "Seconds after which the requests of a worker that fell silent are given to others."
    ),
    "PRIOQUEUE_MAX_ATTEMPTS": Setting(
        5, attempts, "How many workers may be lost over a request before it becomes a dead letter."
    ),
    "PRIOQUEUE_DEAD_LETTER_ON": Setting(
        ["download", "callback", "lease", "decode", "budget", "escalation"],
        choices("download", "callback", "lease", "decode", "budget", "escalation"),
        "What makes a request a dead letter: its retries are used up, its callback raises, workers are lost over it, it"
        " can't be read, it is over a budget, the last layer has failed.",
    ),
    "PRIOQUEUE_DEAD_LETTER_LIMIT": Setting(
        10_000,
        count,
        "Dead letters of each reason that are kept; the oldest are dropped, counted and warned of. Of those over"
        " budget only letters of earlier crawls are dropped.",
    ),
    "PRIOQUEUE_RETRY_BACKOFF": Setting(
        {"base": 1, "factor": 2, "cap": 300, "jitter": 0.5, "retry_after_cap": 3600},
        backoff,
        "How long retries of `scrapy_prioqueue.RetryMiddleware` wait, see below; `None` for no backoff.",
        means_none=True,
    ),
    "PRIOQUEUE_REQUEUE_LIMIT": Setting(
        5, limit, "How often a request may be put back by `requeue()` before it becomes a dead letter."
    ),
    "PRIOQUEUE_SLOTS": Setting(
        None,
        optional(slots),
        "Limits of slots, of all workers together: a dictionary of `{delay, concurrency, burst}` by slot,"
        " `*.example.com` or `*`; see below.",
    ),
    "PRIOQUEUE_SLOT_DELAY": Setting(
        None, optional(seconds), "Seconds between two requests of a slot that no other limit is about; none by default."
    ),
    "PRIOQUEUE_SLOT_CONCURRENCY": Setting(
        None, optional(limit), "Requests of such a slot at a time; 0, and by default, any number."
    ),
    "PRIOQUEUE_SLOT_BURST": Setting(
        None, optional(burst), "Requests of such a slot that may go out at once after a pause; 1 by default."
    ),
    "PRIOQUEUE_OBEY_RETRY_AFTER": Setting(
        True,
        flag,
        "A 429 or 503 with `Retry-After` closes its slot for all workers until then, at most for the `retry_after_cap`"
        " of `PRIOQUEUE_RETRY_BACKOFF`.",
    ),
    "PRIOQUEUE_AUTOTHROTTLE": Setting(
        None,
        optional(autothrottle),
        "Delays of slots follow their latency, for all workers together; `True`, or a dictionary with any of"
        " `start_delay`, `max_delay` and `target_concurrency`, where it is not to be as Scrapy's `AUTOTHROTTLE_`"
        " settings have it; `False` for no such delays, not even those that another worker has brought.",
    ),
    "PRIOQUEUE_ROBOTSTXT_CRAWL_DELAY": Setting(
        None,
        optional(flag),
        "The `Crawl-delay` of a robots.txt that Scrapy reads is the least delay of its slot; by default only where"
        " another worker sets this.",
    ),
    "PRIOQUEUE_TIER_WEIGHTS": Setting(
        None,
        optional(tier_weights),
        "A weight for each tier: those that have work share the fleet by them; by default, and with `{}`, the best tier"
        " always goes first.",
    ),
    "PRIOQUEUE_BUDGETS": Setting(
        None,
        optional(budgets),
        "What requests may cost in all: a dictionary of `{pages, renders, bytes, seconds}` by budget key, or `*`; see"
        " below.",
    ),
    "PRIOQUEUE_HIGH_WATER": Setting(
        None,
        optional(limit),
        "Pending requests from which on nothing new is discovered; by default any number may be. Of each slot only"
        " those count that its delay lets start within a minute.",
    ),
    "PRIOQUEUE_LOW_WATER": Setting(
        None, optional(limit), "Pending requests at which that ends; by default 80 % of the high mark."
    ),
    "PRIOQUEUE_PENDING_LIMIT": Setting(
        None,
        optional(limit),
        "Pending requests in all, those of slots that must wait included, from which on nothing new is discovered or"
        " read; by default ten times the high mark.",
    ),
    "PRIOQUEUE_MEMORY_HIGH_WATER": Setting(
        None,
        optional(part),
        "The same by the part of the server's `maxmemory` that is used, above 0 and at most 1; it ends at nine tenths"
        " of that.",
    ),
    "PRIOQUEUE_DISCOVERY_TIERS": Setting(
        None,
        optional(names),
        "Tiers whose requests are not served meanwhile; by default the last one.",
    ),
    "PRIOQUEUE_LAYERS": Setting(
        None,
        optional(layers),
        "Extraction layers, cheapest first, that `scrapy_prioqueue.escalate()` sends a request through: names, or"
        " `{name, meta}`; see below.",
    ),
    "PRIOQUEUE_LINEAGE_FIELDS": Setting(
        dict(LINEAGE_FIELDS),
        field_names,
        "Names of the fields that `scrapy_prioqueue.LineagePipeline` adds to items; `None` for no such field.",
    ),
    "PRIOQUEUE_ON_FINISH": Setting(
        "restart",
        one_of("restart", "keep"),
        'Whether the crawl after a finished one forgets ("restart") or keeps ("keep") what was seen.',
    ),
    "PRIOQUEUE_SEEN_NAME": Setting(
        None,
        optional(text),
        "Name of the frontier in which the fingerprints seen are kept, for spiders that share them and nothing else; by"
        " default this one's.",
    ),
    "PRIOQUEUE_SEEN": Setting(
        "exact",
        one_of("exact", "compact", "bloom"),
        'How much is remembered of each fingerprint: at least 80 bits ("exact"), at least 52 ("compact"), or a part of'
        ' a Bloom filter ("bloom"), which takes some new pages for duplicates.',
    ),
    "PRIOQUEUE_SEEN_EXPECTED": Setting(
        None,
        optional(expected),
        "Fingerprints that a crawl is expected to have in the end, to set their sizes by; more is no error."
        ' "bloom" is made for 10,000 at least.',
    ),
    "PRIOQUEUE_SEEN_ERROR_RATE": Setting(
        0.01, error_rate, 'Part of the new pages that "bloom" may take for duplicates, from 1e-9 to 0.1.'
    ),
    "PRIOQUEUE_REVISIT_AFTER": Setting(
        None,
        optional(revisit_time),
        "Seconds after which what was seen counts as new again; -1: never, unless a request says so. By default never,"
        " and no times are kept.",
    ),
    "PRIOQUEUE_FLUSH_ON_START": Setting(
        False, flag, "Drop what the frontier holds and begin anew; refused while other workers are alive."
    ),
    "PRIOQUEUE_START": Setting(
        "once",
        one_of("once", "each"),
        'Whether a request that several workers or runs yield from `start()` is fetched once ("once"), or each time'
        ' that one of them yields it ("each"); see below.',
    ),
    "PRIOQUEUE_HOLD_UNTIL_START": Setting(
        False,
        flag,
        "A worker takes no shared requests until its own start requests, and what they lead to, are done; see below.",
    ),
    "PRIOQUEUE_COOKIEJARS": Setting(
        "local",
        one_of("local", "shared"),
        'Whether a request with `meta["cookiejar"]` that a page of the same jar yields stays in the worker that has the'
        ' cookies ("local"), or is shared like any other ("shared"); see below.',
    ),
    "PRIOQUEUE_MAX_IDLE": Setting(
        0.0, idle_time, "Seconds that a worker without work waits for requests pushed from elsewhere; -1: for ever."
    ),
    SEEDS_KEY: Setting(
        "%(name)s:start_urls",
        optional(seed_keys),
        "Key, or list of keys, best first, that seeds are read from; `%(name)s` is the spider's name, and its arguments"
        " go by theirs."
        " Read only where this is set, or the spider has `SeedsMixin`.",
    ),
    "PRIOQUEUE_SLOW_PAGE": Setting(
        180.0,
        seconds,
        "Seconds in progress after which a page is reported that may never end, at its worker and by"
        " `scrapy frontier status`; 0 for never.",
    ),
    "PRIOQUEUE_CLOSE_TIMEOUT": Setting(
        10.0,
        timeout,
        "Seconds that closing waits for the server, and for pages of which nothing is heard any more, before it gives"
        " up and says so.",
    ),
    "PRIOQUEUE_OUTBOX_LIMIT": Setting(
        10_000,
        count,
        "Requests waiting to be committed above which `start()` is not read further, and one request at a time is"
        " started while the server is full or away, none above twice that number.",
    ),
    "PRIOQUEUE_JOURNAL_TIME": Setting(
        30.0,
        seconds,
        "Seconds for which a worker keeps what it has committed, to send it again to a server that lost its newest"
        " writes.",
    ),
    "PRIOQUEUE_JOURNAL_LIMIT": Setting(20_000, count, "Operations that it keeps at most, of 32 MiB in all."),
    "PRIOQUEUE_WAIT_REPLICAS": Setting(0, replicas, "Replicas that must have a commit before it counts as done."),
    "PRIOQUEUE_SEEN_CACHE": Setting(
        100_000,
        limit,
        "Fingerprints, of about 25 bytes each, that a worker remembers to recognise duplicates without asking; with"
        " `PRIOQUEUE_REVISIT_AFTER` for a tenth of that time. 0 for none.",
    ),
}
