"""Callbacks that block the loop for longer than `PRIOQUEUE_LEASE_TTL`, on every kind of loop."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.crawl.spiders import Staller
from tests.crawl.test_reactors import loops
from tests.support.crawls import Crawls
from tests.support.metrics import metrics_of_worker
from tests.support.site import Site, leaves
from tests.support.waiting import wait_until

TTL_S = 2.0


@loops
def test_requests_of_a_blocked_worker_are_not_fetched_by_another(
    on_redis: Crawls, site: Site, process: str, settings: Mapping[str, Any], said: str
) -> None:
    names = [f"/{number}" for number in range(30)]
    site.pages = {"/": [{"url": "/stall", "callback": "parse_and_stall"}, *names], **leaves("/stall", *names)}
    crawls = on_redis.having(**settings, PRIOQUEUE_LEASE_TTL=TTL_S)

    first = crawls.having(PRIOQUEUE_METRICS_PORT=0).start(spider=Staller, process=process, stall_s=3 * TTL_S)
    first.wait_for("asked", "/stall")
    second = crawls.start(spider=Staller, process=process, stall_s=3 * TTL_S)
    wait_until(
        lambda: metrics_of_worker(first.process.log)["prioqueue_worker_loop_lag_seconds",] > TTL_S / 4,
        what="the blocked worker serves its metrics",
        within=3 * TTL_S,
    )
    results = [first.wait(), second.wait()]

    assert all(said in result.log for result in results)
    assert [result.reason for result in results] == ["finished", "finished"]
    assert sorted(visit.path for visit in site.visits) == sorted(["/", "/stall", *names])
    (stalled,) = (result for result in results if "/stall" in result.pages)
    assert stalled.lines("has blocked the event loop")
    assert stalled.stats["prioqueue/heartbeat/renewed"] > 0
