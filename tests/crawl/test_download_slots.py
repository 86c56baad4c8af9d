"""The downloader's slots, and changes of their limits, decide which requests are started."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import AsyncIterator, Iterator
from itertools import cycle, pairwise
from pathlib import Path
from typing import Any

import pytest
from scrapy import Request, Spider, signals
from scrapy.core.engine import ExecutionEngine
from scrapy.crawler import Crawler
from scrapy.http import Response
from twisted.python.failure import Failure

from scrapy_prioqueue.frontier.redis.link import Link
from scrapy_prioqueue.frontier.redis.operators.inspector import Inspector
from tests.crawl.spiders import Follower, path_of, pause
from tests.support.crawls import WITHIN_S, Crawls
from tests.support.servers import RedisServer
from tests.support.site import Page, Site, leaves, link, moved
from tests.support.waiting import wait_until

DELAY_S = 0.2


class Proxies:
    """A downloader middleware that gives each request the next of some proxies, with a download slot for each."""

    def __init__(self) -> None:
        self._names = cycle(f"proxy-{number}" for number in range(10))

    def process_request(self, request: Request, spider: Spider | None = None) -> None:
        request.meta["download_slot"] = next(self._names)


def test_a_slot_that_a_middleware_names_counts_for_concurrency(crawls: Crawls, site: Site) -> None:
    gate = threading.Event()
    paths = [f"/{number}" for number in range(12)]
    site.pages = {"/": paths, **dict.fromkeys(paths, Page(gate=gate))}
    settings = {
        "DOWNLOADER_MIDDLEWARES": {f"{__name__}.Proxies": 1000},
        "CONCURRENT_REQUESTS": 8,
        "CONCURRENT_REQUESTS_PER_DOMAIN": 1,
    }

    crawl = crawls.start(settings=settings)
    wait_until(lambda: len(crawl.pages) == 1 + 8, what="all places are used", within=WITHIN_S)
    gate.set()

    assert crawl.wait().reason == "finished"


class Changing(Follower):
    """Runs one request at a time until it has seen its first page, then four, and from page "/few" on one again."""

    name = "changing"

    def parse(self, response: Response) -> Iterator[Any]:
        concurrency = {"/": 4, "/few": 1}.get(response.url[len(self.site) - 1 :])
        if concurrency is not None:
            assert self.crawler.engine is not None
            downloader = self.crawler.engine.downloader
            downloader.total_concurrency = concurrency
            for slot in downloader.slots.values():
                slot.concurrency = concurrency
        yield from super().parse(response)


def test_concurrency_that_is_changed_while_running_is_followed(crawls: Crawls, site: Site) -> None:
    gate = threading.Event()
    many, few = [f"/many/{number}" for number in range(3)], [f"/few/{number}" for number in range(4)]
    site.pages = {
        "/": [*many, link("/few", priority=-1)],
        **dict.fromkeys(many, Page(gate=gate)),
        "/few": Page([link(path, priority=-1) for path in few], gate=gate),
        **dict.fromkeys(few, Page(delay_s=0.05)),
    }
    settings = {"CONCURRENT_REQUESTS": 1, "CONCURRENT_REQUESTS_PER_DOMAIN": 1}

    crawl = crawls.start(spider=Changing, settings=settings)
    crawl.wait_for("asked", *many, "/few")
    gate.set()
    crawl.wait()

    arrivals = sorted(visit.time_s for visit in site.visits if visit.path in few)
    assert min(later - earlier for earlier, later in pairwise(arrivals)) >= 0.05


class Slots(Follower):
    """Makes items of pages and their download slots."""

    name = "slots"

    def parse(self, response: Response) -> Iterator[Any]:
        for each in super().parse(response):
            yield {**each, "slot": response.meta["download_slot"]} if isinstance(each, dict) else each


@pytest.mark.real_time
def test_requests_for_another_host_go_to_its_slot_unless_the_user_names_one(crawls: Crawls, site: Site) -> None:
    other = site.hosts[1]
    own = {"meta": {"download_slot": "own"}}
    redirects, copies = [f"/redirect/{number}" for number in range(2)], [f"/copy/{number}" for number in range(2)]
    site.pages = {
        "/": [
            *redirects,
            *(link(site.url(path, host=other), copies_meta=True) for path in copies),
            link("/own", **own),
        ],
        **{path: moved(site.url(f"/to{path}", host=other)) for path in redirects},
        "/own": [link(site.url("/own/copy", host=other), copies_meta=True)],
        **leaves(*(f"/to{path}" for path in redirects), *copies, "/own/copy"),
    }
    settings = {"PRIOQUEUE_SLOTS": {other: {"delay": DELAY_S, "concurrency": 1}}}

    result = crawls.run(spider=Slots, settings=settings)

    slots = {item["page"]: item["slot"] for item in result.items}
    assert slots.pop("/own") == slots.pop("/own/copy") == "own"
    assert slots.pop("/") == site.hosts[0]
    assert slots == dict.fromkeys([*(f"/to{path}" for path in redirects), *copies], other)
    arrivals = [visit.time_s for visit in site.visits if visit.host == other and visit.path != "/own/copy"]
    # Half: one that is late doesn't make the next ones late. Without the limit all come at once.
    assert max(arrivals) - min(arrivals) >= (len(arrivals) - 1) * DELAY_S / 2


def test_a_stop_takes_no_more_than_one_download_of_a_slot_with_a_delay(crawls: Crawls, site: Site) -> None:
    paths = [f"/{number}" for number in range(16)]
    site.pages = {"/": paths, **leaves(*paths)}

    crawl = crawls.start(settings={"DOWNLOAD_DELAY": 30})
    crawl.wait_for("item", "/")
    crawl.interrupt()
    result = crawl.wait()

    assert result.reason == "shutdown"
    assert len(result.pages) <= 2
    assert result.lines(f"{17 - len(result.pages)} pending, 0 delayed, 0 leased")


class Dropping(Exception):
    """What the next release of Scrapy answers for requests that a fast stop drops."""


class FastStop:
    """Drops what waits in the downloader, when something does, and then stops, as the next release of Scrapy can."""

    def __init__(self, crawler: Crawler) -> None:
        self._crawler = crawler

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> FastStop:
        stop = cls(crawler)
        crawler.signals.connect(stop.look, signals.item_scraped)
        engine_class: Any = ExecutionEngine
        handle = engine_class._handle_downloader_output  # noqa: SLF001

        def followed(engine: Any, result: Any, request: Request) -> Any:
            is_dropped = isinstance(result, Failure) and isinstance(result.value, Dropping)
            return None if is_dropped else handle(engine, result, request)

        engine_class._handle_downloader_output = followed  # noqa: SLF001
        return stop

    def look(self) -> None:
        assert self._crawler.engine is not None
        waiting = [each for slot in self._crawler.engine.downloader.slots.values() for each in slot.queue]
        if not waiting:
            return
        self._crawler.signals.disconnect(self.look, signals.item_scraped)
        for slot in self._crawler.engine.downloader.slots.values():
            slot.queue.clear()
        for _, answer in waiting:
            answer.errback(Dropping())
        os.kill(os.getpid(), signal.SIGINT)


def test_requests_dropped_by_a_fast_stop_are_released(crawls: Crawls, site: Site) -> None:
    paths = [f"/{number}" for number in range(12)]
    site.pages = {"/": paths, **leaves(*paths)}
    extensions = {"tests.support.crawl_process.Recorder": 0, f"{__name__}.FastStop": 0}

    result = crawls.run(settings={"DOWNLOAD_DELAY": 0.1, "EXTENSIONS": extensions})

    assert result.reason == "shutdown"
    assert len(result.pages) < 13
    assert result.lines(f"{13 - len(result.pages)} pending, 0 delayed, 0 leased, {len(result.pages)} done")
    assert result.stats["prioqueue/lease/released"] >= 1
    assert result.stats["prioqueue/done/tier/normal"] == len(result.pages)


class Pausing(Follower):
    """Pauses the engine at a page until the test continues it."""

    name = "follower"

    async def parse_and_pause(self, response: Response) -> AsyncIterator[Any]:
        engine = self.crawler.engine
        assert engine is not None
        engine.pause()
        yield {"page": path_of(response)}
        while not Path(self.settings["TESTS_GO_ON"]).exists():
            await pause()
        engine.unpause()
        yield Request(response.urljoin("/after"))


def test_a_paused_worker_leaves_requests_to_others_says_so_and_takes_some_again_after(
    on_redis: Crawls, site: Site, tmp_path: Path, redis_server: RedisServer, frontier_name: str
) -> None:
    rest = [f"/{number}" for number in range(30)]
    site.pages = {
        "/": [link("/pauses", callback="parse_and_pause", priority=1), *rest],
        "/pauses": [],
        **dict.fromkeys(rest, Page(delay_s=0.05)),
        **leaves("/after"),
    }
    settings = {"TESTS_GO_ON": str(tmp_path / "go-on"), "PRIOQUEUE_LEASE_TTL": 2, "CONCURRENT_REQUESTS": 4}

    paused = on_redis.start(spider=Pausing, settings=settings)
    paused.wait_for("item", "/pauses")
    other = on_redis.start(spider=Pausing, settings=settings)
    other.wait_for_site(rest)
    inspector = Inspector(Link(redis_server.url), frontier_name)
    wait_until(lambda: any(worker.is_paused for worker in inspector.workers()), what="a paused worker", within=WITHIN_S)
    inspector.link.close()
    before = len(paused.pages)
    (tmp_path / "go-on").touch()
    results = [crawl.wait() for crawl in (paused, other)]

    assert before < 2 + len(rest)
    assert sorted(page for result in results for page in result.pages) == sorted(["/", "/pauses", "/after", *rest])
    assert [result.reason for result in results] == ["finished"] * 2
