"""Settings of limits, weights, budgets and marks: their values, combinations, and messages that name the key."""

from __future__ import annotations

import json
from typing import Any

import pytest
from scrapy.settings import BaseSettings, Settings

from scrapy_prioqueue.errors import SettingError
from scrapy_prioqueue.frontier.policy import Budget, Policy, SlotLimit, Throttle
from scrapy_prioqueue.frontier.policy_parts import PARTS, digests_of
from scrapy_prioqueue.settings import Config, Layer

WEIGHTS = {"urgent": 8, "high": 4, "normal": 2, "low": 1}


def read(**values: Any) -> Config:
    settings = Settings()
    for name, value in values.items():
        settings.set(name, value, "project")
    return Config.from_settings(settings, "shop")


def policy(**values: Any) -> Policy:
    return read(**values).policy


def refusal(**values: Any) -> SettingError:
    with pytest.raises(SettingError) as caught:
        read(**values)
    return caught.value


def test_nothing_is_enforced_by_default() -> None:
    config = read()

    assert config.policy == Policy(unset=frozenset(PARTS))
    assert not config.policy.limits_slots and not config.policy.goes_by_tier
    assert config.obey_retry_after and not config.policy.awaits_crawl_delay
    assert config.layers == ()


# Limits of slots

SLOTS = {"example.com": {"delay": 0.5, "concurrency": 2, "burst": 3}, "*.shop.test": {"delay": 1}, "*": {"burst": 2}}


@pytest.mark.parametrize("value", [SLOTS, json.dumps(SLOTS), BaseSettings(SLOTS)], ids=["dict", "json", "scrapys"])
def test_limits_are_kept_by_slot(value: Any) -> None:
    assert policy(PRIOQUEUE_SLOTS=value).slots == {
        "example.com": SlotLimit(0.5, 2, 3),
        "*.shop.test": SlotLimit(delay=1.0),
        "*": SlotLimit(burst=2),
    }


def test_limits_for_all_are_the_entry_for_all_slots() -> None:
    found = policy(PRIOQUEUE_SLOT_DELAY="0.5", PRIOQUEUE_SLOT_CONCURRENCY="2", PRIOQUEUE_SLOT_BURST="3")

    assert found.slots == {"*": SlotLimit(0.5, 2, 3)}


def test_limits_for_all_join_what_the_entry_for_all_slots_says() -> None:
    found = policy(PRIOQUEUE_SLOTS={"*": {"delay": 1}, "a": {"concurrency": 0}}, PRIOQUEUE_SLOT_CONCURRENCY=2)

    assert found.slots == {"*": SlotLimit(delay=1.0, concurrency=2), "a": SlotLimit(concurrency=0)}


def test_the_same_limit_for_all_slots_is_not_set_twice() -> None:
    error = refusal(PRIOQUEUE_SLOTS={"*": {"delay": 1}}, PRIOQUEUE_SLOT_DELAY=2)

    assert str(error).startswith("PRIOQUEUE_SLOT_DELAY = 2") and "PRIOQUEUE_SLOTS['*']['delay']" in error.why


def test_limit_that_is_none_is_left_out() -> None:
    assert policy(PRIOQUEUE_SLOTS={"a": {"delay": None, "burst": 2}}).slots == {"a": SlotLimit(burst=2)}


@pytest.mark.parametrize(
    ("name", "right"),
    [
        ("http://a.test", "'a.test'"),
        ("https://me:secret@A.test:8080/page?x=//b", "'a.test'"),
        ("a.test/page", "'a.test'"),
        ("//a.test", "'a.test'"),
        ("https://*.a.test/", "'*.a.test'"),
        ("*.http://a.test", "'*.a.test'"),
        ("a.test:80", "'a.test'"),
        ("*.a.test:80", "'*.a.test'"),
        ("localhost:8000", "'localhost'"),
        ("127.0.0.1:8000", "'127.0.0.1'"),
        ("[::1]:80", "'::1'"),
        ("[::1]", "'::1'"),
        ("A.test", "'a.test'"),
        ("*.A.test", "'*.a.test'"),
        ("*.TEST", "'*.test'"),
        ("A-1.Test:80", "'a-1.test'"),
        (" a.test\n", "'a.test'"),
        ("a.test\x00", "'a.test'"),
        ("\u200ba.test", "'a.test'"),
        (" ", "a host, such as example.com"),
        ("*. ", "a host, such as example.com"),
        ("a b.test", "a host, such as example.com"),
        ("/", "a host, such as example.com"),
        ("https://*/", "a host, such as example.com"),
    ],
)
def test_names_that_no_slot_can_have_are_refused_with_the_right_one(name: str, right: str) -> None:
    error = refusal(PRIOQUEUE_SLOTS={name: {"delay": 1}})

    assert error.name == "PRIOQUEUE_SLOTS"
    assert error.why.startswith(f"{name!r} can't be a slot: ")
    assert error.why.endswith(f"; write {right}")


@pytest.mark.parametrize(
    "name",
    ["::1", "2001:db8::1", "fe80::1:80", "*.test", "localhost", "a_b.test", "Shop:1", "Group_1.x", "группа", "*"],
)
def test_names_that_a_slot_may_have_are_taken(name: str) -> None:
    assert policy(PRIOQUEUE_SLOTS={name: {"delay": 1}}).slots == {name: SlotLimit(delay=1.0)}


# AutoThrottle


@pytest.mark.parametrize("value", [True, "1", "true", {}, "{}"])
def test_autothrottle_is_as_scrapys_settings_have_it(value: Any) -> None:
    assert policy(PRIOQUEUE_AUTOTHROTTLE=value).throttle == Throttle(5.0, 60.0, 1.0)
    assert policy(
        PRIOQUEUE_AUTOTHROTTLE=value,
        AUTOTHROTTLE_START_DELAY=2,
        AUTOTHROTTLE_MAX_DELAY="9",
        AUTOTHROTTLE_TARGET_CONCURRENCY=0.5,
    ).throttle == Throttle(2.0, 9.0, 0.5)


@pytest.mark.parametrize("value", [False, "0", "", None])
def test_autothrottle_is_off(value: Any) -> None:
    assert policy(PRIOQUEUE_AUTOTHROTTLE=value, AUTOTHROTTLE_TARGET_CONCURRENCY="none of our business").throttle is None


def test_own_autothrottle_settings_override_scrapys() -> None:
    found = policy(PRIOQUEUE_AUTOTHROTTLE='{"target_concurrency": 8, "start_delay": 1}', AUTOTHROTTLE_MAX_DELAY=9)

    assert found.throttle == Throttle(1.0, 9.0, 8.0)


# Weights, budgets, marks


@pytest.mark.parametrize("value", [WEIGHTS, json.dumps(WEIGHTS)])
def test_weights_are_in_the_order_of_the_tiers(value: Any) -> None:
    assert policy(PRIOQUEUE_TIER_WEIGHTS=value).weights == (8, 4, 2, 1)
    assert policy(PRIOQUEUE_TIER_WEIGHTS={"b": 1, "a": 9}, PRIOQUEUE_TIERS="a,b", PRIOQUEUE_DEFAULT_TIER="b").weights


def test_budgets_are_kept_by_key() -> None:
    value = {"*": {"pages": 500, "renders": 20, "bytes": 5e8, "seconds": 3600}, "acme": {"pages": 0, "bytes": None}}

    for each in (value, json.dumps(value)):
        assert policy(PRIOQUEUE_BUDGETS=each).budgets == {
            "*": Budget(500, 20, 500_000_000, 3600.0),
            "acme": Budget(pages=0),
        }


@pytest.mark.parametrize("value", [{}, "{}"])
def test_no_budgets_are_not_the_same_as_budgets_without_an_entry(value: Any) -> None:
    assert policy().budgets is None
    assert policy(PRIOQUEUE_BUDGETS=value).budgets == {}


def test_low_mark_is_four_fifths_of_the_high_one() -> None:
    found = policy(PRIOQUEUE_HIGH_WATER="50000")

    assert (found.high_water, found.low_water) == (50_000, 40_000)
    assert policy(PRIOQUEUE_HIGH_WATER=1).low_water == 0
    assert policy(PRIOQUEUE_HIGH_WATER=10, PRIOQUEUE_LOW_WATER=0).low_water == 0


def test_low_mark_is_below_the_high_one() -> None:
    assert refusal(PRIOQUEUE_HIGH_WATER=10, PRIOQUEUE_LOW_WATER=10).name == "PRIOQUEUE_LOW_WATER"
    assert policy(PRIOQUEUE_HIGH_WATER=10, PRIOQUEUE_LOW_WATER=9).low_water == 9


def test_pending_limit_is_ten_times_the_high_mark_and_never_below_it() -> None:
    assert policy().pending_limit == 0
    assert policy(PRIOQUEUE_HIGH_WATER=10).pending_limit == 100
    assert policy(PRIOQUEUE_HIGH_WATER=10, PRIOQUEUE_PENDING_LIMIT=10).pending_limit == 10
    assert policy(PRIOQUEUE_PENDING_LIMIT=10).discovery == (3,)
    assert refusal(PRIOQUEUE_HIGH_WATER=10, PRIOQUEUE_PENDING_LIMIT=9).name == "PRIOQUEUE_PENDING_LIMIT"


def test_discovery_is_the_last_tier_where_there_is_a_mark() -> None:
    assert policy(PRIOQUEUE_HIGH_WATER=10).discovery == (3,)
    assert policy(PRIOQUEUE_MEMORY_HIGH_WATER=0.8).discovery == (3,)
    assert policy(PRIOQUEUE_DISCOVERY_TIERS=["low"]).discovery == ()


@pytest.mark.parametrize("value", [["low", "high"], "high, low", '["low", "high"]'])
def test_discovery_is_what_the_setting_says(value: Any) -> None:
    assert policy(PRIOQUEUE_HIGH_WATER=10, PRIOQUEUE_DISCOVERY_TIERS=value).discovery == (1, 3)


def test_no_tier_need_be_discovery() -> None:
    assert policy(PRIOQUEUE_HIGH_WATER=10, PRIOQUEUE_DISCOVERY_TIERS=[]).discovery == ()


# Layers


@pytest.mark.parametrize(
    "value",
    [
        ["http", {"name": "browser", "meta": {"playwright": True}}, {"name": "manual"}],
        {"http": {}, "browser": {"playwright": True}, "manual": None},
        '["http", {"name": "browser", "meta": {"playwright": true}}, "manual"]',
        '{"http": {}, "browser": {"playwright": true}, "manual": {}}',
    ],
)
def test_layers_in_every_spelling(value: Any) -> None:
    assert read(PRIOQUEUE_LAYERS=value).layers == (
        Layer("http"),
        Layer("browser", {"playwright": True}),
        Layer("manual"),
    )


def test_layers_without_meta_from_the_command_line() -> None:
    assert read(PRIOQUEUE_LAYERS="http, manual").layers == (Layer("http"), Layer("manual"))


# Errors name the place


@pytest.mark.parametrize(
    ("values", "name", "why"),
    [
        ({"PRIOQUEUE_SLOTS": {"a": 5}}, "PRIOQUEUE_SLOTS['a']", "any of delay, concurrency, burst"),
        ({"PRIOQUEUE_SLOTS": {"a": {"rate": 5}}}, "PRIOQUEUE_SLOTS['a']", "unknown 'rate'; known: delay"),
        ({"PRIOQUEUE_SLOTS": {"*": {"delay": -1}}}, "PRIOQUEUE_SLOTS['*']['delay']", ">= 0"),
        ({"PRIOQUEUE_SLOTS": {"*.a": {"burst": 0}}}, "PRIOQUEUE_SLOTS['*.a']['burst']", "from 1"),
        ({"PRIOQUEUE_SLOTS": {"a": {"concurrency": "x"}}}, "PRIOQUEUE_SLOTS['a']['concurrency']", "integer"),
        ({"PRIOQUEUE_AUTOTHROTTLE": {"max_delay": -1}}, "PRIOQUEUE_AUTOTHROTTLE['max_delay']", ">= 0"),
        (
            {"PRIOQUEUE_AUTOTHROTTLE": {"target_concurrency": 0}},
            "PRIOQUEUE_AUTOTHROTTLE['target_concurrency']",
            "above 0",
        ),
        ({"PRIOQUEUE_AUTOTHROTTLE": True, "AUTOTHROTTLE_MAX_DELAY": "x"}, "AUTOTHROTTLE_MAX_DELAY", "number"),
        ({"PRIOQUEUE_TIER_WEIGHTS": {**WEIGHTS, "low": 0}}, "PRIOQUEUE_TIER_WEIGHTS['low']", "from 1"),
        ({"PRIOQUEUE_TIER_WEIGHTS": {**WEIGHTS, "low": 0.5}}, "PRIOQUEUE_TIER_WEIGHTS['low']", "integer"),
        ({"PRIOQUEUE_BUDGETS": {"a": 500}}, "PRIOQUEUE_BUDGETS['a']", "any of pages, renders, bytes, seconds"),
        ({"PRIOQUEUE_BUDGETS": {"a": {"page": 5}}}, "PRIOQUEUE_BUDGETS['a']", "unknown 'page' (did you mean pages?)"),
        ({"PRIOQUEUE_BUDGETS": {"a": {"bytes": 0.5}}}, "PRIOQUEUE_BUDGETS['a']['bytes']", "integer"),
        ({"PRIOQUEUE_BUDGETS": {"a": {"bytes": 1e16}}}, "PRIOQUEUE_BUDGETS['a']['bytes']", "from 0 to"),
        ({"PRIOQUEUE_BUDGETS": {"a": {"seconds": -1}}}, "PRIOQUEUE_BUDGETS['a']['seconds']", ">= 0"),
        ({"PRIOQUEUE_LAYERS": ["http", 2]}, "PRIOQUEUE_LAYERS[1]", "any of name, meta"),
        ({"PRIOQUEUE_LAYERS": ["http", ""]}, "PRIOQUEUE_LAYERS[1]", "non-empty"),
        ({"PRIOQUEUE_LAYERS": [{"meta": {}}]}, "PRIOQUEUE_LAYERS[0]", 'needs a "name"'),
        ({"PRIOQUEUE_LAYERS": [{"name": "a", "mete": {}}]}, "PRIOQUEUE_LAYERS[0]", "'mete' (did you mean meta?)"),
        ({"PRIOQUEUE_LAYERS": {"a": {1: 2}}}, "PRIOQUEUE_LAYERS['a']['meta']", "strings"),
        ({"PRIOQUEUE_LAYERS": {"a": ["playwright"]}}, "PRIOQUEUE_LAYERS['a']['meta']", "a dictionary of meta keys"),
        ({"PRIOQUEUE_LAYERS": {"a": {"prioqueue_layer": "b"}}}, "PRIOQUEUE_LAYERS['a']['meta']", "the layer's name"),
    ],
)
def test_error_names_setting_and_key(values: dict[str, Any], name: str, why: str) -> None:
    error = refusal(**values)

    assert error.name == name
    assert why in error.why


@pytest.mark.parametrize(
    ("values", "part"),
    [
        ({"PRIOQUEUE_SLOTS": {}}, "slots"),
        ({"PRIOQUEUE_SLOT_DELAY": 0}, "slots"),
        ({"PRIOQUEUE_AUTOTHROTTLE": False}, "throttle"),
        ({"PRIOQUEUE_ROBOTSTXT_CRAWL_DELAY": False}, "crawl_delay"),
        ({"PRIOQUEUE_TIER_WEIGHTS": {}}, "weights"),
        ({"PRIOQUEUE_BUDGETS": {}}, "budgets"),
        ({"PRIOQUEUE_HIGH_WATER": 0}, "marks"),
    ],
)
def test_a_part_that_is_set_to_nothing_is_not_one_that_is_not_set(values: dict[str, Any], part: str) -> None:
    found = policy(**values)

    assert found.unset == PARTS.keys() - {part}
    assert digests_of(found) == {part: ""} or part in ("slots", "budgets")
    assert not (found.throttle or found.weights or found.has_marks or found.awaits_crawl_delay)
