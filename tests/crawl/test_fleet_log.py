"""The log line about the whole crawl, in each worker."""

from __future__ import annotations

import threading

from tests.support.crawls import WITHIN_S, Crawls
from tests.support.site import Page, Site
from tests.support.waiting import wait_until


def test_each_worker_logs_the_counts_of_the_crawl_at_an_interval(crawls: Crawls, site: Site) -> None:
    gate = threading.Event()
    site.pages = {"/": ["/held", "/waiting"], "/held": Page(gate=gate), "/waiting": Page(gate=gate)}
    crawl = crawls.start(settings={"PRIOQUEUE_LOG_INTERVAL": 0.1, "CONCURRENT_REQUESTS": 1})
    wait_until(lambda: "; time left unknown" in crawl.process.log, what="a line without changes", within=WITHIN_S)
    gate.set()
    result = crawl.wait()

    line = next(line for line in result.lines("[scrapy_prioqueue.queues.fleet] INFO: ") if "unknown" in line)
    counts = "1 pending, 0 delayed, 1 leased, 1 done (at 0/min), 0 dead, 3 accepted (at 0/min), workers alive: 1"
    assert line.endswith(f": {counts}; time left unknown")
