"""The tier of a request; redirects and retries keep it, requests found on the page don't."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scrapy import Request, Spider
from scrapy.downloadermiddlewares.retry import get_retry_request
from scrapy.http import Response
from scrapy.utils.test import get_crawler

from scrapy_prioqueue.errors import RequestError
from scrapy_prioqueue.rank import MAX_TIERS, PRIORITY_LIMIT, rank_of
from scrapy_prioqueue.settings import TierRule
from scrapy_prioqueue.tiers import INHERITED_META, TIER_META, TierPolicy

TIERS = ["urgent", "high", "normal", "low"]
URL = "https://shop.example/product/1"


class Shop(Spider):
    name = "shop"

    def parse_product(self, response: Response) -> None: ...


def rule(tier: str, url: str | None = None, callback: str | None = None) -> TierRule:
    return TierRule(tier, None if url is None else re.compile(url), callback)


def policy(*rules: TierRule, tiers: Sequence[str] = TIERS) -> TierPolicy:
    return TierPolicy(tiers, "normal", rules)


def tier(found: TierPolicy, request: Request) -> str:
    return TIERS[(found.rank(request) + request.priority) // 2**45]


PRODUCTS = rule("urgent", url="/product/")


def test_default_tier_where_nothing_else_applies() -> None:
    assert tier(policy(), Request(URL)) == "normal"


def test_meta_wins_over_every_rule() -> None:
    assert tier(policy(PRODUCTS), Request(URL, meta={TIER_META: "low"})) == "low"


@pytest.mark.parametrize("value", [5, "high", ("high",), None])
def test_an_invalid_inherited_tier_is_ignored(value: object) -> None:
    assert tier(policy(), Request(URL, meta={INHERITED_META: value})) == "normal"


def test_rank_of_an_unknown_tier_belongs_to_the_nearest_one() -> None:
    assert [policy().name_of(rank_of(index, 0)) for index in (3, 4, 9)] == ["low"] * 3


def test_first_rule_that_matches_gives_the_tier() -> None:
    found = policy(rule("high", url="/none/"), PRODUCTS, rule("low", url="/product/"))

    assert tier(found, Request(URL)) == "urgent"


def test_rule_by_callback_goes_by_its_name() -> None:
    spider, found = Shop(), policy(rule("high", callback="parse_product"), rule("low", callback="parse"))

    assert tier(found, Request(URL, callback=spider.parse_product)) == "high"
    assert tier(found, Request(URL, callback=spider.parse)) == "low"
    assert tier(found, Request(URL)) == "low"
    assert tier(found, Request(URL, callback=functools.partial(spider.parse))) == "normal"


def test_rule_with_url_and_callback_needs_both() -> None:
    spider, found = Shop(), policy(rule("high", url="/product/", callback="parse_product"))

    assert tier(found, Request(URL, callback=spider.parse_product)) == "high"
    assert tier(found, Request(URL)) == "normal"
    assert tier(found, Request("https://shop.example/", callback=spider.parse_product)) == "normal"


# What redirects and retries keep


def handed_out(found: TierPolicy, request: Request) -> Request:
    found.mark(request, found.rank(request))
    return request


def test_redirect_keeps_the_tier_that_a_rule_gave() -> None:
    found = policy(PRODUCTS)
    request = handed_out(found, Request(URL, meta={"depth": 2}))

    assert tier(found, request.replace(url="https://shop.example/elsewhere")) == "urgent"


def test_redirect_of_a_redirect_keeps_it_too() -> None:
    found = policy(PRODUCTS)
    first = handed_out(found, Request(URL))
    second = handed_out(found, first.replace(url="https://shop.example/a"))

    assert tier(found, second.replace(url="https://shop.example/b")) == "urgent"


def test_retry_keeps_the_tier_at_another_priority() -> None:
    found, spider = policy(PRODUCTS), Shop.from_crawler(get_crawler(Shop))
    request = handed_out(found, Request(URL, priority=3))

    retry = get_retry_request(request, spider=spider, reason="test", priority_adjust=-1)

    assert retry is not None
    assert found.rank(retry) == rank_of(0, 2)


def test_child_that_copies_meta_gets_a_tier_of_its_own() -> None:
    found = policy(PRODUCTS)
    request = handed_out(found, Request(URL, meta={"depth": 2}))

    child = Request("https://shop.example/", meta={**request.meta, "depth": 3})

    assert tier(found, child) == "normal"


def test_child_that_copies_meta_keeps_a_tier_named_in_it() -> None:
    found = policy(PRODUCTS)
    request = handed_out(found, Request(URL, meta={TIER_META: "low", "depth": 2}))

    assert tier(found, Request(URL, meta={**request.meta, "depth": 3})) == "low"


def test_without_rules_nothing_is_noted_on_a_request() -> None:
    assert handed_out(policy(), Request(URL)).meta == {}


# Errors


@pytest.mark.parametrize("bad", ["fast", "", None, 1, ["high"], {"tier": "high"}])
def test_unknown_tier_names_the_request_and_the_tiers(bad: Any) -> None:
    request = Request(URL, meta={TIER_META: bad})

    with pytest.raises(RequestError) as caught:
        policy().rank(request)

    assert caught.value.request is request
    assert URL in str(caught.value)
    assert f"meta['prioqueue_tier'] = {bad!r}" in str(caught.value)
    assert str(TIERS) in str(caught.value)


@pytest.mark.parametrize(
    "priority, nearest", [(2**44, 2**44 - 1), (-(2**44), 1 - 2**44), (10**30, 2**44 - 1), (1.7, 2)]
)
def test_priority_out_of_range_gets_the_nearest_rank_and_the_first_is_logged(
    caplog: pytest.LogCaptureFixture, priority: Any, nearest: int
) -> None:
    found, request = policy(), Request(URL)
    request.priority = priority

    assert found.rank(request) == found.rank(request) == found.rank(Request(URL, priority=nearest))
    (line,) = caplog.messages
    assert f"{URL}> is ordered as if its priority were {nearest}" in line
    assert repr(priority) in line


def test_priority_that_is_another_kind_of_integer_is_no_news(caplog: pytest.LogCaptureFixture) -> None:
    request = Request(URL)
    request.priority = Fraction(3)  # type: ignore[assignment]

    assert policy().rank(request) == policy().rank(Request(URL, priority=3))
    assert not caplog.messages


def test_priority_that_is_no_number_names_the_request() -> None:
    request = Request(URL)
    request.priority = "1"  # type: ignore[assignment]

    with pytest.raises(RequestError, match=r"product/1.*'1'"):
        policy().rank(request)


# Ranks

tier_indexes = st.integers(0, MAX_TIERS - 1)
priorities = st.integers(-PRIORITY_LIMIT + 1, PRIORITY_LIMIT - 1)
places = st.tuples(tier_indexes, priorities)


@given(places, places)
def test_better_tier_and_then_higher_priority_rank_lower(one: tuple[int, int], other: tuple[int, int]) -> None:
    names = [f"t{number}" for number in range(MAX_TIERS)]
    found = TierPolicy(names, "t0")

    ranks = [found.rank(Request(URL, priority=place[1], meta={TIER_META: names[place[0]]})) for place in (one, other)]

    assert (ranks[0] < ranks[1]) == ((one[0], -one[1]) < (other[0], -other[1]))
    assert (ranks[0] == ranks[1]) == (one == other)


@given(places)
def test_a_redirect_inherits_the_tier_at_any_priority(place: tuple[int, int]) -> None:
    names = [f"t{number}" for number in range(MAX_TIERS)]
    found = TierPolicy(names, "t0", [rule(names[place[0]], url="/product/")])
    request = handed_out(found, Request(URL, priority=place[1]))

    assert found.rank(request.replace(url="https://shop.example/")) == rank_of(*place)
