"""A fleet that follows the advice about the number of useful workers."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from scrapy.settings import Settings

from scrapy_prioqueue import FrontierClient
from scrapy_prioqueue.frontier.redis.link import Link
from scrapy_prioqueue.frontier.redis.operators.inspector import Inspector
from scrapy_prioqueue.monitoring.adviser import Adviser
from scrapy_prioqueue.settings import Config
from tests.support.crawls import WITHIN_S, Crawls
from tests.support.fleet import Fleet
from tests.support.site import Page, Site, leaves
from tests.support.waiting import wait_until

SLOW, FAST, MOST = 60, 200, 3


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
    alone = fleet.follow_until(lambda _: len(site.visits) > SLOW / 2, what="slow pages", within=WITHIN_S)
    assert {advice.workers for advice in alone} == {1}
    assert "limits" in {advice.bound_by for advice in alone}

    with FrontierClient(config.redis_url, config.name) as client:
        client.push_many(site.url(path, host=free) for path in fast)
    fleet.follow_until(lambda advice: advice.running == MOST, what="the fleet has grown", within=WITHIN_S)

    # Two of three busy workers get SIGTERM.
    adviser = Adviser(replace(config, scale_max=1))
    fleet.follow_until(lambda advice: not advice.workers, what="no worker is useful", within=WITHIN_S)
    assert fleet.advice[-1].bound_by == "ended"

    results = {worker: worker.wait() for worker in fleet.workers}
    assert sorted(str(result.reason) for result in results.values()) == ["finished", "shutdown", "shutdown"]
    assert Counter(visit.path for visit in site.visits) == Counter(["/", *slow, *fast])
    assert sum(len(result.items) for result in results.values()) == 1 + SLOW + FAST
