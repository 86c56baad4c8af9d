"""A fleet that follows the advice about the number of useful workers."""

from __future__ import annotations

import signal
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest
from scrapy.settings import Settings

from scrapy_prioqueue import FrontierClient
from scrapy_prioqueue.frontier.redis.link import Link
from scrapy_prioqueue.frontier.redis.operators.inspector import Inspector
from scrapy_prioqueue.monitoring.adviser import Adviser
from scrapy_prioqueue.monitoring.scaling import Advice
from scrapy_prioqueue.settings import Config
from tests.support.crawls import WITHIN_S, Crawl, Crawls
from tests.support.site import Page, Site, leaves
from tests.support.waiting import wait_until

SLOW, FAST, MOST = 60, 200, 3
EVERY_S = 0.5


class Fleet:
    """A supervisor that starts and stops the workers of a crawl as it is advised, as an autoscaler does.

    Args:
        start: starts a worker.
        advise: says how many are useful.
    """

    def __init__(self, start: Callable[[], Crawl], advise: Callable[[], Advice]) -> None:
        self._start = start
        self._advise = advise
        self._next_s = 0.0
        self.workers: list[Crawl] = []
        self.stopped: list[Crawl] = []
        self.advice: list[Advice] = []

    def follow_until(self, condition: Callable[[Advice], bool], *, what: str) -> list[Advice]:
        """Do as advised until a condition holds, and return the advice since then."""
        first = len(self.advice)

        def step() -> bool:
            if time.monotonic() < self._next_s:
                return False
            self._next_s = time.monotonic() + EVERY_S
            self.advice.append(self._advise())
            # Workers close by themselves at the end; SIGTERM would cut Scrapy's close short.
            if self.advice[-1].bound_by != "ended":
                self._follow(self.advice[-1].workers)
            return condition(self.advice[-1])

        wait_until(step, what=what, within=WITHIN_S)
        return self.advice[first:]

    def _follow(self, number: int) -> None:
        running = [worker for worker in self.workers if worker not in self.stopped and worker.process.is_running]
        for worker in running[number:]:
            worker.process.send(signal.SIGTERM)
            self.stopped.append(worker)
        self.workers += [self._start() for _ in range(number - len(running))]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_fleet_grows_for_what_can_run_and_not_for_a_limited_site_and_ends_with_the_crawl(
    on_redis: Crawls, site: Site
) -> None:
    limited, free = site.hosts[1], site.hosts[2]
    slow, fast = ([f"/{kind}{number}" for number in range(count)] for kind, count in (("slow", SLOW), ("fast", FAST)))
    site.pages["/"] = Page([site.url(path, host=limited) for path in slow])
    site.pages |= leaves(*slow) | {path: Page(delay_s=0.3) for path in fast}
    settings = {
        "CONCURRENT_REQUESTS": 4,
        "PRIOQUEUE_SLOTS": {limited: {"delay": 0.4}},
        "PRIOQUEUE_SCALE_DRAIN_TIME": 2,
        "PRIOQUEUE_SCALE_MAX": MOST,
    }
    config = Config.from_settings(Settings({**on_redis.settings, **settings}), "follower")
    inspector = Inspector(Link(config.redis_url), config.name)
    fleet = Fleet(lambda: on_redis.start(settings=settings), lambda: adviser.read(inspector))

    # No worker is useful before a crawl has begun, so somebody starts the first one.
    fleet.workers.append(on_redis.start(settings=settings))
    wait_until(lambda: inspector.state() is not None, what="the crawl has begun", within=WITHIN_S)
    adviser = Adviser(config)
    alone = fleet.follow_until(lambda _: len(site.visits) > SLOW / 2, what="slow pages")
    assert {advice.workers for advice in alone} == {1}
    assert "limits" in {advice.bound_by for advice in alone}

    with FrontierClient(config.redis_url, config.name) as client:
        client.push_many(site.url(path, host=free) for path in fast)
    fleet.follow_until(lambda advice: advice.running == MOST, what="the fleet has grown")

    # Two of three busy workers get SIGTERM.
    adviser = Adviser(replace(config, scale_max=1))
    fleet.follow_until(lambda advice: not advice.workers, what="no worker is useful")
    assert fleet.advice[-1].bound_by == "ended"

    results = {worker: worker.wait() for worker in fleet.workers}
    assert sorted(str(result.reason) for result in results.values()) == ["finished", "shutdown", "shutdown"]
    assert Counter(visit.path for visit in site.visits) == Counter(["/", *slow, *fast])
    assert sum(len(result.items) for result in results.values()) == 1 + SLOW + FAST
