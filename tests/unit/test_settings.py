"""Every PRIOQUEUE_* setting: its default, the messages for bad values, and that no message shows a password."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import pytest
from scrapy import Spider
from scrapy.settings import BaseSettings, Settings
from scrapy.squeues import FifoMemoryQueue
from scrapy.utils.test import get_crawler

from scrapy_prioqueue.compat.pipelines import RedisPipeline
from scrapy_prioqueue.errors import SettingError
from scrapy_prioqueue.frontier.seen import NEVER_S, SeenPolicy
from scrapy_prioqueue.middlewares.lineage import LineagePipeline
from scrapy_prioqueue.middlewares.retry import RetryMiddleware
from scrapy_prioqueue.scheduler import Scheduler
from scrapy_prioqueue.settings import DEFAULT_REDIS_URL, SEEDS_KEY, SETTINGS, Config, TierRule

SECRET = "hunter2"

HOLD_PASSWORDS = ("PRIOQUEUE_REDIS_URL", "PRIOQUEUE_REDIS_OPTIONS")
"""Settings whose values are not repeated in an error."""


class OwnFifoQueue(FifoMemoryQueue):  # type: ignore[misc,valid-type]
    pass


LIFO = "scrapy.squeues.LifoMemoryQueue"


class OtherQueue:
    pass


def read(values: Mapping[str, Any] | None = None, *, priority: str = "project", spider: str = "shop") -> Config:
    settings = Settings()
    for name, value in (values or {}).items():
        settings.set(name, value, priority)
    return Config.from_settings(settings, spider)


def from_command_line(**values: str) -> Config:
    return read(values, priority="cmdline")


def refusal(**values: Any) -> SettingError:
    with pytest.raises(SettingError) as caught:
        read(values)
    return caught.value


# Defaults


@pytest.mark.parametrize("name", SETTINGS)
def test_default_passes_its_own_reader(name: str) -> None:
    setting = SETTINGS[name]

    setting.read(name, setting.default)


# To set the key of seeds is to ask for them.
@pytest.mark.parametrize("name", [name for name in SETTINGS if name != SEEDS_KEY])
def test_setting_its_default_changes_nothing(name: str) -> None:
    plain, explicit = (
        read({"PRIOQUEUE_WORKER_ID": "w"}),
        read({"PRIOQUEUE_WORKER_ID": "w", name: SETTINGS[name].default}),
    )

    fields = [field for field in Config.__dataclass_fields__ if field != "worker_id"]
    assert [getattr(plain, field) for field in fields] == [getattr(explicit, field) for field in fields]


@pytest.mark.parametrize("name", SETTINGS)
def test_meaning_is_one_line_that_ends(name: str) -> None:
    assert re.fullmatch(r"[^\n|]+\.", SETTINGS[name].doc)


@pytest.mark.parametrize("name", SETTINGS)
def test_none_means_not_set(name: str) -> None:
    config, plain = read({name: None}), read()

    assert config.name == plain.name
    assert config.tiers == plain.tiers


def test_settings_named_after_the_config_reach_it() -> None:
    config = read(
        {
            "PRIOQUEUE_FALLBACK": "error",
            "PRIOQUEUE_CRAWL_ID": "monday",
            "PRIOQUEUE_WORKER_ID": "w1",
            "PRIOQUEUE_LEASE_TTL": 30,
            "PRIOQUEUE_MAX_ATTEMPTS": 3,
            "PRIOQUEUE_ON_FINISH": "keep",
            "PRIOQUEUE_FLUSH_ON_START": True,
            "PRIOQUEUE_MAX_IDLE": 1.5,
            "PRIOQUEUE_CLOSE_TIMEOUT": 2,
            "PRIOQUEUE_OUTBOX_LIMIT": 10,
            "PRIOQUEUE_SEEN_CACHE": 20,
            "PRIOQUEUE_REDIS_TIMEOUT": 0.5,
            "PRIOQUEUE_REDIS_OPTIONS": {"client_name": "shop"},
            "CONCURRENT_REQUESTS": 3,
            "CONCURRENT_REQUESTS_PER_DOMAIN": 2,
        }
    )

    assert (config.fallback, config.crawl_id, config.worker_id) == ("error", "monday", "w1")
    assert (config.lease_ttl_s, config.max_attempts, config.on_finish) == (30.0, 3, "keep")
    assert (config.flush_on_start, config.max_idle_s, config.close_timeout_s) == (True, 1.5, 2.0)
    assert (config.outbox_limit, config.seen_cache, config.redis_timeout_s) == (10, 20, 0.5)
    assert (config.concurrent_requests, config.concurrent_requests_per_domain) == (3, 2)
    assert config.redis_options == {"client_name": "shop"}


def test_idle_time_may_have_no_end() -> None:
    assert read({"PRIOQUEUE_MAX_IDLE": -1}).max_idle_s == read({"PRIOQUEUE_MAX_IDLE": "-1"}).max_idle_s == float("inf")


def test_how_fingerprints_are_remembered_is_one_policy() -> None:
    assert read({}).seen == SeenPolicy()
    chosen = {"PRIOQUEUE_SEEN": "bloom", "PRIOQUEUE_SEEN_EXPECTED": "50000", "PRIOQUEUE_SEEN_ERROR_RATE": "0.001"}
    assert read(chosen).seen == SeenPolicy("bloom", 50_000, 0.001)
    assert read(chosen | {"PRIOQUEUE_SEEN_EXPECTED": 5}).seen == SeenPolicy("bloom", 10_000, 0.001)
    assert read({"PRIOQUEUE_SEEN_EXPECTED": 5}).seen == SeenPolicy("exact", 5)
    chosen = {"PRIOQUEUE_SEEN": "compact", "PRIOQUEUE_REVISIT_AFTER": "59.5"}
    assert read(chosen).seen == SeenPolicy("compact", revisit_s=60)
    assert read({"PRIOQUEUE_REVISIT_AFTER": "-1"}).seen.revisit_s == NEVER_S


@pytest.mark.parametrize(
    ("value", "keys"),
    [
        ("%(name)s:start_urls", ("shop:start_urls",)),
        ("urgent", ("urgent",)),
        (["urgent:%(spider)s", "late"], ("urgent:shop", "late")),
        ('["urgent", "late"]', ("urgent", "late")),
        ("{shop}:start_urls", ("{shop}:start_urls",)),
        (None, ()),
        ("", ()),
    ],
)
def test_seeds_are_read_where_their_key_is_set(value: object, keys: tuple[str, ...]) -> None:
    assert read({SEEDS_KEY: value}).seeds_keys == keys


def test_seeds_are_not_read_without_mixin_or_setting() -> None:
    assert read().seeds_keys == ()


def test_worker_id_is_different_for_each_worker() -> None:
    assert read().worker_id != read().worker_id


@pytest.mark.parametrize(
    ("values", "interval_s"),
    [
        ({}, 60.0),
        ({"LOGSTATS_INTERVAL": 7}, 7.0),
        ({"LOGSTATS_INTERVAL": 0}, 0.0),
        ({"LOGSTATS_INTERVAL": 0, "PRIOQUEUE_LOG_INTERVAL": "30"}, 30.0),
        ({"PRIOQUEUE_LOG_INTERVAL": 0}, 0.0),
        ({"PRIOQUEUE_LOG_INTERVAL": None}, 0.0),
    ],
)
def test_the_interval_of_log_lines_is_that_of_logstats_unless_it_is_set(
    values: dict[str, Any], interval_s: float
) -> None:
    assert read(values).log_interval_s == interval_s


# What is refused

BAD_VALUES = [
    (SEEDS_KEY, 7, "a key or a list of keys"),
    (SEEDS_KEY, [], "non-empty"),
    (SEEDS_KEY, ["a", ""], "non-empty"),
    (SEEDS_KEY, ["a", "a"], "different"),
    (SEEDS_KEY, "a}b{c", "hash tag"),
    (SEEDS_KEY, "100%", "no other %"),
    ("PRIOQUEUE_SEEDS_BATCH_SIZE", 0, "from 1 to 1000"),
    ("PRIOQUEUE_MAX_IDLE", "long", "-1 for ever"),
    ("PRIOQUEUE_LOG_INTERVAL", -1, ">= 0"),
    ("PRIOQUEUE_REDIS_URL", "http://127.0.0.1", "begins with redis://, rediss://, unix://"),
    ("PRIOQUEUE_REDIS_URL", "127.0.0.1:6379", "begins with redis://, rediss://, unix://"),
    ("PRIOQUEUE_REDIS_URL", "redis://127.0.0.1:port", "must have a host and a port"),
    ("PRIOQUEUE_REDIS_URL", "redis+sentinel://127.0.0.1", "must end with the name of the primary"),
    ("PRIOQUEUE_REDIS_URL", 6379, "must be a URL"),
    ("PRIOQUEUE_REDIS_OPTIONS", ["a"], "dictionary"),
    ("PRIOQUEUE_REDIS_OPTIONS", "a=1", "JSON"),
    ("PRIOQUEUE_REDIS_TIMEOUT", 0, "above 0.001"),
    ("PRIOQUEUE_FALLBACK", "disk", "'memory', 'error'"),
    ("PRIOQUEUE_NAME", "", "non-empty string"),
    ("PRIOQUEUE_NAME", "%(name)s", "%(spider)s"),
    ("PRIOQUEUE_NAME", "100%", "%(spider)s"),
    ("PRIOQUEUE_NAME", "a{b", "{ or }"),
    ("PRIOQUEUE_NAME", "a}b", "{ or }"),
    ("PRIOQUEUE_CRAWL_ID", 7, "non-empty string"),
    ("PRIOQUEUE_CRAWL_COMMANDS", 7, "must be a list of names"),
    ("PRIOQUEUE_WORKER_ID", 7, "non-empty string"),
    ("PRIOQUEUE_TIERS", [], "from 1 to 128"),
    ("PRIOQUEUE_TIERS", [str(number) for number in range(129)], "from 1 to 128"),
    ("PRIOQUEUE_TIERS", ["a", "a"], "different"),
    ("PRIOQUEUE_TIERS", ["a", ""], "non-empty string"),
    ("PRIOQUEUE_TIERS", ["a", 1], "non-empty string"),
    ("PRIOQUEUE_TIERS", {"a": 1}, "list of tier names"),
    ("PRIOQUEUE_TIERS", "[a", "JSON"),
    ("PRIOQUEUE_DEFAULT_TIER", "fast", "PRIOQUEUE_TIERS"),
    ("PRIOQUEUE_TIER_RULES", {"tier": "high"}, "list of rules"),
    ("PRIOQUEUE_TIER_RULES", "high", "JSON"),
    ("PRIOQUEUE_ORDER", "random", "'lifo', 'fifo'"),
    ("PRIOQUEUE_LEASE_TTL", 0.1, "above 0.1"),
    ("PRIOQUEUE_LEASE_TTL", "soon", "number of seconds"),
    ("PRIOQUEUE_LEASE_TTL", float("nan"), "finite"),
    ("PRIOQUEUE_LEASE_TTL", float("inf"), "finite"),
    ("PRIOQUEUE_MAX_ATTEMPTS", 0, "from 1 to 200"),
    ("PRIOQUEUE_MAX_ATTEMPTS", 201, "from 1 to 200"),
    ("PRIOQUEUE_MAX_ATTEMPTS", 2.5, "integer"),
    ("PRIOQUEUE_MAX_ATTEMPTS", "many", "integer"),
    ("PRIOQUEUE_ON_FINISH", "stop", "'restart', 'keep'"),
    ("PRIOQUEUE_FLUSH_ON_START", "yes please", "True or False"),
    ("PRIOQUEUE_FLUSH_ON_START", 2, "True or False"),
    ("PRIOQUEUE_MAX_IDLE", -2, ">= 0, or -1 for ever"),
    ("PRIOQUEUE_SEEN", "cuckoo", "'exact', 'compact', 'bloom'"),
    ("PRIOQUEUE_SEEN_EXPECTED", 0, "from 1"),
    ("PRIOQUEUE_SEEN_ERROR_RATE", 0.5, "from 1e-09 to 0.1"),
    ("PRIOQUEUE_SEEN_ERROR_RATE", "few", "a number"),
    ("PRIOQUEUE_SEEN_EXPECTED", True, "an integer"),
    ("PRIOQUEUE_REVISIT_AFTER", False, ">= 0, or -1 for ever"),
    ("PRIOQUEUE_LEASE_TTL", True, "number of seconds"),
    ("PRIOQUEUE_REVISIT_AFTER", -2, ">= 0, or -1 for ever"),
    ("PRIOQUEUE_CLOSE_TIMEOUT", 0, "above 0.001"),
    ("PRIOQUEUE_SLOW_PAGE", -1, "finite number"),
    ("PRIOQUEUE_ON_OUTAGE", "stop", "one of"),
    ("PRIOQUEUE_OUTAGE_GRACE", -1, ">= 0"),
    ("PRIOQUEUE_SCALE_DRAIN_TIME", 0, "above 0.001"),
    ("PRIOQUEUE_SCALE_MIN", -1, "from 0"),
    ("PRIOQUEUE_SCALE_MIN", 11, "not be above PRIOQUEUE_SCALE_MAX"),
    ("PRIOQUEUE_SCALE_MAX", "many", "integer"),
    ("PRIOQUEUE_JOURNAL_TIME", -1, "finite number"),
    ("PRIOQUEUE_JOURNAL_LIMIT", 0, "from 1"),
    ("PRIOQUEUE_WAIT_REPLICAS", -1, "from 0"),
    ("PRIOQUEUE_OUTBOX_LIMIT", 0, "from 1"),
    ("PRIOQUEUE_DEAD_LETTER_ON", "download,never", "'never' must be one of"),
    ("PRIOQUEUE_DEAD_LETTER_ON", 3, "a list with any of"),
    ("PRIOQUEUE_DEAD_LETTER_LIMIT", 0, "from 1"),
    ("PRIOQUEUE_SEEN_NAME", "a{b}", "must not contain { or }"),
    ("PRIOQUEUE_SEEN_NAME", "%(crawl)s", "has no argument 'crawl'"),
    ("PRIOQUEUE_REQUEUE_LIMIT", -1, "from 0"),
    ("PRIOQUEUE_SLOTS", ["example.com"], "a dictionary such as"),
    ("PRIOQUEUE_SLOTS", "example.com", "JSON"),
    ("PRIOQUEUE_SLOTS", {"shop.*": {}}, "must be a slot, *.example.com for all below it, or *"),
    ("PRIOQUEUE_SLOTS", {"*shop.test": {}}, "must be a slot, *.example.com for all below it, or *"),
    ("PRIOQUEUE_SLOTS", {"*.": {}}, "must be a slot, *.example.com for all below it, or *"),
    ("PRIOQUEUE_SLOTS", {"*.*.test": {}}, "must be a slot, *.example.com for all below it, or *"),
    ("PRIOQUEUE_SLOTS", {"!shop.test": {}}, "must be a non-empty string"),
    ("PRIOQUEUE_SLOTS", {"": {}}, "must be a non-empty string"),
    ("PRIOQUEUE_SLOTS", {1: {}}, "must be a non-empty string"),
    ("PRIOQUEUE_SLOT_DELAY", -1, ">= 0"),
    ("PRIOQUEUE_SLOT_DELAY", "slow", "number of seconds"),
    ("PRIOQUEUE_SLOT_CONCURRENCY", -1, "from 0"),
    ("PRIOQUEUE_SLOT_CONCURRENCY", 1.5, "integer"),
    ("PRIOQUEUE_SLOT_BURST", 0, "from 1"),
    ("PRIOQUEUE_OBEY_RETRY_AFTER", "often", "True or False"),
    ("PRIOQUEUE_AUTOTHROTTLE", 5, "True, False or a dictionary with any of start_delay"),
    ("PRIOQUEUE_AUTOTHROTTLE", {"delay": 5}, "unknown 'delay' (did you mean max_delay?); known: start_delay"),
    ("PRIOQUEUE_ROBOTSTXT_CRAWL_DELAY", 10, "True or False"),
    ("PRIOQUEUE_TIER_WEIGHTS", [8, 4, 2, 1], "a dictionary such as"),
    ("PRIOQUEUE_TIER_WEIGHTS", {"urgent": 8, "high": 4, "normal": 2}, "a weight to each of PRIOQUEUE_TIERS"),
    ("PRIOQUEUE_TIER_WEIGHTS", {"urgent": 8, "high": 4, "normal": 2, "low": 1, "no": 1}, "and to nothing else"),
    ("PRIOQUEUE_BUDGETS", 500, "a dictionary such as"),
    ("PRIOQUEUE_BUDGETS", {"": {"pages": 1}}, "must be a non-empty string"),
    ("PRIOQUEUE_HIGH_WATER", -1, "from 0"),
    ("PRIOQUEUE_LOW_WATER", 10, "below PRIOQUEUE_HIGH_WATER, None"),
    ("PRIOQUEUE_LOW_WATER", -1, "from 0"),
    ("PRIOQUEUE_PENDING_LIMIT", -1, "from 0"),
    ("PRIOQUEUE_MEMORY_HIGH_WATER", 0, "above 0"),
    ("PRIOQUEUE_MEMORY_HIGH_WATER", 80, "at most 1"),
    ("PRIOQUEUE_MEMORY_HIGH_WATER", float("nan"), "at most 1"),
    ("PRIOQUEUE_MEMORY_HIGH_WATER", "half", "at most 1"),
    ("PRIOQUEUE_DISCOVERY_TIERS", "slow", "no such tier in PRIOQUEUE_TIERS"),
    ("PRIOQUEUE_DISCOVERY_TIERS", 3, "a list of names"),
    ("PRIOQUEUE_LAYERS", 3, "a list such as"),
    ("PRIOQUEUE_LAYERS", [], "at least one layer"),
    ("PRIOQUEUE_LAYERS", ["http", {"name": "http"}], "with different names"),
    ("PRIOQUEUE_LINEAGE_FIELDS", {"where": "url"}, "unknown 'where'; known: source"),
    ("PRIOQUEUE_LINEAGE_FIELDS", {"tier": ""}, "the name of 'tier' must be a string"),
    ("PRIOQUEUE_HOLD_UNTIL_START", "maybe", "True or False"),
    ("PRIOQUEUE_START", "twice", "once"),
    ("PRIOQUEUE_COOKIEJARS", "mine", "local"),
    ("PRIOQUEUE_RETRY_BACKOFF", {"bsae": 1}, "unknown 'bsae' (did you mean base?); known: base, factor"),
    ("PRIOQUEUE_RETRY_BACKOFF", {"factor": 0.5}, "factor must be 1 or more"),
    ("PRIOQUEUE_RETRY_BACKOFF", 3, "a dictionary with any of base"),
    ("PRIOQUEUE_OUTBOX_LIMIT", float("inf"), "integer"),
    ("PRIOQUEUE_SEEN_CACHE", float("nan"), "integer"),
    ("PRIOQUEUE_SEEN_CACHE", -1, "must be from 0"),
    ("PRIOQUEUE_METRICS_PORT", 70_000, "a port from 0 to 65535"),
    ("PRIOQUEUE_METRICS_PORT", "http", "a range such as [9451, 9470]"),
    ("PRIOQUEUE_METRICS_PORT", True, "a port from 0"),
    ("PRIOQUEUE_METRICS_PORT", [9470, 9451], "the first and the last port"),
    ("PRIOQUEUE_METRICS_PORT", [9451], "the first and the last port"),
    ("PRIOQUEUE_METRICS_PORT", ["a", "b"], "the first and the last port"),
    ("PRIOQUEUE_METRICS_HOST", "metrics.example", "an IP address"),
    ("PRIOQUEUE_METRICS_HOST", 3.5, "an IP address"),
]


@pytest.mark.parametrize("name, value, remedy", BAD_VALUES)
def test_bad_value_is_refused_with_setting_value_and_remedy(name: str, value: Any, remedy: str) -> None:
    error = refusal(**{name: value})

    assert error.name == name
    assert remedy in error.why
    assert str(error).startswith(f"{name} = ")
    if name not in HOLD_PASSWORDS:
        assert repr(value) in str(error)


def test_every_setting_has_a_bad_value() -> None:
    assert {name for name, _, _ in BAD_VALUES} == set(SETTINGS)


BAD_RULES = [
    ("high", "must be a dictionary"),
    ({"tier": "high"}, 'needs "url"'),
    ({"url": "/p/"}, '"tier"'),
    ({"tier": 1, "url": "/p/"}, '"tier"'),
    ({"tier": "high", "url": "("}, "not a regular expression"),
    ({"tier": "high", "url": 5}, "not a regular expression"),
    ({"tier": "high", "callback": print}, '"callback"'),
    ({"tier": "high", "url": "/p/", "domain": "a", "path": "b"}, "unknown 'domain', 'path'"),
    ({"tier": "fast", "url": "/p/"}, "PRIOQUEUE_TIERS"),
]


@pytest.mark.parametrize("rule, remedy", BAD_RULES)
def test_bad_rule_is_named_by_its_place(rule: Any, remedy: str) -> None:
    error = refusal(PRIOQUEUE_TIER_RULES=[{"tier": "high", "url": "/p/"}, rule])

    assert error.name == "PRIOQUEUE_TIER_RULES[1]"
    assert remedy in error.why


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("PRIOQUEUE_TEIRS", "no such setting; did you mean PRIOQUEUE_TIERS?"),
        ("PRIOQUEUE_URL", "no such setting; did you mean PRIOQUEUE_REDIS_URL?"),
        ("PRIOQUEUE_XYZ", "no such setting; the page 'Settings' of the documentation lists all"),
    ],
)
def test_unknown_setting_is_refused_with_the_one_that_was_probably_meant(name: str, why: str) -> None:
    error = refusal(**{name: ["a"]})

    assert (error.name, error.why) == (name, why)


def test_settings_of_other_packages_are_ignored() -> None:
    assert read({"PRIOQUEUES": 1, "SCHEDULER_PRIORITY_QUEUE": "x"}).name == "shop"


# Values as the command line gives them


@pytest.mark.parametrize("value", ['["a","b"]', "a,b", " a , b ", ' ["a", "b"]'])
def test_tiers_from_the_command_line(value: str) -> None:
    assert from_command_line(PRIOQUEUE_TIERS=value, PRIOQUEUE_DEFAULT_TIER="b").tiers == ("a", "b")


def test_rules_and_options_from_the_command_line_are_json() -> None:
    config = from_command_line(
        PRIOQUEUE_TIER_RULES='[{"tier": "high", "url": "/p/", "callback": "parse_product"}]',
        PRIOQUEUE_REDIS_OPTIONS='{"health_check_interval": 5}',
    )

    assert config.tier_rules == (TierRule("high", re.compile("/p/"), "parse_product"),)
    assert config.redis_options == {"health_check_interval": 5}


def test_numbers_and_flags_from_the_command_line() -> None:
    config = from_command_line(
        PRIOQUEUE_LEASE_TTL="1.5", PRIOQUEUE_MAX_ATTEMPTS="7", PRIOQUEUE_FLUSH_ON_START="true", PRIOQUEUE_CRAWL_ID=""
    )

    assert (config.lease_ttl_s, config.max_attempts, config.flush_on_start, config.crawl_id) == (1.5, 7, True, None)


@pytest.mark.parametrize("value, expected", [("1", True), (1, True), ("False", False), ("0", False), ("", False)])
def test_flag_in_every_spelling(value: Any, expected: bool) -> None:
    assert read({"PRIOQUEUE_FLUSH_ON_START": value}).flush_on_start is expected


def test_options_may_be_scrapys_own_kind_of_dictionary() -> None:
    assert read({"PRIOQUEUE_REDIS_OPTIONS": BaseSettings({"a": 1})}).redis_options == {"a": 1}


# Addresses and passwords


def test_address_falls_back_to_scrapy_rediss_setting_and_then_to_this_machine() -> None:
    ours, theirs = "redis://ours:1/0", "redis://theirs:2/0"

    assert read({"PRIOQUEUE_REDIS_URL": ours, "REDIS_URL": theirs}).redis_url == ours
    assert read({"REDIS_URL": theirs}).redis_url == theirs
    assert read().redis_url == DEFAULT_REDIS_URL


@pytest.mark.parametrize(
    "url",
    [
        *("redis://h", "rediss://u:p@h:1/2", "unix:///run/redis.sock?db=1", "redis://[::1]:6379"),
        *("redis+sentinel://a,b:1/books/2", "rediss+cluster://u:p@a:1,b:2"),
    ],
)
def test_address_of_every_kind_is_kept_as_it_is(url: str) -> None:
    assert read({"PRIOQUEUE_REDIS_URL": url}).redis_url == url


@pytest.mark.parametrize("name", ["PRIOQUEUE_REDIS_URL", "REDIS_URL"])
@pytest.mark.parametrize(
    "url",
    [
        pytest.param(f"http://user:{SECRET}@h:6379/0", id="other-scheme"),
        pytest.param(f"redis://user:{SECRET}@h:port/0", id="no-port"),
        pytest.param(f"redis://user:{SECRET}@h:99999/0", id="port-out-of-range"),
        pytest.param(f"redis://user:{SECRET}@[h:1/0", id="broken-brackets"),
        pytest.param(f"tcp://h/0?password={SECRET}", id="in-the-query"),
        pytest.param(f"redis://:{SECRET}/x@h:6379/0", id="slash-in-password"),
        pytest.param(f"redis://:x/{SECRET}@h:6379/0", id="slash-before-password"),
        pytest.param(f"redis://:{SECRET}#x@h:6379/0", id="hash-in-password"),
        pytest.param(f"redis://:{SECRET}?x@h:6379/0", id="question-mark-in-password"),
        pytest.param(f"user:{SECRET}@h:6379/0", id="no-scheme"),
        pytest.param(f":{SECRET}@h:6379", id="nothing-but-a-password"),
    ],
)
def test_error_about_an_address_does_not_show_its_password(name: str, url: str) -> None:
    error = refusal(**{name: url})

    assert error.name == name
    assert SECRET not in f"{error} {error!r} {error.value!r}"


@pytest.mark.parametrize(
    "values",
    [
        pytest.param({"PRIOQUEUE_REDIS_OPTIONS": f'{{"password": "{SECRET}"'}, id="options-are-no-json"),
        pytest.param({"PRIOQUEUE_REDIS_OPTIONS": [("password", SECRET)]}, id="options-are-a-list"),
        pytest.param({"PRIOQUEUE_REDIS_PASSWORD": SECRET}, id="unknown-setting"),
    ],
)
def test_no_other_error_shows_a_password(values: Mapping[str, Any]) -> None:
    error = refusal(**values)

    assert SECRET not in f"{error} {error!r} {error.value!r}"


# Names, order, tiers


@pytest.mark.parametrize(
    "template, name",
    [("%(spider)s", "shop"), ("books", "books"), ("%(spider)s-2", "shop-2"), ("%(spider)s%%", "shop%"), ("ü:1", "ü:1")],
)
def test_name_is_made_from_a_template(template: str, name: str) -> None:
    assert read({"PRIOQUEUE_NAME": template}).name == name


def test_spider_whose_name_can_not_be_in_a_key_needs_a_name_setting() -> None:
    with pytest.raises(SettingError, match="PRIOQUEUE_NAME"):
        read(spider="{shop}")

    assert read({"PRIOQUEUE_NAME": "shop"}, spider="{shop}").name == "shop"


@pytest.mark.parametrize(
    "queue, order",
    [
        ("scrapy.squeues.LifoMemoryQueue", "lifo"),
        ("scrapy.squeues.FifoMemoryQueue", "fifo"),
        (FifoMemoryQueue, "fifo"),
        (OwnFifoQueue, "fifo"),
        (OtherQueue, "lifo"),
    ],
)
def test_order_follows_scrapys_memory_queue(queue: Any, order: str) -> None:
    assert read({"SCHEDULER_MEMORY_QUEUE": queue}).order == order


@pytest.mark.parametrize("order", ["lifo", "fifo"])
def test_the_order_setting_overrides_scrapys_queue(order: str) -> None:
    for queue in ("scrapy.squeues.LifoMemoryQueue", "scrapy.squeues.FifoMemoryQueue"):
        assert read({"PRIOQUEUE_ORDER": order, "SCHEDULER_MEMORY_QUEUE": queue}).order == order


def test_start_requests_have_an_order_of_their_own_unless_scrapys_queue_for_them_is_off() -> None:
    assert read().start_order == "fifo"
    assert read({"SCHEDULER_START_MEMORY_QUEUE": None}).start_order is None
    assert read({"SCHEDULER_START_MEMORY_QUEUE": LIFO}).start_order == "lifo"


@pytest.mark.parametrize(
    "settings, named",
    [
        ({}, None),
        ({"SCHEDULER_PRIORITY_QUEUE": "scrapy.pqueues.DownloaderAwarePriorityQueue"}, None),
        ({"SCHEDULER_PRIORITY_QUEUE": "shop.Queue"}, "SCHEDULER_PRIORITY_QUEUE = 'shop.Queue' has no effect"),
        ({"SCHEDULER_MEMORY_QUEUE": OwnFifoQueue}, None),
        ({"SCHEDULER_MEMORY_QUEUE": OtherQueue}, "are served in LIFO order. Set PRIOQUEUE_ORDER"),
        ({"SCHEDULER_START_MEMORY_QUEUE": LIFO}, None),
        ({"SCHEDULER_START_MEMORY_QUEUE": None}, None),
        ({"SCHEDULER_START_MEMORY_QUEUE": LIFO, "PRIOQUEUE_ORDER": "fifo"}, None),
        ({"SCHEDULER_START_MEMORY_QUEUE": OtherQueue}, "or to None to order them as all others"),
    ],
)
def test_settings_of_scrapys_without_effect_are_warned_of(settings: dict[str, Any], named: str | None) -> None:
    warnings = read(settings).without_effect

    assert len(warnings) == (named is not None)
    assert all(named in warning for warning in warnings if named is not None)


def test_tiers_of_ones_own_need_a_default_among_them() -> None:
    assert "['a', 'b']" in refusal(PRIOQUEUE_TIERS=["a", "b"]).why

    assert read({"PRIOQUEUE_TIERS": ("a", "b"), "PRIOQUEUE_DEFAULT_TIER": "a"}).tiers == ("a", "b")


def test_as_many_tiers_as_the_rank_has_room_for() -> None:
    tiers = [f"t{number}" for number in range(128)]

    assert read({"PRIOQUEUE_TIERS": tiers, "PRIOQUEUE_DEFAULT_TIER": "t127"}).tiers == tuple(tiers)


def test_a_bloom_filter_stores_no_times() -> None:
    with pytest.raises(SettingError, match="PRIOQUEUE_REVISIT_AFTER.*'compact'"):
        read({"PRIOQUEUE_SEEN": "bloom", "PRIOQUEUE_REVISIT_AFTER": 60})


@pytest.mark.parametrize(
    ("component", "name"),
    [
        (Scheduler, "PRIOQUEUE_TIERS"),
        (RetryMiddleware, "PRIOQUEUE_RETRY_BACKOFF"),
        (LineagePipeline, "PRIOQUEUE_LINEAGE_FIELDS"),
        (RedisPipeline, "PRIOQUEUE_TIERS"),
    ],
)
def test_each_component_names_a_wrong_setting_in_a_line_of_its_own(
    component: Any, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    crawler = get_crawler(Spider, {name: 5})
    crawler.spider = Spider("books")

    with pytest.raises(SettingError) as caught:
        component.from_crawler(crawler)

    assert caplog.messages == [f"Closing: {caught.value}"]
    assert str(caught.value).startswith(f"{name} = 5: ")
