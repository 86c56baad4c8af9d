"""Metrics: their conversion to Prometheus's format, and the server that answers with them."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import inf
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from scrapy import Spider
from scrapy.utils.test import get_crawler

from scrapy_prioqueue import Scheduler
from scrapy_prioqueue.errors import SettingError
from scrapy_prioqueue.monitoring import serving
from scrapy_prioqueue.monitoring.fleet import FRONTIER_METRICS, SERVER_METRICS
from scrapy_prioqueue.monitoring.metrics import Buckets, Metric, families
from scrapy_prioqueue.monitoring.serving import Endpoint, metrics_app, routed
from scrapy_prioqueue.monitoring.worker import WORKER_METRICS, WorkerCollector
from scrapy_prioqueue.queues.base import ClosedQueue
from scrapy_prioqueue.settings import Config
from tests.support.metrics import metrics_at

LOOPBACK = "127.0.0.1"
HOSTILE = 'a"b\\c\nd\x1b[31m\u202e\udcff'

Table = Sequence[Metric[Any]]

TABLE: Table = (
    Metric("x_requests_total", "counter", "Requests.", lambda subject: subject),
    Metric("x_depth", "gauge", "By tier.", lambda subject: {"high": subject, HOSTILE: 1}, labels=("tier",)),
    Metric("x_pairs", "gauge", "By two labels.", lambda subject: {("a", "b"): subject}, labels=("one", "two")),
    Metric("x_none", "gauge", "Nothing.", lambda subject: None),
    Metric("x_seconds", "histogram", "Durations.", lambda subject: Buckets((0.5, 1.0), (3, 0, 1), 9.0)),
)


class Collector:
    def collect(self) -> Any:
        return families(TABLE, ("frontier",), [(("books",), 5), ((HOSTILE,), 7)])


@contextmanager
def serving_on(ports: Sequence[int], host: str = LOOPBACK) -> Iterator[Endpoint]:
    endpoint = Endpoint(routed({"/metrics": metrics_app([Collector()])}), host, ports)
    try:
        yield endpoint
    finally:
        endpoint.close()


def samples(url: str) -> dict[tuple[str, ...], float]:
    """Return the values of the metrics of this file."""
    return {name: value for name, value in metrics_at(f"{url}/metrics").items() if name[0].startswith("x_")}


def test_metrics_are_served_and_hostile_labels_are_escaped() -> None:
    with serving_on([0]) as endpoint:
        found = samples(endpoint.url)

    escaped = 'a"b\\c\\nd\\x1b[31m\\u202e\\udcff'
    assert {name: value for name, value in found.items() if name[1] == "books" and "bucket" not in name[0]} == {
        ("x_requests_total", "books"): 5,
        ("x_depth", "books", "high"): 5,
        ("x_depth", "books", escaped): 1,
        ("x_pairs", "books", "a", "b"): 5,
        ("x_seconds_count", "books"): 4,
        ("x_seconds_sum", "books"): 9,
    }
    buckets = {float(name[2]): value for name, value in found.items() if name[:2] == ("x_seconds_bucket", "books")}
    assert buckets == {0.5: 3, 1.0: 3, inf: 4}
    assert found["x_requests_total", escaped] == 7


def test_other_paths_are_not_found_and_the_first_page_lists_them() -> None:
    with serving_on([0]) as endpoint:
        with urlopen(endpoint.url) as answer:
            assert b'href="/metrics"' in answer.read()
        with pytest.raises(HTTPError) as error:
            urlopen(f"{endpoint.url}/nothing")
        error.value.close()

    assert error.value.code == 404


def test_a_request_for_the_head_is_answered_without_a_body() -> None:
    with serving_on([0]) as endpoint:
        for path in ("/metrics", "/"):
            with urlopen(Request(endpoint.url + path, method="HEAD")) as answer:
                assert (answer.status, answer.read()) == (200, b"")
                assert int(answer.headers["Content-Length"]) > 0


def test_the_first_free_port_of_a_range_is_used_and_a_taken_port_is_an_error() -> None:
    with serving_on([0]) as first:
        with pytest.raises(OSError, match="in use"):
            Endpoint(routed({}), LOOPBACK, [first.port])
        with serving_on([first.port, 0]) as second:
            assert second.port not in (first.port, 0)
            assert samples(second.url)


def test_an_address_of_ipv6_is_possible() -> None:
    try:
        with socket.socket(socket.AF_INET6) as own:
            own.bind(("::1", 0))
    except OSError as error:
        pytest.skip(f"this machine has no IPv6: {error}")

    with serving_on([0], "::1") as endpoint:
        assert endpoint.url.startswith("http://[::1]:")
        assert samples(endpoint.url)


def test_a_worker_without_the_package_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(serving, "find_spec", lambda _: None)
    crawler = get_crawler(Spider, {"PRIOQUEUE_METRICS_PORT": 0})
    crawler.spider = Spider("books")

    with pytest.raises(SettingError, match=re.escape('pip install "scrapy-prioqueue[metrics]"')):
        Scheduler.from_crawler(crawler)
    assert caplog.messages == [
        'Closing: PRIOQUEUE_METRICS_PORT = 0: needs prometheus-client: pip install "scrapy-prioqueue[metrics]"'
    ]


def test_a_worker_on_scrapys_own_queue_serves_its_stats() -> None:
    crawler = get_crawler(Spider)
    crawler.spider = Spider("books")
    assert crawler.stats is not None
    crawler.stats.set_value("prioqueue/unserializable/" + HOSTILE, 2)
    crawler.stats.set_value("item_scraped_count", 3)
    config = Config.from_settings(crawler.settings, "books")
    registry = CollectorRegistry()
    registry.register(WorkerCollector(crawler, config, ClosedQueue()))

    types = {"frontier": "books", "type": 'a"b\\c\\nd\\x1b[31m\\u202e\\udcff'}
    assert registry.get_sample_value("prioqueue_worker_items_total", {"frontier": "books"}) == 3
    assert registry.get_sample_value("prioqueue_worker_requests_unserializable_total", types) == 2
    assert registry.get_sample_value("prioqueue_worker_leases_held", {"frontier": "books"}) is None
    generate_latest(registry)


def test_names_follow_the_conventions_of_prometheus() -> None:
    metrics: Table = [*WORKER_METRICS, *FRONTIER_METRICS, *SERVER_METRICS]
    for metric in metrics:
        assert re.fullmatch(r"prioqueue_[a-z_]+", metric.name)
        assert metric.name.startswith("prioqueue_worker_") == (metric in WORKER_METRICS)
        assert metric.name.endswith("_total") == (metric.kind == "counter")
        assert metric.doc.endswith(".")

    names = [metric.name for metric in metrics]
    assert len(names) == len({*names})
