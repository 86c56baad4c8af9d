"""Runs of real workers, as operators find them, and the totals in the last worker's log."""

from __future__ import annotations

import threading

from scrapy_prioqueue.frontier.redis.link import Link
from scrapy_prioqueue.frontier.redis.operators.inspector import Inspector
from tests.crawl.test_lineage_pipeline import PIPELINES, Making
from tests.support.crawls import WITHIN_S, Crawls
from tests.support.servers import RedisServer
from tests.support.site import Page, Site, leaves, link
from tests.support.waiting import wait_until

BLOCK = "Dumping the stats of all workers"


def test_a_killed_and_a_finished_run_add_up(
    on_redis: Crawls, site: Site, redis_server: RedisServer, frontier_name: str
) -> None:
    gate, items = threading.Event(), link("/items", callback="parse_items", meta={"prioqueue_confidence": 75})
    site.pages = {"/": ["/a", items], "/items": Page(), "/a": Page(gate=gate)}
    database = Link(redis_server.url)
    inspector = Inspector(database, frontier_name)
    first = on_redis.start(spider=Making, settings=PIPELINES)
    first.wait_for("asked", "/a")
    wait_until(lambda: inspector.runs.all()[0].figures.pages == 2, what="two pages are reported", within=WITHIN_S)
    first.kill()
    gate.set()

    result = on_redis.run(spider=Making, settings=PIPELINES)

    last, lost = inspector.runs.all()
    totals, history = inspector.runs.totals(), inspector.runs.history()
    database.close()
    assert [lost.state, last.state, last.figures.reason] == ["lost", "closed", "finished"]
    assert (lost.figures.items, lost.figures.confidence) == (6, [0, 0, 0, 0, 0, 0, 0, 2, 0, 0])
    assert lost.figures.tiers == {"normal": 2}
    assert last.figures.settings["CONCURRENT_REQUESTS"] == "16"
    assert totals is not None
    assert (totals.runs, totals.lost) == (2, 1)
    assert totals.stats["prioqueue/done/tier/normal"] == last.figures.pages + 2
    assert (history.samples[-1].done, history.samples[-1].pages) == (3, last.figures.pages + 2)
    assert (
        f"{BLOCK} of frontier {frontier_name} (runs: 2, machines: 1, lost, and counted up to their last report: 1):"
        in result.log
    )
    assert f"'prioqueue/done/tier/normal': {last.figures.pages + 2}," in result.log


def test_a_worker_without_others_has_nothing_to_add(crawls: Crawls, site: Site) -> None:
    site.pages = {"/": ["/a"], **leaves("/a")}

    result = crawls.run()

    assert BLOCK not in result.log
    assert result.stats_under("prioqueue/done/") == {
        "prioqueue/done/tier/normal": 2,
        "prioqueue/done/slot/127.0.0.1": 2,
    }
