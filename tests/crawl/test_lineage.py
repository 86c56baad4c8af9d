"""Every request knows the page on which it was found."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
from scrapy.http import Response

from tests.crawl.spiders import Follower, path_of
from tests.support.crawls import Crawls
from tests.support.site import Page, Site, in_turn, link, moved


class Telling(Follower):
    """Yields the mapping of each page's request as an item."""

    name = "telling"

    def parse(self, response: Response) -> Iterator[Any]:
        yield {"page": path_of(response), **response.meta["prioqueue"]}
        yield from self.requests(response)


def test_each_page_knows_where_it_was_found(crawls: Crawls, site: Site) -> None:
    site.pages = {
        "/": ["/a", link("/b", meta={"prioqueue_tier": "high"}), link("/copy", copies_meta=True)],
        "/a": moved("/moved"),
        "/moved": [],
        "/b": in_turn(Page(status=500), Page()),
        "/copy": [],
    }
    begun = int(time.time())

    result = crawls.run(spider=Telling, settings={"PRIOQUEUE_WORKER_ID": "me"})

    found = {item["page"]: item for item in result.items}
    assert {page: item["source"] for page, item in found.items()} == {
        "/": None,
        "/moved": site.url("/"),
        "/b": site.url("/"),
        "/copy": site.url("/"),
    }
    assert {item["tier"] for item in found.values()} == {"normal", "high"}
    assert {(item["worker"], item["attempt"]) for item in found.values()} == {("me", 1)}
    assert len({item["id"] for item in found.values()}) == 4
    for item in found.values():
        assert begun <= item["discovered_at"] <= item["leased_at"] <= time.time()


@pytest.mark.parametrize("fixture, has_id", [("on_redis", False), ("in_memory", True)])
def test_a_request_that_cannot_be_stored_knows_it_too(
    request: pytest.FixtureRequest, site: Site, fixture: str, has_id: bool
) -> None:
    crawls: Crawls = request.getfixturevalue(fixture)
    site.pages = {"/": [], "/kept": []}

    result = crawls.run(spider=Keeping)

    (item,) = result.items
    assert (item["source"], item["tier"], item["attempt"]) == (site.url("/"), "normal", 1)
    assert isinstance(item["id"], int if has_id else type(None))


class Keeping(Telling):
    """Finds a page that can't be stored."""

    name = "keeping"

    def parse(self, response: Response) -> Iterator[Any]:
        if path_of(response) == "/":
            yield response.follow("/kept", callback=partial(Telling.parse, self))
