"""In process, requests that Scrapy's memory queue returns as the same object are returned as the same object."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from functools import partial
from typing import Any

from scrapy import Request
from scrapy.http import Response

from scrapy_prioqueue import requeue
from tests.crawl.spiders import Follower, path_of
from tests.support.crawls import Crawls
from tests.support.site import Site, leaves

GROUPS = 5


class Rendered(Request):
    """Keeps attributes to itself, as those of scrapy-selenium do."""

    def __init__(self, *args: Any, wait_time: int | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.wait_time = wait_time


class Habits(Follower):
    """Does what only objects survive."""

    name = "habits"

    async def start(self) -> AsyncIterator[Any]:
        for number in range(GROUPS):
            yield Request(f"{self.site}group/{number}", dont_filter=True)
        rendered = Rendered(f"{self.site}rendered", self.parse_rendered, wait_time=3)
        rendered.note = object()  # type: ignore[attr-defined]
        yield rendered
        yield Request(f"{self.site}again", self.parse_again, meta={"tries": []})

    def parse(self, response: Response) -> Iterator[Any]:
        group = {"page": path_of(response), "left": 3, "parts": []}
        for part in "abc":
            url = f"{response.url}/{part}"
            yield Request(url, partial(self.parse_part, part=part), meta={"group": group}, priority=ord(part) % 2)

    def parse_part(self, response: Response, part: str) -> Iterator[Any]:
        group = response.meta["group"]
        group["parts"].append(part)
        group["left"] -= 1
        if not group["left"]:
            yield {"page": group["page"], "parts": sorted(group["parts"])}

    def parse_rendered(self, response: Response) -> Iterator[Any]:
        request = response.request
        assert isinstance(request, Rendered)
        yield {"page": path_of(response), "wait_time": request.wait_time, "note": hasattr(request, "note")}

    def parse_again(self, response: Response) -> Iterator[Any]:
        tries = response.meta["tries"]
        tries.append(response.status)
        if len(tries) == 1:
            requeue(response)
        elif len(tries) == 2:
            # The very object that is in progress.
            assert response.request is not None
            yield response.request
        else:
            yield {"page": path_of(response), "tries": len(tries), "keys": sorted(response.meta)}


def test_objects_are_returned_as_the_same_objects(in_memory: Crawls, site: Site) -> None:
    parts = [f"/group/{number}{part}" for number in range(GROUPS) for part in ("", "/a", "/b", "/c")]
    site.pages = leaves(*parts, "/again", "/rendered")

    result = in_memory.run(spider=Habits)

    groups = [item for item in result.items if "parts" in item]
    assert sorted(item["page"] for item in groups) == [f"/group/{number}" for number in range(GROUPS)]
    assert all(item["parts"] == ["a", "b", "c"] for item in groups)
    assert {"page": "/rendered", "wait_time": 3, "note": True} in result.items
    (again,) = [item for item in result.items if item["page"] == "/again"]
    assert again["tries"] == 3
    assert "prioqueue_requeue_times" in again["keys"]
    assert result.reason == "finished"
    assert not result.stats_under("scheduler/unserializable")
    assert len(result.items) == GROUPS + 2
