"""Requests pushed by a program have budget keys if the crawl has budgets."""

from __future__ import annotations

from typing import Any

import pytest

from scrapy_prioqueue import FrontierClient
from scrapy_prioqueue.client import CrawlPlan, Draft, Pushed
from scrapy_prioqueue.codec.detached import DetachedCodec
from scrapy_prioqueue.errors import RequestError
from scrapy_prioqueue.frontier.labels import Label, label_of, unlabelled
from scrapy_prioqueue.frontier.policy import Budget, Policy
from tests.contract.backends import RedisBackend, Worker
from tests.support.servers import RedisServer

TIERS = ("urgent", "high", "normal", "low")
URL = "https://www.shop.example.co.uk/1"


def join(backend: RedisBackend, **policy: Any) -> Worker:
    """Join as the workers of a real crawl do."""
    return backend.join("w1", tiers=TIERS, clock=None, policy=Policy(**policy))


def labels(worker: Worker) -> dict[str, Label | None]:
    """Lease all and return the labels, by URL."""
    codec = DetachedCodec()
    return {
        codec.decode(unlabelled(lease.payload), lease.slot).url: label_of(lease.payload) for lease in worker.lease(1000)
    }


def test_requests_carry_their_registered_domains(client: FrontierClient, backend: RedisBackend) -> None:
    worker = join(backend, budgets={})

    client.push_many([URL, "https://10.0.0.1/", {"url": "https://a.example/", "method": "POST"}])

    assert labels(worker) == {
        URL: Label(is_rendered=False, keys=["example.co.uk"]),
        "https://10.0.0.1/": Label(is_rendered=False, keys=["10.0.0.1"]),
        "https://a.example/": Label(is_rendered=False, keys=["a.example"]),
    }


def test_requests_carry_the_keys_that_they_name(client: FrontierClient, backend: RedisBackend) -> None:
    worker = join(backend, budgets={})

    client.push(URL, meta={"prioqueue_budget": ["job", "shop"], "playwright": True})
    client.push(Draft(url="https://a.example/", meta={"prioqueue_budget": "job", "prioqueue_render": 1}))
    client.push("https://b.example/", meta={"prioqueue_render": True})

    assert labels(worker) == {
        URL: Label(is_rendered=True, keys=["job", "shop"]),
        "https://a.example/": Label(is_rendered=True, keys=["job"]),
        "https://b.example/": Label(is_rendered=True, keys=["b.example"]),
    }


def test_without_budgets_only_requests_that_name_keys_carry_them(client: FrontierClient, backend: RedisBackend) -> None:
    worker = join(backend)

    client.push(URL)
    client.push("https://a.example/", meta={"prioqueue_budget": "job"})

    assert labels(worker) == {URL: None, "https://a.example/": Label(is_rendered=False, keys=["job"])}


def test_a_plan_may_announce_budgets(redis_server: RedisServer, frontier_name: str, backend: RedisBackend) -> None:
    with FrontierClient(redis_server.url, frontier_name, plan=CrawlPlan(TIERS, has_budgets=True)) as client:
        client.push(URL)

    assert labels(join(backend, budgets={})) == {URL: Label(is_rendered=False, keys=["example.co.uk"])}


def test_pushed_requests_are_limited_by_their_budget(client: FrontierClient, backend: RedisBackend) -> None:
    worker = join(backend, budgets={"*": Budget(pages=2)})

    assert client.push_many(f"https://a.example/{number}" for number in range(5)) == Pushed(accepted=5)

    answer = worker.ask(9)
    assert (len(answer.leases), answer.over_budget) == (2, {"a.example": 3})
    assert {dead.url for dead in client.dead_letters()} == {f"https://a.example/{number}" for number in (2, 3, 4)}
    assert [pending.url for pending in client.pending()] == []


@pytest.mark.parametrize("budget", [[], "", 7, ["a", ""], {"a": 1}])
def test_invalid_keys_are_rejected(client: FrontierClient, backend: RedisBackend, budget: Any) -> None:
    join(backend)

    with pytest.raises(RequestError, match="prioqueue_budget"):
        client.push(URL, meta={"prioqueue_budget": budget})
