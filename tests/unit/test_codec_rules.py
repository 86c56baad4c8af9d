"""Requests of a `CrawlSpider` find their rule again in another version of the spider."""

from __future__ import annotations

import functools
import subprocess
import sys
from collections.abc import Callable, Sequence
from datetime import date
from typing import Any

import msgpack
import pytest
from scrapy import Request, Spider
from scrapy.spiders import CrawlSpider, Rule

from scrapy_prioqueue.codec import RequestCodec
from scrapy_prioqueue.codec.detached import with_meta
from scrapy_prioqueue.codec.plain import read_plain
from scrapy_prioqueue.errors import UnknownName

URL = "https://shop.example/p/1"


class Shop(CrawlSpider):
    name = "shop"

    def parse_book(self, response: Any, **kwargs: Any) -> None: ...

    def parse_toy(self, response: Any, **kwargs: Any) -> None: ...

    def failed(self, failure: Any) -> None: ...


class Paged(Request):
    attributes = (*Request.attributes, "page")

    def __init__(self, *args: Any, page: int = 0, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.page = page


def shop(*rules: Rule) -> Shop:
    spider: Shop = type("Shop", (Shop,), {"rules": rules})()
    return spider


def link(spider: CrawlSpider, rule: object, cls: type[Request] = Request, **changes: Any) -> Request:
    callbacks = {"callback": spider._callback, "errback": spider._errback} | changes  # noqa: SLF001
    return cls(URL, meta={"rule": rule, "link_text": "x"}, **callbacks)


def moved(old: Sequence[Rule], new: Sequence[Rule], rule: int = 0, cls: type[Request] = Request) -> int:
    """Return the index that a link of a rule has for a worker with other rules."""
    writer = shop(*old)
    payload = RequestCodec(writer).encode(link(writer, rule, cls), "shop.example")
    return int(RequestCodec(shop(*new)).decode(payload, "shop.example").meta["rule"])


def digests() -> list[int]:
    spider = shop(*(make() for make in OTHERS))
    codec = RequestCodec(spider)
    return [codec.fields(link(spider, rule))[20] for rule in range(len(OTHERS))]


def parse_function(response: Any, **kwargs: Any) -> None: ...


FOLLOW = Rule(follow=True)
OTHERS: Sequence[Callable[[], Rule]] = [
    lambda: Rule(callback="parse_book"),
    lambda: Rule(callback="parse_toy"),
    lambda: Rule(callback="parse_book", follow=True),
    lambda: Rule(callback="parse_book", errback="failed"),
    lambda: Rule(callback="parse_book", cb_kwargs={"kind": "a"}),
    lambda: Rule(callback="parse_book", cb_kwargs={"kind": "b"}),
    lambda: Rule(callback="parse_book", cb_kwargs={"kind": {"a", "b", "c"}, "day": date(2026, 1, 1), "more": [1, {}]}),
    lambda: Rule(callback=parse_function),
    lambda: Rule(callback=functools.partial(parse_function, kind=1)),
]
SAME_CALLBACKS = [0, 2, 4, 5, 6]
"""Those of `OTHERS` that differ in `follow` and `cb_kwargs` only."""


@pytest.mark.parametrize("cls", [Request, Paged])
@pytest.mark.parametrize("other", range(len(OTHERS)))
def test_a_rule_in_front_moves_those_behind_it_and_its_removal_moves_them_back(other: int, cls: type[Request]) -> None:
    make = OTHERS[other]

    assert moved([FOLLOW], [make(), FOLLOW], cls=cls) == 1
    assert moved([make(), FOLLOW], [FOLLOW], 1, cls) == 0


def test_each_rule_is_found_among_all_in_any_order() -> None:
    old, new = [make() for make in OTHERS], [make() for make in reversed(OTHERS)]

    assert [moved(old, new, rule) for rule in range(len(old))] == list(reversed(range(len(old))))


@pytest.mark.parametrize("other", [rule for rule in range(len(OTHERS)) if rule not in SAME_CALLBACKS])
def test_a_rule_whose_callbacks_no_other_has_is_unknown(other: int) -> None:
    rest = [make() for number, make in enumerate(OTHERS) if number != other]

    with pytest.raises(UnknownName, match=r"no rule of spider 'shop' has the callbacks that rule 0 had"):
        moved([OTHERS[other]()], rest)


@pytest.mark.parametrize("other", SAME_CALLBACKS)
def test_a_rule_that_was_edited_in_place_keeps_its_links(other: int) -> None:
    """As where a crawl is resumed with another `follow` or other `cb_kwargs`."""
    old, edited = OTHERS[other](), Rule(callback="parse_book", cb_kwargs={"kind": "edited"}, follow=True)

    assert moved([FOLLOW, old], [FOLLOW, edited], 1) == 1
    assert moved([old], [FOLLOW, edited]) == 1


def test_differences_that_affect_only_link_extraction_do_not_count() -> None:
    one = Rule(callback="parse_book", process_links=lambda links: links, process_request="rework")

    assert moved([one], [Rule(callback="parse_book")]) == 0


def test_of_two_equal_rules_the_one_at_the_index_is_taken() -> None:
    rules = [Rule(callback="parse_book"), Rule(callback="parse_book")]

    assert moved(rules, [FOLLOW, *rules], 1) == 1


def test_a_payload_from_before_keeps_its_index() -> None:
    spider = shop(Rule(callback="parse_toy"), FOLLOW)
    before = b"\x01" + bytes(msgpack.packb({0: URL, 1: "_callback", 2: {"rule": 1}, 9: "_errback"}))

    assert RequestCodec(spider).decode(before).meta == {"rule": 1}
    with pytest.raises(UnknownName, match="spider 'shop' has no rule 1, only 1 rule"):
        RequestCodec(shop(FOLLOW)).decode(before)


def test_only_the_callbacks_that_ask_their_rule_count() -> None:
    """As after a `process_request` that has changed one."""
    old, new = shop(Rule(callback="parse_book", errback="failed")), shop(FOLLOW, Rule(errback="failed"))
    own: dict[str, Any] = {"errback": None, "callback": old.parse_toy}
    errback_only: dict[str, Any] = {"callback": old.parse_toy}

    assert RequestCodec(new).decode(RequestCodec(old).encode(link(old, 7, **own))).meta["rule"] == 7
    assert RequestCodec(new).decode(RequestCodec(old).encode(link(old, 0, **errback_only))).meta["rule"] == 1
    with pytest.raises(UnknownName, match="callbacks that rule 0 had"):
        RequestCodec(shop(FOLLOW)).decode(RequestCodec(old).encode(link(old, 0, **errback_only)))


def test_rules_that_change_at_run_time_count_as_they_are_then() -> None:
    spider = shop(FOLLOW)
    codec = RequestCodec(spider)
    payload = codec.encode(link(spider, 0))

    spider.rules = (Rule(callback="parse_book"), *spider.rules)
    spider._compile_rules()  # noqa: SLF001
    assert codec.decode(payload).meta["rule"] == 1
    spider._rules[1].callback = spider.parse_toy  # noqa: SLF001
    with pytest.raises(UnknownName):
        codec.decode(payload)


def test_a_spider_that_keeps_its_rules_otherwise_is_left_alone() -> None:
    spider = shop(FOLLOW)
    spider._rules = {"listing": FOLLOW}  # type: ignore[assignment]  # noqa: SLF001
    codec = RequestCodec(spider)

    assert codec.decode(codec.encode(link(spider, "listing"))).meta["rule"] == "listing"


def test_a_rule_of_another_class_may_lack_an_errback() -> None:
    old, new = shop(FOLLOW), shop(Rule(callback="parse_book"), FOLLOW)
    del old._rules[0].errback  # noqa: SLF001

    assert RequestCodec(new).decode(RequestCodec(old).encode(link(old, 0))).meta["rule"] == 1


def test_a_rule_costs_six_bytes_and_other_requests_nothing() -> None:
    spider = shop(FOLLOW)
    codec = RequestCodec(spider)
    without = codec.encode(link(spider, 5), "shop.example")

    assert len(codec.encode(link(spider, 0), "shop.example")) <= len(without) + 6
    assert codec.fields(Request(URL, spider.parse_book, meta={"rule": 0})).keys() == {0, 1, 2}
    assert RequestCodec(Spider("plain")).fields(Request(URL, meta={"rule": 0})).keys() == {0, 2}


def test_programs_without_the_spider_keep_the_rule() -> None:
    old, new = shop(FOLLOW), shop(Rule(callback="parse_book"), FOLLOW)
    payload = RequestCodec(old).encode(link(old, 0), "shop.example")

    changed = with_meta(payload, "shop.example", {"retry_times": 2})

    assert RequestCodec(new).decode(changed, "shop.example").meta == {"rule": 1, "link_text": "x", "retry_times": 2}
    assert read_plain(payload, "shop.example").unknown == {}


@pytest.mark.slow
def test_another_process_gives_a_rule_the_same_digest() -> None:
    code = "from tests.unit.test_codec_rules import digests; print(digests())"
    environment = {"PYTHONPATH": ":".join(sys.path), "PYTHONHASHSEED": "1"}

    run = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, env=environment)

    assert run.stdout == f"{digests()}\n"
    assert len(set(digests())) == len(OTHERS)
