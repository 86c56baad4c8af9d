"""The server reaches its `maxmemory` during a crawl: new requests wait, the crawl continues, nothing is lost."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from tests.faults.conftest import OpenShop
from tests.support.shop import WITHIN_S, Shop, Worker
from tests.support.waiting import wait_until

WORKERS = ("worker-1", "worker-2")


def fill(shop: Shop, spare_bytes: int) -> None:
    """Let the server have as much memory as it uses now, and some bytes more, or less."""
    client: Any = shop.server.client()
    client.config_set("maxmemory", client.info("memory")["used_memory"] + spare_bytes)


def notice(workers: Sequence[Worker]) -> None:
    """Wait until each of them was refused."""
    for worker in workers:
        worker.wait_for("reached its maxmemory")


@pytest.mark.timeout(300)
def test_full_server_is_waited_for(open_shop: OpenShop) -> None:
    """Reports 79 and 86."""
    shop = open_shop(products=300)
    workers = [shop.start(name) for name in WORKERS]

    shop.wait_until_fetched(0.4)
    fill(shop, -200_000)
    notice(workers)
    done = shop.frontier.counts()["done"]
    wait_until(lambda: shop.frontier.counts()["done"] > done, what="pages are done meanwhile", within=WITHIN_S)
    shop.server.client().config_set("maxmemory", 0)
    for worker in workers:
        worker.ends()

    shop.check_complete(repeated_at_most=0)
    assert shop.frontier.check_books() == shop.frontier.counts()["done"]
    for worker in workers:
        assert worker.process.log.count("reached its maxmemory") == worker.process.log.count("stores requests again")


@pytest.mark.timeout(300)
def test_full_server_is_drained_by_crawling(open_shop: OpenShop) -> None:
    """Invariant 10; the server's buffers may use the memory that the drained queue frees, so the rest waits."""
    shop = open_shop(products=300)
    ballast = {"SPIDER_MIDDLEWARES": json.dumps({"tests.faults.components.Ballast": 0})}
    workers = [shop.start(name, ballast) for name in WORKERS]

    shop.wait_until_fetched(0.2)
    fill(shop, -300_000)
    refused = "reached its maxmemory"
    wait_until(lambda: any(worker.has_logged(refused) for worker in workers), what="one is refused", within=WITHIN_S)
    wait_until(lambda: not shop.frontier.counts()["pending"], what="the queue is empty", within=WITHIN_S)
    shop.server.client().config_set("maxmemory", 0)
    for worker in workers:
        worker.ends()

    shop.check_complete(repeated_at_most=0)
    assert shop.frontier.check_books() == shop.frontier.counts()["done"]
