"""Two spiders that share fingerprints and nothing else."""

from __future__ import annotations

from tests.support.crawls import Crawls
from tests.support.site import Site, leaves, link


def test_spiders_with_one_seen_name_fetch_each_page_once_between_them(
    on_redis: Crawls, site: Site, frontier_name: str
) -> None:
    shared = {"PRIOQUEUE_SEEN_NAME": f"{frontier_name}-shared"}
    site.pages = {"/first": ["/a", "/b"], "/second": ["/b", "/c", "/first"], **leaves("/a", "/b", "/c")}

    first = on_redis.start(link("/first"), settings=shared).wait()
    second = on_redis.start(link("/second"), settings={**shared, "PRIOQUEUE_NAME": f"{frontier_name}-2"}).wait()

    assert sorted(first.pages) == ["/a", "/b", "/first"]
    assert sorted(second.pages) == ["/c", "/second"]
    assert second.stats["dupefilter/filtered"] == 2
    assert (first.reason, second.reason) == ("finished", "finished")


def test_spiders_without_it_share_nothing(on_redis: Crawls, site: Site, frontier_name: str) -> None:
    site.pages = {"/": ["/a"], **leaves("/a")}

    first = on_redis.start().wait()
    second = on_redis.start(settings={"PRIOQUEUE_NAME": f"{frontier_name}-2"}).wait()

    assert sorted(first.pages) == sorted(second.pages) == ["/", "/a"]
