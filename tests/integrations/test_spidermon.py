"""spidermon: items are validated; monitors check the stats of their worker, and report signals as they come."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

from spidermon import MonitorSuite
from spidermon.contrib.scrapy import monitors as spidermons

from tests.crawl.spiders import Mannered
from tests.integrations.bookshop import Bookshop, crawl_with_a_kill, documented_settings
from tests.integrations.deployed.books.spiders.books import Books
from tests.support.crawls import WITHIN_S, Crawls
from tests.support.servers import StartServer
from tests.support.site import Page, Site, link
from tests.support.waiting import wait_until

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


def documented() -> dict[str, Any]:
    """Return the settings of the documentation, with the module of tests that stands for `books.monitors`."""
    settings = json.dumps(documented_settings("spidermon")).replace(
        "books.monitors", "tests.integrations.documented_monitors"
    )
    found: dict[str, Any] = json.loads(settings)
    found["EXTENSIONS"]["tests.support.crawl_process.Recorder"] = 0
    return found


def test_monitors_of_the_documentation_report_signals_at_once_and_stats_at_the_end(
    on_redis: Crawls, site: Site, redis_server_factory: StartServer
) -> None:
    server, gate = redis_server_factory(), threading.Event()
    site.pages = {"/": ["/held", link("/failing", callback="parse_and_fail")], "/failing": [], "/held": Page(gate=gate)}

    crawl = on_redis.start(spider=Mannered, settings={**documented(), "PRIOQUEUE_REDIS_URL": server.url})
    crawl.wait_for("asked", "/held")
    failure = "dead letter (callback): <GET"
    wait_until(lambda: failure in crawl.process.log, what="the dead letter is reported", within=WITHIN_S)
    server.freeze()
    gate.set()
    outage = "AssertionError: outage: no answer from the frontier at"
    wait_until(lambda: outage in crawl.process.log, what="the outage is reported", within=WITHIN_S)
    server.thaw()
    result = crawl.wait(troubles=True)

    assert result.reason == "finished"
    assert result.lines("Frontier/the whole crawl has no dead letters... FAIL")
    assert result.lines("Frontier/all requests could be stored... OK")
    assert result.lines("Frontier/no leases were lost... OK")
