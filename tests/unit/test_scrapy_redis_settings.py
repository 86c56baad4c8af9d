"""Settings of scrapy-redis: their effect, the precedence of ours, and warnings for those without effect."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from scrapy.dupefilters import RFPDupeFilter
from scrapy.settings import Settings
from scrapy.squeues import FifoMemoryQueue

from scrapy_prioqueue.errors import SettingError
from scrapy_prioqueue.settings import DEFAULT_REDIS_URL, SETTINGS, Config
from scrapy_prioqueue.settings.scrapy_redis import (
    SCRAPY_REDIS_SETTINGS,
    derives_from_filter,
    is_scrapy_rediss_filter,
)

SECRET = "hunter2"


def read(**values: Any) -> Config:
    settings = Settings()
    for name, value in values.items():
        settings.set(name, value, "project")
    return Config.from_settings(settings, "shop")


# The server


@pytest.mark.parametrize(
    ("settings", "url", "options"),
    [
        ({}, DEFAULT_REDIS_URL, {}),
        ({"REDIS_HOST": "h"}, "redis://h:6379/0", {}),
        ({"REDIS_HOST": "::1", "REDIS_PORT": "7"}, "redis://[::1]:7/0", {}),
        ({"REDIS_PORT": 7}, "redis://127.0.0.1:7/0", {}),
        ({"REDIS_HOST": "h", "REDIS_DB": 0, "REDIS_PARAMS": {"db": 3}}, "redis://h:6379/3", {}),
        ({"REDIS_PARAMS": {"host": "p", "port": 7, "db": 2}, "REDIS_HOST": "h"}, "redis://h:7/2", {}),
        ({"REDIS_PARAMS": {"host": "h", "ssl": True}}, "rediss://h:6379/0", {}),
        ({"REDIS_PARAMS": {"unix_socket_path": "/run/a b", "db": 1}}, "unix:///run/a%20b?db=1", {}),
        ({"REDIS_PARAMS": {"password": SECRET}}, DEFAULT_REDIS_URL, {"password": SECRET}),
        ({"REDIS_PARAMS": f'{{"password": "{SECRET}"}}'}, DEFAULT_REDIS_URL, {"password": SECRET}),
        ({"REDIS_PARAMS": {"socket_timeout": 3, "encoding": "latin-1"}}, DEFAULT_REDIS_URL, {"socket_timeout": 3}),
        ({"REDIS_URL": "redis://u", "REDIS_HOST": "h"}, "redis://u", {}),
        ({"REDIS_PARAMS": {"url": "redis://u"}}, "redis://u", {}),
        ({"REDIS_URL": "redis://u", "REDIS_PORT": 7, "REDIS_DB": "4"}, "redis://u", {"port": 7, "db": 4}),
        ({"REDIS_URL": "redis://u:8/1", "REDIS_PORT": 7, "REDIS_DB": 4}, "redis://u:8/1", {}),
        ({"REDIS_URL": "redis://u?db=1", "REDIS_DB": 4}, "redis://u?db=1", {}),
        ({"REDIS_URL": "redis://:own@u", "REDIS_PARAMS": {"password": SECRET}}, "redis://:own@u", {}),
        ({"REDIS_URL": "unix:///s", "REDIS_PORT": 7, "REDIS_DB": 4}, "unix:///s", {"db": 4}),
    ],
)
def test_server_is_that_of_scrapy_redis(settings: Mapping[str, Any], url: str, options: Mapping[str, Any]) -> None:
    config = read(**settings)

    assert (config.redis_url, config.redis_options) == (url, options)


def test_server_of_ours_has_nothing_of_theirs() -> None:
    config = read(PRIOQUEUE_REDIS_URL="redis://ours", REDIS_HOST="h", REDIS_PARAMS={"password": SECRET, "redis_cls": 1})

    assert (config.redis_url, config.redis_options) == ("redis://ours", {})
    assert list(config.without_effect) == []


def test_options_of_ours_come_before_theirs() -> None:
    config = read(REDIS_PARAMS={"password": "a", "socket_timeout": 3}, PRIOQUEUE_REDIS_OPTIONS={"password": "b"})

    assert config.redis_options == {"password": "b", "socket_timeout": 3}


@pytest.mark.parametrize(
    ("settings", "name", "why"),
    [
        ({"REDIS_HOST": f"redis://:{SECRET}@h"}, "REDIS_HOST", "name or address of a host"),
        ({"REDIS_PORT": "x"}, "REDIS_PORT", "integer"),
        ({"REDIS_PORT": 70000}, "REDIS_PORT", "from 1 to 65535"),
        ({"REDIS_URL": "redis://h", "REDIS_DB": "x"}, "REDIS_DB", "integer"),
        ({"REDIS_PARAMS": f"password={SECRET}"}, "REDIS_PARAMS", "dictionary"),
        ({"REDIS_PARAMS": {"unix_socket_path": 7}}, "REDIS_PARAMS['unix_socket_path']", "non-empty string"),
        ({"SCHEDULER_PERSIST": "perhaps"}, "SCHEDULER_PERSIST", "True or False"),
        ({"SCHEDULER_FLUSH_ON_START": 2}, "SCHEDULER_FLUSH_ON_START", "True or False"),
        ({"SCHEDULER_IDLE_BEFORE_CLOSE": "long"}, "SCHEDULER_IDLE_BEFORE_CLOSE", "number of seconds"),
        ({"REDIS_START_URLS_BATCH_SIZE": 0}, "REDIS_START_URLS_BATCH_SIZE", "from 1"),
        (
            {"SCHEDULER_DUPEFILTER_KEY": "dupefilter:%(timestamp)s", "SCHEDULER_PERSIST": True},
            "SCHEDULER_DUPEFILTER_KEY",
            "argument 'timestamp'",
        ),
    ],
)
def test_bad_value_is_refused_under_its_own_name(settings: Mapping[str, Any], name: str, why: str) -> None:
    with pytest.raises(SettingError, match=re.escape(why)) as caught:
        read(**settings)

    assert caught.value.name == name
    assert SECRET not in f"{caught.value} {caught.value.value!r}"


# The others


@pytest.mark.parametrize(
    ("settings", "field", "value"),
    [
        ({"SCHEDULER_PERSIST": True}, "on_finish", "keep"),
        ({"SCHEDULER_PERSIST": "False"}, "on_finish", "restart"),
        ({"SCHEDULER_PERSIST": True, "PRIOQUEUE_ON_FINISH": "restart"}, "on_finish", "restart"),
        ({"SCHEDULER_FLUSH_ON_START": "1"}, "flush_on_start", True),
        ({"SCHEDULER_FLUSH_ON_START": "1"}, "flush_if_alone", True),
        ({"PRIOQUEUE_FLUSH_ON_START": True}, "flush_if_alone", False),
        ({"SCHEDULER_FLUSH_ON_START": True, "PRIOQUEUE_FLUSH_ON_START": False}, "flush_on_start", False),
        ({"SCHEDULER_IDLE_BEFORE_CLOSE": "7"}, "max_idle_s", 7.0),
        ({"SCHEDULER_IDLE_BEFORE_CLOSE": 7, "PRIOQUEUE_MAX_IDLE": 1}, "max_idle_s", 1.0),
        ({"MAX_IDLE_TIME_BEFORE_CLOSE": 7}, "max_idle_s", 0.0),
        ({"MAX_IDLE_TIME_BEFORE_CLOSE": 7, "SCHEDULER_IDLE_BEFORE_CLOSE": 5}, "max_idle_s", 5.0),
        ({"MAX_IDLE_TIME_BEFORE_CLOSE": 7, "PRIOQUEUE_SEEDS_KEY": "k"}, "max_idle_s", 7.0),
        ({"MAX_IDLE_TIME_BEFORE_CLOSE": 0, "PRIOQUEUE_SEEDS_KEY": "k"}, "max_idle_s", float("inf")),
        ({"SCHEDULER_QUEUE_CLASS": "scrapy_redis.queue.FifoQueue"}, "order", "fifo"),
        ({"SCHEDULER_QUEUE_CLASS": "scrapy_redis.queue.SpiderQueue"}, "order", "fifo"),
        ({"SCHEDULER_QUEUE_CLASS": "scrapy_redis.queue.PriorityQueue"}, "order", "lifo"),
        (
            {"SCHEDULER_QUEUE_CLASS": "scrapy_redis.queue.SpiderStack", "SCHEDULER_MEMORY_QUEUE": FifoMemoryQueue},
            "order",
            "lifo",
        ),
        ({"SCHEDULER_QUEUE_CLASS": "scrapy_redis.queue.LifoQueue", "PRIOQUEUE_ORDER": "fifo"}, "order", "fifo"),
        ({"SCHEDULER_DUPEFILTER_KEY": "%(spider)s:v2", "SCHEDULER_PERSIST": True}, "seen_name", None),
        ({"SCHEDULER_DUPEFILTER_KEY": "{all}:seen", "SCHEDULER_PERSIST": True}, "seen_name", "all:seen"),
        ({"SCHEDULER_DUPEFILTER_KEY": "all:seen"}, "seen_name", None),
        ({"REDIS_START_URLS_BATCH_SIZE": 16}, "seeds_batch_size", 16),
        ({"REDIS_START_URLS_BATCH_SIZE": 5000}, "seeds_batch_size", 1000),
        ({"REDIS_START_URLS_KEY": "k"}, "seeds_keys", ()),
    ],
)
def test_setting_means_what_the_table_says(settings: Mapping[str, Any], field: str, value: Any) -> None:
    assert getattr(read(**settings), field) == value


def test_those_in_use_are_named_with_ours_and_without_their_values() -> None:
    config = read(SCHEDULER_PERSIST=True, REDIS_HOST="h", REDIS_PARAMS={"password": SECRET}, PRIOQUEUE_MAX_IDLE=1)

    assert config.from_scrapy_redis == [
        "SCHEDULER_PERSIST (as PRIOQUEUE_ON_FINISH)",
        "REDIS_HOST, REDIS_PARAMS (as PRIOQUEUE_REDIS_URL)",
    ]


@pytest.mark.parametrize(
    ("settings", "begins"),
    [
        ({"SCHEDULER_SERIALIZER": "json"}, ["SCHEDULER_SERIALIZER has no effect: requests are stored as MessagePack"]),
        ({"SCHEDULER_QUEUE_KEY": "%(spider)s:q"}, ["SCHEDULER_QUEUE_KEY has no effect: PRIOQUEUE_NAME names"]),
        ({"REDIS_DECODE_RESPONSES": True}, ["REDIS_DECODE_RESPONSES has no effect: make_request"]),
        ({"SCHEDULER_QUEUE_CLASS": "shop.Queue"}, ["SCHEDULER_QUEUE_CLASS = 'shop.Queue' has no effect"]),
        ({"SCHEDULER_QUEUE_CLASS": FifoMemoryQueue}, ["SCHEDULER_QUEUE_CLASS = 'scrapy.squeues."]),
        ({"SCHEDULER_DUPEFILTER_KEY": "all"}, ["SCHEDULER_DUPEFILTER_KEY = 'all' has no effect without"]),
        ({"SCHEDULER_DUPEFILTER_KEY": "all", "PRIOQUEUE_SEEN_NAME": "seen"}, []),
        ({"REDIS_PARAMS": {"redis_cls": "a.B", "password": "x"}}, ["REDIS_PARAMS['redis_cls'] has no effect"]),
        ({"REDIS_START_URLS_AS_SET": True, "REDIS_ENCODING": "latin-1"}, []),
    ],
)
def test_each_without_effect_has_one_line(settings: Mapping[str, Any], begins: Sequence[str]) -> None:
    lines = read(**settings).without_effect

    assert len(lines) == len(begins)
    assert all(line.startswith(begin) for line, begin in zip(lines, begins, strict=True))


def test_filters_derived_from_that_of_scrapy_redis_are_recognized() -> None:
    theirs = type("RFPDupeFilter", (), {"__module__": "scrapy_redis.dupefilter"})
    derived = type("OwnFilter", (theirs,), {})

    assert is_scrapy_rediss_filter(theirs) and is_scrapy_rediss_filter("scrapy_redis.dupefilter.RFPDupeFilter")
    assert derives_from_filter(derived) and not is_scrapy_rediss_filter(derived)
    assert not derives_from_filter(RFPDupeFilter)


@pytest.mark.parametrize("name", SCRAPY_REDIS_SETTINGS)
def test_table_names_settings_of_ours_and_says_what_each_means(name: str) -> None:
    theirs = SCRAPY_REDIS_SETTINGS[name]

    assert not theirs.ours or theirs.ours in SETTINGS
    assert re.fullmatch(r"[^\n|]+\.", theirs.doc)


# An old crawl


@pytest.mark.parametrize(
    ("settings", "keys"),
    [
        ({}, ()),
        ({"PRIOQUEUE_REDIS_URL": "redis://h"}, ()),
        ({"REDIS_HOST": "h"}, ("shop:requests", "shop:dupefilter")),
        ({"DUPEFILTER_CLASS": "scrapy_redis.dupefilter.RFPDupeFilter"}, ("shop:requests", "shop:dupefilter")),
        (
            {"SCHEDULER_QUEUE_KEY": "q:%(spider)s", "SCHEDULER_DUPEFILTER_KEY": "100%%:%(name)s"},
            ("q:shop", "100%:%(name)s"),
        ),
    ],
)
def test_only_projects_of_scrapy_redis_look_for_an_old_crawl(settings: Mapping[str, Any], keys: Sequence[str]) -> None:
    assert read(**settings).scrapy_redis_keys == keys
