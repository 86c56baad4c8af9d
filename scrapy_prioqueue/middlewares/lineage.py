"""An item pipeline that adds to items where they came from."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from itemadapter import ItemAdapter
from scrapy import Spider

from scrapy_prioqueue.engine import StatCounter, watch_items
from scrapy_prioqueue.logs import CrawlLog, wrong_settings_named
from scrapy_prioqueue.queues import verdicts
from scrapy_prioqueue.queues.lineages import CONFIDENCE_META, LINEAGE_META
from scrapy_prioqueue.queues.recording import confidence_stat
from scrapy_prioqueue.settings import lineage_fields

if TYPE_CHECKING:
    from scrapy.crawler import Crawler
    from typing_extensions import Self

logger = logging.getLogger(__name__)


class LineagePipeline:
    """Adds source URL, fetch time, tier, attempt and confidence to items.

    `PRIOQUEUE_LINEAGE_FIELDS` sets the names of the fields. Fields that already have a value are kept. Unknown values,
    and fields that an item's type doesn't have, are left out.
    """

    def __init__(self, crawler: Crawler, fields: Mapping[str, str | None]) -> None:
        self._crawler = crawler
        self._stats = StatCounter(crawler.stats)
        self._log = CrawlLog(logger, crawler.spider)
        self._fields = fields
        self._results: dict[int, tuple[Any, Any]] = {}
        self._logged: set[object] = set()

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """Read and check the setting.

        Raises:
            SettingError: it is invalid.
        """
        with wrong_settings_named(logger, crawler):
            return cls(crawler, lineage_fields(crawler.settings))

    def open_spider(self, spider: Spider | None = None) -> None:
        """Begin to track which page each item comes from, since Scrapy doesn't pass that to pipelines."""
        watch_items(self._crawler, self._during)

    def process_item(self, item: Any, spider: Spider | None = None) -> Any:
        """Write the fields."""
        known, result = self._results.get(id(item), (None, None))
        if known is not item:
            self._say_once(
                "replaced",
                "LineagePipeline knows nothing of an item that another pipeline has made;"
                " put it before pipelines that replace items (%s)",
                type(item),
            )
            return item
        adapter = ItemAdapter(item)
        lineage = self._lineage(result)
        for key, value in lineage.items():
            name = self._fields[key]
            if name is not None and value is not None:
                self._write(adapter, name, value)
        self._count_confidence(adapter, lineage.get("confidence"))
        return item

    def _count_confidence(self, adapter: ItemAdapter, value: Any) -> None:
        """Count the confidence that an item has, which may be its own; without that field, its page's."""
        name = self._fields["confidence"]
        found: Any = value
        # Types without that field have been logged.
        with suppress(AttributeError, KeyError, TypeError, ValueError):
            found = value if name is None else adapter.get(name)
        if _is_confidence(found):
            self._stats.count(confidence_stat(found))

    @contextmanager
    def _during(self, item: Any, result: Any) -> Iterator[None]:
        self._results[id(item)] = (item, result)
        try:
            yield
        finally:
            self._results.pop(id(item), None)

    def _lineage(self, result: Any) -> dict[str, Any]:
        page = None if result is None else verdicts.page_of(result)
        if page is None:
            return {}
        request = getattr(result, "request", None) or page.request
        lineage = page.request.meta.get(LINEAGE_META, {})
        return {
            "source": lineage.get("source"),
            "fetched_at": datetime.fromtimestamp(page.fetched_at, timezone.utc).isoformat(timespec="seconds"),
            "tier": lineage.get("tier"),
            "attempt": lineage.get("attempt"),
            "confidence": self._confidence(request.meta.get(CONFIDENCE_META)),
        }

    def _confidence(self, value: Any) -> Any:
        if value is None or _is_confidence(value):
            return value
        self._say_once(
            CONFIDENCE_META, "meta[%r] = %r is left out: it must be a number from 0 to 100", CONFIDENCE_META, value
        )
        return None

    def _write(self, adapter: ItemAdapter, name: str, value: Any) -> None:
        try:
            if adapter.get(name) is None:
                adapter[name] = value
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            kind = type(adapter.item)
            self._say_once(
                (kind, name), "Items of %r can't take the field %r of LineagePipeline: %r", kind, name, error
            )

    def _say_once(self, what: object, text: str, *arguments: Any) -> None:
        if what not in self._logged:
            self._logged.add(what)
            self._log.warning(text, *arguments)


def _is_confidence(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value <= 100
