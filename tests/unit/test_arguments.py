"""Arguments of a spider: which attributes are arguments, how they are described, and how they are compared."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pytest
from scrapy import Spider
from scrapy.settings import Settings
from scrapy.spiders import CrawlSpider

from scrapy_prioqueue.arguments import argument, arguments_of, description_of, difference
from scrapy_prioqueue.errors import SettingError
from scrapy_prioqueue.settings import Config


class Plain(Spider):
    name = "plain"


class Following(CrawlSpider):
    name = "following"


class Own(Spider):
    """Names some arguments, passes others on, and has attributes of its own."""

    name = "own"

    def __init__(self, country: str, *args: Any, depth: str = "1", **named: Any) -> None:
        super().__init__(*args, **named)
        self.country = country.upper()
        self.depth = int(depth)
        self.run = str(uuid4())
        self.prepare()

    def prepare(self) -> None:
        """Set one more attribute."""
        self.started = uuid4().hex


class Inheriting(Own):
    name = "inheriting"

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self.more = uuid4().hex


@pytest.mark.parametrize(
    ("spider", "expected"),
    [
        (Plain(country="fr"), {"country": "fr"}),
        (Following(country="fr"), {"country": "fr"}),
        (Own("fr", site="a"), {"country": "FR", "depth": 1, "site": "a"}),
        (Inheriting("fr", depth="2", site="a"), {"country": "FR", "depth": 2, "site": "a"}),
        (Plain(), {}),
    ],
    ids=["plain", "following", "own", "inheriting", "none"],
)
def test_arguments_are_distinguished_from_what_a_spider_sets_itself(spider: Spider, expected: dict[str, Any]) -> None:
    assert arguments_of(spider) == expected


def test_equal_arguments_differ_in_nothing() -> None:
    one, other = description_of(Own("fr", site="a")), description_of(Own("fr", site="a"))

    assert difference(one, other).texts == ()


def test_each_argument_that_differs_is_named_with_what_each_has() -> None:
    found = difference(description_of(Plain(country="de", page="1")), description_of(Plain(country="fr", sort="up")))

    assert list(found.texts) == [
        "country is 'de' here and 'fr' there",
        "page is '1' here and not given there",
        "sort is not given here and 'up' there",
    ]
    assert list(found.arguments) == ["country", "page", "sort"]


def test_another_class_is_named() -> None:
    (text,) = difference(description_of(Plain()), description_of(Following())).texts

    assert text == f"its class is {__name__}:Plain here and {__name__}:Following there"


def test_arguments_that_usually_differ_are_left_out() -> None:
    one, other = Plain(_job="1", job_id="1", worker="a", pid="7"), Plain(_job="2", job_id="2", worker="b", pid="8")

    assert difference(description_of(one), description_of(other)).texts == ()


def test_arguments_of_scrapy_rediss_spiders_may_differ_except_for_the_key_of_start_urls() -> None:
    one = Plain(redis_key="a", redis_batch_size="1", redis_encoding="utf-8", max_idle_time="0")
    other = Plain(redis_key="b", redis_batch_size="2", max_idle_time="6")

    (text,) = difference(description_of(one), description_of(other)).texts
    assert text == "redis_key has one value here and another there"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *((name, "hunter2") for name in ("password", "db_pass", "api_key", "apikey", "auth_token", "client_secret")),
        ("database", "postgres://shop:hunter2@db/"),
        ("urls", "hunter2" * 20),
    ],
)
def test_secrets_and_long_values_are_not_stored_and_their_difference_is_reported(name: str, value: str) -> None:
    one, other = description_of(Plain(**{name: value})), description_of(Plain(**{name: value + "x"}))

    assert "hunter2" not in one
    assert list(difference(one, other).texts) == [f"{name} has one value here and another there"]
    assert difference(one, description_of(Plain(**{name: value}))).texts == ()
    assert list(difference(one, description_of(Plain())).texts) == [f"{name} is given here and not given there"]


@pytest.mark.parametrize("name", ["keyword", "author", "country", "compass_point"])
def test_names_that_only_look_a_little_like_a_secret_are_shown(name: str) -> None:
    assert "shown" in description_of(Plain(**{name: "shown"}))


def test_a_description_of_another_release_differs_in_nothing() -> None:
    for there in ("", "{}", "[]", "1", '{"class": "a", "arguments": 7}', "no JSON"):
        assert difference(description_of(Plain(country="fr")), there).texts == ()


# In names


def config(spider: Spider, **settings: Any) -> Config:
    return Config.from_settings(Settings(settings), spider.name, lambda name: argument(spider, name))


def test_names_may_hold_arguments_and_attributes() -> None:
    template = "%(spider)s-%(country)s-%(depth)s"

    found = config(
        Own("fr"),
        PRIOQUEUE_NAME=template,
        PRIOQUEUE_SEEN_NAME="seen-%(country)s",
        PRIOQUEUE_SEEDS_KEY="%(name)s:%(country)s",
    )

    assert (found.name, found.seen_name, found.seeds_keys) == ("own-FR-1", "seen-FR", ("own:FR",))


@pytest.mark.parametrize("setting", ["PRIOQUEUE_NAME", "PRIOQUEUE_SEEN_NAME", "PRIOQUEUE_SEEDS_KEY"])
def test_a_missing_argument_is_named_with_the_option_that_gives_it(setting: str) -> None:
    with pytest.raises(SettingError, match=f"{setting}.*no argument 'country'.*-a country="):
        config(Plain(), **{setting: "%(spider)s-%(country)s"})
