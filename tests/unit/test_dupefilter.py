"""The dupefilter under other schedulers, who does the filtering, and the cache that saves questions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from scrapy import Request
from scrapy.dupefilters import BaseDupeFilter, RFPDupeFilter
from scrapy.utils.misc import build_from_crawler
from scrapy.utils.test import get_crawler

from scrapy_prioqueue.dupefilter import DupeFilter, SeenCache, filters_by_frontier

URL = "https://shop.example/"


class OnlyPath(DupeFilter):
    def fingerprint(self, request: Request) -> bytes:
        return request.url.partition("?")[0].encode()


class DecidesItself(DupeFilter):
    def request_seen(self, request: Request) -> bool:
        return False


def dupefilter(kind: type[BaseDupeFilter], **settings: Any) -> Any:
    return build_from_crawler(kind, get_crawler(settings_dict=settings))


def test_frontier_filters_for_our_class_and_for_subclasses_with_identities_of_their_own() -> None:
    assert filters_by_frontier(dupefilter(DupeFilter))
    assert filters_by_frontier(dupefilter(OnlyPath))


def test_any_class_that_decides_itself_is_left_to_decide() -> None:
    for kind in (DecidesItself, RFPDupeFilter, BaseDupeFilter):
        assert not filters_by_frontier(dupefilter(kind))


def test_fingerprint_is_scrapys_own() -> None:
    crawler = get_crawler()
    assert crawler.request_fingerprinter is not None
    request = Request(URL)

    found = build_from_crawler(DupeFilter, crawler).fingerprint(request)

    assert found == crawler.request_fingerprinter.fingerprint(request)


def test_under_another_scheduler_it_filters_for_one_process() -> None:
    found = dupefilter(DupeFilter)

    assert not found.request_seen(Request(URL))
    assert found.request_seen(Request(URL))
    assert not found.request_seen(Request(f"{URL}other"))


def test_under_another_scheduler_it_remembers_in_jobdir(tmp_path: Path) -> None:
    first = dupefilter(DupeFilter, JOBDIR=str(tmp_path))
    first.request_seen(Request(URL))
    first.close("finished")

    second = dupefilter(DupeFilter, JOBDIR=str(tmp_path))
    found = second.request_seen(Request(URL))
    second.close("finished")

    assert found


# The cache


def test_cache_knows_what_was_added_and_nothing_else() -> None:
    cache = SeenCache(10)
    cache.add(b"a")

    assert b"a" in cache
    assert b"b" not in cache


@given(st.lists(st.integers(0, 1000), unique=True), st.integers(1, 20))
def test_cache_holds_the_newest_and_never_more_than_its_limit(added: list[int], limit: int) -> None:
    cache = SeenCache(limit)
    for number in added:
        cache.add(bytes([number >> 8, number & 255]))

    known = [number for number in added if bytes([number >> 8, number & 255]) in cache]
    assert known == added[-limit:]
    assert len(cache) == len(known)
