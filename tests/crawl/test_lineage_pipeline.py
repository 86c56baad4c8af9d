"""Items with the fields of `LineagePipeline`."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from typing import Any

import attrs
import scrapy
from scrapy.http import Response
from twisted.python.failure import Failure

from tests.crawl.spiders import Follower, path_of, pause
from tests.support.crawls import Crawls
from tests.support.site import Site, leaves, link

DROPS_ITEMS_OF_ERRBACKS = scrapy.__version__ == "2.13.0"
"""That release does so where a download has failed; 2.13.4 and 2.19 don't."""

PIPELINES = {"ITEM_PIPELINES": {"scrapy_prioqueue.LineagePipeline": 500}}
LINEAGE = {"source_url", "fetched_at", "tier", "attempt", "confidence"}


@dataclasses.dataclass
class DataItem:
    """A dataclass with some of the fields."""

    kind: str
    source_url: str | None = None
    tier: str | None = None
    confidence: float | None = None


@dataclasses.dataclass(frozen=True)
class FrozenItem:
    """One that can't be written to."""

    kind: str
    tier: str | None = None


@attrs.define
class AttrsItem:
    """A class of attrs with slots."""

    kind: str
    source_url: str | None = None
    fetched_at: str | None = None
    attempt: int | None = None


class ScrapyItem(scrapy.Item):
    """Scrapy's own."""

    kind = scrapy.Field()
    source_url = scrapy.Field()
    tier = scrapy.Field()


class Making(Follower):
    """Makes items of many types."""

    name = "making"

    def parse_items(self, response: Response) -> Iterator[Any]:
        """Yield one of each type."""
        yield {"kind": "dict", "tier": "mine"}
        yield DataItem("dataclass")
        yield AttrsItem("attrs")
        yield ScrapyItem(kind="item")
        yield FrozenItem("frozen")

    async def parse_slowly(self, response: Response) -> list[Any]:
        """Yield items of pages that are processed at the same time."""
        await pause()
        return [{"kind": path_of(response)}, {"kind": path_of(response)}]

    def on_error(self, failure: Failure) -> Iterator[Any]:
        """Yield an item of a page that could not be had."""
        yield {"kind": "error"}


class Replacing:
    """A pipeline that makes new items."""

    async def process_item(self, item: Any, *_: Any) -> Any:
        await pause(0)
        return dict(item)


def by_kind(items: Any) -> dict[str, Any]:
    return {item["kind"]: item for item in items}


def test_items_of_all_types_get_the_fields_that_they_have(crawls: Crawls, site: Site) -> None:
    meta = {"prioqueue_confidence": 75, "prioqueue_tier": "high"}
    site.pages = {"/": [link("/items", callback="parse_items", meta=meta)], **leaves("/items")}

    result = crawls.run(spider=Making, settings=PIPELINES)

    items = by_kind(item for item in result.items if "kind" in item)
    time = items["dict"].pop("fetched_at")
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00", time)
    source = site.url("/")
    assert items["dict"] == {"kind": "dict", "source_url": source, "tier": "mine", "attempt": 1, "confidence": 75}
    assert items["dataclass"] == {"kind": "dataclass", "source_url": source, "tier": "high", "confidence": 75}
    assert items["attrs"] == {"kind": "attrs", "source_url": source, "fetched_at": time, "attempt": 1}
    assert items["item"] == {"kind": "item", "source_url": source, "tier": "high"}
    assert items["frozen"] == {"kind": "frozen", "tier": None}
    assert len(result.lines("ScrapyItem'> can't take the field 'attempt'")) == 1
    assert len(result.lines("FrozenItem'> can't take the field 'tier'")) == 1
    (start,) = [item for item in result.items if "page" in item]
    assert set(start) == {"page", "fetched_at", "tier", "attempt"}


def test_items_of_pages_at_the_same_time_are_distinguished(crawls: Crawls, site: Site) -> None:
    pages = [f"/{number}" for number in range(10)]
    site.pages = {
        "/": [link(page, callback="parse_slowly", meta={"prioqueue_confidence": int(page[1:])}) for page in pages],
        **leaves(*pages),
    }

    result = crawls.run(spider=Making, settings=PIPELINES)

    found = sorted((item["kind"], item["confidence"]) for item in result.items if "kind" in item)
    assert found == sorted((page, int(page[1:])) for page in pages * 2)


def test_names_of_fields_can_be_set_and_left_out(crawls: Crawls, site: Site) -> None:
    site.pages = {"/": []}
    names = {"PRIOQUEUE_LINEAGE_FIELDS": {"tier": "_tier", "attempt": None, "fetched_at": None}}

    result = crawls.run(settings={**PIPELINES, **names})

    assert result.items == [{"page": "/", "_tier": "normal"}]


def test_problems_are_logged_once(crawls: Crawls, site: Site) -> None:
    wrong = {"prioqueue_confidence": 101}
    site.pages = {"/": [link("/a", meta=wrong), link("/b", meta=wrong)], **leaves("/a", "/b")}
    after = {"ITEM_PIPELINES": {**PIPELINES["ITEM_PIPELINES"], "tests.crawl.test_lineage_pipeline.Replacing": 1}}

    result = crawls.run(settings=PIPELINES)
    replaced = crawls.having(PRIOQUEUE_NAME="replaced").run(settings=after)

    assert not any("confidence" in item for item in result.items)
    assert len(result.lines("meta['prioqueue_confidence'] = 101 is left out")) == 1
    assert len(replaced.lines("another pipeline has made")) == 1
    assert len(replaced.items) == 3


def test_items_of_errbacks_have_a_lineage_too(crawls: Crawls, site: Site, closed_port: int) -> None:
    refused = f"http://127.0.0.1:{closed_port}/"
    site.pages = {"/": [link(refused, errback="on_error", meta={"dont_retry": True})]}

    result = crawls.run(spider=Making, settings=PIPELINES)

    found = by_kind(result.items[1:])
    if DROPS_ITEMS_OF_ERRBACKS:
        assert "error" not in found
    else:
        assert found["error"]["source_url"] == site.url("/")
