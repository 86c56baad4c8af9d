"""Workers of one crawl with different limits and budgets."""

from __future__ import annotations

import threading

from tests.support.crawls import WITHIN_S, Crawls
from tests.support.site import Page, Site
from tests.support.waiting import wait_until

HOST = "127.0.0.1"
CAP = 12


def test_a_worker_without_limits_and_budgets_takes_none_away(on_redis: Crawls, site: Site) -> None:
    gate = threading.Event()
    site.pages = {"/": [f"/{number}" for number in range(8)]}
    for number in range(8):
        children = [f"/{number}/{child}" for child in range(4)]
        site.pages |= {f"/{number}": Page(children, gate=gate), **{path: Page(body=b"[]") for path in children}}
    limited = {"PRIOQUEUE_BUDGETS": {HOST: {"pages": CAP}}, "PRIOQUEUE_SLOTS": {HOST: {"concurrency": 3}}}
    one_crawl = {"PRIOQUEUE_CRAWL_ID": "one"}

    first = on_redis.start(settings={**limited, **one_crawl})
    wait_until(lambda: len(first.pages) == 4, what="all places of the slot are taken", within=WITHIN_S)
    stray = on_redis.start(settings={**one_crawl, "PRIOQUEUE_START": "once"})
    wait_until(lambda: "Give all workers the same" in stray.process.log, what="the second is in", within=WITHIN_S)
    are_more = len(site.visits) > 4
    gate.set()
    results = [crawl.wait() for crawl in (first, stray)]

    assert not are_more
    assert len(site.visits) == CAP
    names = "Give all workers the same PRIOQUEUE_SLOTS, PRIOQUEUE_BUDGETS"
    assert [len(result.lines(names)) for result in results] == [1, 1]
