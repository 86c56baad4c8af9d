"""Requests that can't be stored: the page on which their chain began is done only after them."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from functools import partial
from typing import Any

from scrapy import Request
from scrapy.http import Response

from scrapy_prioqueue.frontier.kept import read_kept
from scrapy_prioqueue.frontier.redis.keys import Keys
from tests.crawl.spiders import Follower, path_of
from tests.support.crawls import WITHIN_S, Crawls
from tests.support.servers import RedisServer
from tests.support.site import Page, Site, leaves, moved
from tests.support.waiting import wait_until

PAGES = ["/0", "/1", "/2"]
STEPS = 10


class Inline(Follower):
    """Hands an item from page to page by `functools.partial`, and makes it at the last one."""

    name = "inline"

    def parse(self, response: Response) -> Iterator[Any]:
        return self.step({"page": path_of(response), "steps": []}, 1, response)

    def step(self, item: dict[str, Any], number: int, response: Response) -> Iterator[Any]:
        if number > STEPS:
            yield item
            return
        item["steps"].append(number)
        url = self.site + item["page"].strip("/") + f"/{number}"
        yield Request(url, partial(self.step, item, number + 1), errback=partial(self.fail, item, number))
        if number == 3:
            yield Request(url + "/stored", self.parse_stored)

    def parse_stored(self, response: Response) -> Iterator[Any]:
        yield {"stored": path_of(response)}

    def fail(self, item: dict[str, Any], number: int, _: Any) -> Iterator[Any]:
        item["failed"] = number
        yield Request(f"{self.site}mended", partial(self.step, item, number + 1), dont_filter=True)


def steps(number: int) -> list[str]:
    """Return the pages of one step."""
    return [f"{page}/{number}" for page in PAGES]


def test_a_page_is_fetched_again_if_its_kept_requests_are_lost(
    on_redis: Crawls, site: Site, redis_server: RedisServer, frontier_name: str
) -> None:
    def told() -> bytes:
        found = redis_server.client().hget(Keys(frontier_name).of("kept"), "w")
        return found if isinstance(found, bytes) else b""

    def is_reported(unfinished: int, all_steps: int) -> bool:
        kept = read_kept(told())
        return kept.requests == unfinished and kept.unstorable >= all_steps

    gates = {5: threading.Event(), 7: threading.Event()}
    every = [path for number in range(1, STEPS + 1) for path in steps(number)]
    stored = [f"{path}/stored" for path in steps(3)]
    site.pages = {**leaves(*PAGES, *every, *stored, "/mended")}
    site.pages |= {path: Page(gate=gate) for number, gate in gates.items() for path in steps(number)}
    site.pages |= {path: moved(f"{path}/moved") for path in steps(2)}
    site.pages |= {f"{path}/moved": Page(gate=gates[5]) for path in steps(2)}
    site.pages |= {path: Page(status=404) for path in steps(9)}
    worker = on_redis.having(PRIOQUEUE_WORKER_ID="w", RETRY_ENABLED=False)

    # Stopped while redirects of what is kept are in progress, and what follows is not begun.
    first = worker.start(*PAGES, spider=Inline)
    first.wait_for("asked", *(f"{path}/moved" for path in steps(2)))
    first.interrupt()
    gates[5].set()
    stopped = first.wait()
    # Killed at the seventh step.
    second = worker.start(*PAGES, spider=Inline)
    second.wait_for("asked", *steps(7))
    # Six of the seven steps are done.
    wait_until(lambda: is_reported(3, 7 * len(PAGES)), what="what is kept is reported", within=WITHIN_S)
    second.kill()
    second.process.wait(within=WITHIN_S)
    gates[7].set()
    third = worker.run(*PAGES, spider=Inline)

    assert stopped.items == []
    assert len(stopped.lines("Did not fetch 3 requests that only this worker has")) == 1
    # `start()` of a run that resumes stores nothing: the pages came back.
    assert set(PAGES) <= set(second.pages)
    items = [item for item in third.items if "steps" in item]
    assert sorted(item["page"] for item in items) == PAGES
    assert all((item["steps"], item["failed"]) == (list(range(1, STEPS + 1)), 9) for item in items)
    assert Counter(path for path in third.pages if path in every) == dict.fromkeys(every, 1)
    assert Counter(
        item["stored"] for crawl in (second.events("item"), third.items) for item in crawl if "stored" in item
    ).keys() == set(stored)
    assert len(third.lines("Worker w was lost with 3 requests that only it had; fetching 3 pages again")) == 1
    assert third.reason == "finished"
    assert not told()
    assert len(third.lines("Left frontier")) == 1
    assert ": 0 pending, 0 delayed, 0 leased, 6 done, 0 dead" in third.lines("Left frontier")[0]
    kept = sum(path not in {*PAGES, *stored} for path in third.pages)
    assert third.lines("Left frontier")[0].endswith(f"; also {kept} done that only this worker had")
