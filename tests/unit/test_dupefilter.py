"""The dupefilter with other schedulers, whether it or the frontier filters, and the cache of fingerprints."""

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
from scrapy_prioqueue.frontier.seen import NEVER_S

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


def name(number: int) -> bytes:
    return number.to_bytes(20, "big")


def test_cache_knows_what_it_was_asked_for_and_nothing_else() -> None:
    cache = SeenCache(10)

    assert [cache.knows(name) for name in (b"a", b"b", b"a", b"c", b"c")] == [False, False, True, False, True]


@given(st.lists(st.integers(0, 300), max_size=300), st.integers(0, 40))
def test_cache_holds_no_more_than_its_limit_and_only_what_it_was_asked_for(asked: list[int], limit: int) -> None:
    cache, known = SeenCache(limit), set[int]()
    for number in asked:
        assert not cache.knows(name(number)) or number in known
        known.add(number)

        assert cache.knows(name(number)) or limit == 0

    assert len(cache) <= min(limit, len(known))


def test_cache_of_eight_or_fewer_holds_just_the_newest() -> None:
    cache = SeenCache(8)
    for number in range(20):
        cache.knows(name(number))

    assert all(cache.knows(name(number)) for number in range(12, 20))
    assert not cache.knows(name(11))


def test_cache_mistakes_no_piece_of_its_own_memory_for_a_fingerprint() -> None:
    cache = SeenCache(8)
    cache.knows(bytes(range(1, 21)))
    cache.knows(bytes(range(21, 41)))

    assert not any(cache.knows(bytes((start + at) % 40 + 1 for at in range(20))) for start in range(1, 20))


def test_cache_asks_again_after_a_tenth_of_the_time_and_sooner_for_a_request_that_wants_news_sooner() -> None:
    now = [1000.0]
    cache = SeenCache(100, 600, clock=lambda: now[0])
    for number, revisit_s in enumerate((None, 0, 9, 100, NEVER_S)):
        assert not cache.knows(name(number), revisit_s)

    now[0] = 1009.0
    assert [cache.knows(name(number), 100) for number in range(5)] == [False, False, False, True, False]


def test_cache_forgets_in_time() -> None:
    now = [1000.0]
    cache = SeenCache(100, 600, clock=lambda: now[0])

    assert not cache.knows(b"page")
    now[0] = 1059.9
    assert cache.knows(b"page")
    now[0] = 1060
    assert not cache.knows(b"page")
    assert cache.knows(b"page")
