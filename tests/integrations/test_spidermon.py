"""spidermon: items are validated, and monitors check the stats of their own worker."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from spidermon import MonitorSuite
from spidermon.contrib.scrapy import monitors as spidermons

from tests.integrations.bookshop import Bookshop, crawl_with_a_kill
from tests.integrations.deployed.books.spiders.books import Books
from tests.support.crawls import Crawls

SETTINGS: dict[str, Any] = {
    "SPIDERMON_ENABLED": True,
    "EXTENSIONS": {
        "tests.support.crawl_process.Recorder": 0,
        "spidermon.contrib.scrapy.extensions.Spidermon": 500,
    },
    "ITEM_PIPELINES": {"spidermon.contrib.scrapy.pipelines.ItemValidationPipeline": 800},
    "SPIDERMON_SPIDER_CLOSE_MONITORS": ["tests.integrations.test_spidermon.AtTheEnd"],
    "SPIDERMON_PERIODIC_MONITORS": {"tests.integrations.test_spidermon.Meanwhile": 1},
    "SPIDERMON_ADD_FIELD_COVERAGE": True,
    "SPIDERMON_MIN_ITEMS": 1,
    "SPIDERMON_MAX_ITEM_VALIDATION_ERRORS": 0,
}
SCHEMA = {
    "$schema": "http://json-schema.org/draft-07/schema",
    "type": "object",
    "properties": {"title": {"type": "string"}, "price": {"type": "string", "pattern": r"^\d+\.\d\d$"}},
    "required": ["title", "price"],
}


class AtTheEnd(MonitorSuite):  # type: ignore[misc]
    """What each worker checks of itself when it closes."""

    monitors = [spidermons.ItemCountMonitor, spidermons.ItemValidationMonitor, spidermons.FinishReasonMonitor]


class Meanwhile(MonitorSuite):  # type: ignore[misc]
    """What each worker checks of itself once a second."""

    monitors = [spidermons.ItemValidationMonitor]


def test_monitors_pass_in_the_worker_that_lives_on(on_redis: Crawls, shop: Bookshop, tmp_path: Path) -> None:
    schema = tmp_path / "book.json"
    schema.write_text(json.dumps(SCHEMA))

    result = crawl_with_a_kill(on_redis, shop, Books, **SETTINGS, SPIDERMON_VALIDATION_SCHEMAS=[str(schema)])

    assert result.stats["spidermon/validation/items"] == result.stats["item_scraped_count"]
    assert "spidermon/validation/fields/errors" not in result.stats
    assert result.stats["spidermon_field_coverage/dict/price"] == 1
    assert result.lines("[Spidermon] OK")
