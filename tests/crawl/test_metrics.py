"""The metrics of a worker, read while it crawls."""

from __future__ import annotations

import threading

from scrapy_prioqueue.monitoring.worker import WORKER_METRICS
from tests.support.crawls import WITHIN_S, Crawls
from tests.support.metrics import metrics_of_worker
from tests.support.site import Page, Site, leaves
from tests.support.waiting import wait_until


def test_a_worker_serves_what_its_stats_and_its_pump_know(on_redis: Crawls, site: Site) -> None:
    gate = threading.Event()
    site.pages = {"/": ["/a", "/b", "/a"], "/a": Page(gate=gate), **leaves("/b")}
    crawl = on_redis.start(settings={"PRIOQUEUE_METRICS_PORT": 0})
    wait_until(lambda: len(crawl.pages) == 3, what="the last page is held", within=WITHIN_S)

    found = metrics_of_worker(crawl.process.log)
    gate.set()
    result = crawl.wait()

    assert found["prioqueue_worker_requests_enqueued_total", "redis"] == 3
    assert found["prioqueue_worker_requests_dequeued_total", "redis"] == 3
    assert found["prioqueue_worker_duplicates_total",] == 1
    assert found["prioqueue_worker_leases_held",] >= 1
    assert found["prioqueue_worker_exchange_duration_seconds_count",] >= 2
    assert found["prioqueue_worker_outage",] == 0
    assert found["prioqueue_worker_heartbeat_lag_seconds",] < WITHIN_S
    names = {name[0] for name in found}
    labelled = {"prioqueue_worker_requests_unserializable_total", "prioqueue_worker_exchange_duration_seconds"}
    assert names >= {metric.name for metric in WORKER_METRICS} - labelled
    assert result.reason == "finished"


def test_a_worker_whose_port_is_taken_says_so_and_crawls(in_memory: Crawls, site: Site, closed_port: int) -> None:
    site.pages = leaves("/")

    result = in_memory.start(settings={"PRIOQUEUE_METRICS_PORT": closed_port}).wait(troubles=True)

    (line,) = result.lines("metrics")
    assert f"not served at 127.0.0.1, port {closed_port}: Address already in use" in line
    assert "PRIOQUEUE_METRICS_PORT = [9451, 9470]" in line
    assert result.reason == "finished"
