"""The metrics of frontiers and their server, for Prometheus."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from scrapy_prioqueue.frontier.base import Fail
from scrapy_prioqueue.frontier.redis.keys import Keys
from scrapy_prioqueue.frontier.redis.link import Link
from scrapy_prioqueue.frontier.redis.operators.frontiers import frontier_names
from scrapy_prioqueue.frontier.redis.operators.operator import Operator
from scrapy_prioqueue.frontier.runs import Figures, Report
from scrapy_prioqueue.monitoring import fleet
from scrapy_prioqueue.monitoring.fleet import FRONTIER_METRICS, SERVER_METRICS, FleetCollector, Search
from tests.contract.backends import RedisBackend, ack, push
from tests.support.servers import RedisServer, StartServer
from tests.support.waiting import wait_until

Scraped = dict[tuple[str, ...], float]

HOSTILE = 'a"b\\c\nd'


@pytest.fixture
def reports() -> list[str]:
    return []


@pytest.fixture
def link(redis_server: RedisServer) -> Iterator[Link]:
    link = Link(redis_server.url)
    yield link
    link.close()


def exporter(link: Link, reports: list[str], *names: str) -> FleetCollector:
    # Workers of these tests have a clock of their own, by which they would have been silent for long.
    return FleetCollector(link, lambda: names, reports.append, lease_ttl_s=1e9, seeds_keys=["seeds"])


def scraped(collector: FleetCollector) -> Scraped:
    """Return what Prometheus would read, by the name and the values of the labels."""
    registry = CollectorRegistry()
    registry.register(collector)
    families = text_string_to_metric_families(generate_latest(registry).decode())
    return {(each.name, *each.labels.values()): each.value for family in families for each in family.samples}


def test_metrics_are_those_of_the_frontier(
    backend: RedisBackend, link: Link, reports: list[str], frontier_name: str
) -> None:
    worker = backend.join("w1")
    twice = push("2", fingerprint=b"2" * 20)
    worker.commit(push("1"), twice, twice, push("3", delay_ms=100_000), push("4"))
    first, second = worker.lease(2)
    worker.commit(ack(first), Fail(second.lease_id, second.attempt, "callback", "it raised"))

    for _ in range(2):
        worker.run(worker.frontier.record(Report(Figures(latency=[3], items=5, retries=2, tiers={"high": 3}))))

    found = scraped(exporter(link, reports, frontier_name, "no such frontier"))
    ours = {(name, *labels[1:]): value for (name, *labels), value in found.items() if frontier_name in labels}

    assert {labels[0]: value for (name, *labels), value in ours.items() if name == "prioqueue_requests"} == {
        "pending": 1, "delayed": 1, "leased": 0, "dead": 1,
    }  # fmt: skip
    assert ours["prioqueue_requests_accepted_total",] == 4
    assert ours["prioqueue_requests_done_total",] == 1
    assert ours["prioqueue_duplicates_total",] == 1
    assert ours["prioqueue_dead_letters", "callback"] == 1
    assert ours["prioqueue_dead_letters", "download"] == 0
    assert ours["prioqueue_slots", "ready"] == 1
    assert (ours["prioqueue_items_total",], ours["prioqueue_retries_total",]) == (5, 2)
    assert ours["prioqueue_pages_total", "high"] == 3
    assert ours["prioqueue_workers", "busy"] == 1
    assert ours["prioqueue_seeds", "seeds"] == 0
    assert found["prioqueue_frontier_exists", "no such frontier"] == 0
    assert found["prioqueue_up",] == 1
    assert found["prioqueue_frontiers",] == 2
    assert found["prioqueue_redis_eviction_policy", "noeviction"] == 1
    sometimes = {"prioqueue_crawl_end_timestamp_seconds", "prioqueue_crawl_left_seconds", "prioqueue_budget_used_ratio"}
    names = {metric.name for metric in FRONTIER_METRICS} | {metric.name for metric in SERVER_METRICS}
    assert {name[0] for name in found} | sometimes == names
    assert reports == []


def test_an_idle_worker_of_a_paused_crawl_counts_as_paused(
    backend: RedisBackend, link: Link, reports: list[str], frontier_name: str
) -> None:
    worker, operator = backend.join("w1"), Operator(link, frontier_name)
    worker.commit(push("1"))

    def idle_and_paused() -> list[float]:
        found = scraped(exporter(link, reports, frontier_name))
        return [found["prioqueue_workers", frontier_name, state] for state in ("idle", "paused")]

    operator.order(paused=True)
    worker.ask(is_idle=True)
    assert idle_and_paused() == [0, 1]

    operator.order(paused=False)
    assert idle_and_paused() == [1, 0]


def test_no_counter_falls_when_requests_are_removed(
    backend: RedisBackend, link: Link, reports: list[str], frontier_name: str
) -> None:
    worker, operator = backend.join("w1"), Operator(link, frontier_name)
    worker.commit(push("1"), push("2"), push("3"))
    before = scraped(exporter(link, reports, frontier_name))
    operator.remove([stored for stored in operator.requests.each() if stored.state == "pending"][:2])
    after = scraped(exporter(link, reports, frontier_name))

    counters = {metric.name for metric in FRONTIER_METRICS if metric.kind == "counter"}
    assert {name for name, value in before.items() if name[0] in counters and after[name] < value} == set()
    assert after["prioqueue_requests_removed_total", frontier_name] == 2


def test_hostile_names_are_escaped(
    redis_server: RedisServer, link: Link, reports: list[str], frontier_name: str
) -> None:
    backend = RedisBackend(frontier_name + HOSTILE, redis_server.url)
    backend.join("w1").commit(push("1"))
    backend.close()

    found = scraped(exporter(link, reports, frontier_name + HOSTILE))

    assert found["prioqueue_requests", frontier_name + 'a"b\\c\\nd', "pending"] == 1


def test_server_that_is_away_is_reported_once_and_only_up_remains(
    redis_server_factory: StartServer, reports: list[str], frontier_name: str
) -> None:
    server = redis_server_factory(appendonly=True)
    backend = RedisBackend(frontier_name, server.url)
    backend.join("w1").commit(push("1"))
    backend.close()
    link = Link(server.url, timeout_s=5)
    collector = exporter(link, reports, frontier_name)
    server.stop()

    away = [scraped(collector) for _ in range(2)]
    server.start()
    wait_until(lambda: scraped(collector)["prioqueue_up",] == 1, what="the server is seen", within=20)
    back = scraped(collector)
    link.close()

    for found in away:
        assert found["prioqueue_up",] == 0
        assert {name[0] for name in found} == {
            *("prioqueue_up", "prioqueue_scrape_duration_seconds", "prioqueue_frontiers"),
            "prioqueue_frontiers_left_out",
        }
    assert len(reports) == 1
    assert back["prioqueue_requests", frontier_name, "pending"] == 1


def test_a_frontier_of_another_layout_hides_no_other(
    backend: RedisBackend, link: Link, reports: list[str], frontier_name: str, client: Any
) -> None:
    backend.join("w1").commit(push("1"))
    other = frontier_name + "-2"
    client.hset(Keys(other).state, mapping={"layout": 99, "phase": "open"})

    found = scraped(exporter(link, reports, other, frontier_name))

    assert found["prioqueue_frontier_exists", other] == 0
    assert found["prioqueue_requests", frontier_name, "pending"] == 1
    assert "layout 99" in reports[0]


def test_of_very_many_frontiers_some_are_left_out(
    link: Link, reports: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleet, "MOST_FRONTIERS", 2)

    found = scraped(exporter(link, reports, "a", "b", "c"))

    assert (found["prioqueue_frontiers",], found["prioqueue_frontiers_left_out",]) == (2, 1)
    assert {name[1] for name in found if name[0] == "prioqueue_frontier_exists"} == {"a", "b"}


def test_a_search_finds_frontiers_that_begin_later(
    backend: RedisBackend, link: Link, reports: list[str], frontier_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleet, "SEARCH_S", 0.01)
    monkeypatch.setattr(fleet, "REST_S", 0.0)
    search = Search(link, reports.append)

    backend.join("w1")
    wait_until(lambda: frontier_name in search.names(), what="the frontier is found", within=20)
    search.close()

    assert reports == []


def test_a_search_reports_a_trouble_once(closed_port: int, reports: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    tries: list[int] = []

    def counted(link: Link, progress: Any, **options: Any) -> Sequence[str]:
        tries.append(1)
        return frontier_names(link, progress, **options)

    monkeypatch.setattr(fleet, "RETRY_S", 0.01)
    monkeypatch.setattr(fleet, "frontier_names", counted)
    search = Search(Link(f"redis://127.0.0.1:{closed_port}/0"), reports.append)
    wait_until(lambda: len(tries) >= 3, what="it has tried again", within=20)
    search.close()

    (report,) = reports
    assert report.startswith("the frontiers of the server can't be listed: ")
