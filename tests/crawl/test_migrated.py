"""Crawls begun with another scheduler are finished by our workers, and no page is fetched twice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from scrapy.settings import Settings

from tests.commands.conftest import run_command
from tests.support.crawls import WITHIN_S, Crawls
from tests.support.servers import RedisServer
from tests.support.site import Page, Site
from tests.support.waiting import wait_until

PAGES = 60


def tree(gate: Event) -> dict[str, Any]:
    """Return pages that link to some new ones and, by another URL, to one that was linked to before."""
    links = {
        n: [f"/{n // 2}?a=2&b=1", *(f"/{new}?b=1&a=2" for new in range(3 * n + 1, 3 * n + 7) if new < PAGES)]
        for n in range(PAGES)
    }
    return {f"/{n}?a=2&b=1": Page(links[n], gate=gate) for n in links} | {
        f"/{n}?b=1&a=2": Page(links[n], gate=gate) for n in links
    }


@pytest.fixture(params=["scrapy-redis", "jobdir"])
def begun(
    request: pytest.FixtureRequest, frontier_name: str, redis_server: RedisServer, tmp_path: Path
) -> tuple[tuple[str, ...], Mapping[str, Any]]:
    """The verb for a crawl of this kind, and the settings with which it was begun."""
    if request.param == "jobdir":
        job = str(tmp_path / "job")
        return ("migrate-from-jobdir", job), {"SCHEDULER": "scrapy.core.scheduler.Scheduler", "JOBDIR": job}
    pytest.importorskip("scrapy_redis")
    return ("migrate-from-scrapy-redis", "--allow-pickle"), {
        "SCHEDULER": "scrapy_redis.scheduler.Scheduler",
        "DUPEFILTER_CLASS": "scrapy_redis.dupefilter.RFPDupeFilter",
        "SCHEDULER_PERSIST": True,
        "SCHEDULER_QUEUE_KEY": f"{frontier_name}:requests",
        "SCHEDULER_DUPEFILTER_KEY": f"%(spider)s:{frontier_name}:dupefilter",
        "REDIS_URL": redis_server.url,
    }


def test_a_crawl_that_was_moved_half_way_fetches_each_page_once(
    plain_crawls: Crawls,
    site: Site,
    redis_server: RedisServer,
    frontier_name: str,
    begun: tuple[tuple[str, ...], Mapping[str, Any]],
) -> None:
    gate = Event()
    gate.set()
    site.pages = tree(gate)
    command, settings = begun
    half = plain_crawls.run(
        "/0?b=1&a=2", settings={**settings, "CLOSESPIDER_PAGECOUNT": 20, "CONCURRENT_REQUESTS": 4}, troubles=True
    )
    assert half.reason == "closespider_pagecount"
    ours = {"PRIOQUEUE_NAME": frontier_name, "PRIOQUEUE_REDIS_URL": redis_server.url, "PRIOQUEUE_FALLBACK": "error"}
    moved = {key: str(value).replace("%(spider)s", "follower") for key, value in settings.items() if "KEY" in key}

    assert run_command(command, Settings({**ours, **moved})) == 0
    gate.clear()
    workers = [plain_crawls.having(**ours).start("/0?a=2&b=1", settings={"CONCURRENT_REQUESTS": 2}) for _ in range(2)]
    wait_until(lambda: all(worker.pages for worker in workers), what="both workers fetch pages", within=WITHIN_S)
    gate.set()
    results = [worker.wait() for worker in workers]

    assert [result.reason for result in results] == ["finished", "finished"]
    pages = Counter(visit.path.split("?")[0] for visit in site.visits)
    assert pages == {f"/{number}": 1 for number in range(PAGES)}
