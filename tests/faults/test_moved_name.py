"""A managed service fails over during a crawl: its name leads to the new primary, and the old one lives on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from shop_chaos.proxy import FaultProxy
from shop_chaos.view import FrontierView

from tests.support.forks import StartFork
from tests.support.processes import StartProcess
from tests.support.servers import RedisServer, StartServer, replica_of
from tests.support.shop import Shop
from tests.support.waiting import wait_until

WORKERS = ("worker-1", "worker-2")

SETTINGS = {"PRIOQUEUE_REDIS_TIMEOUT": 2.0}


def hand_over(old: RedisServer, new: RedisServer) -> None:
    """Let the primary become a replica of its own replica, in good order; its connections stay open."""
    client: Any = old.client()
    client.execute_command("FAILOVER")
    wait_until(lambda: client.role()[0] == b"slave", what="the primary is a replica", within=20)


def freeze(old: RedisServer, new: RedisServer) -> None:
    """Stop the primary, and promote its replica; the connections stay open, and nothing is answered."""
    old.freeze()
    new.client().replicaof("NO", "ONE")


@pytest.mark.timeout(300)
@pytest.mark.parametrize("fail_over", [hand_over, freeze])
def test_invariant_1_name_that_leads_to_the_new_primary_is_followed(
    fail_over: Callable[[RedisServer, RedisServer], None],
    tmp_path: Path,
    start_process: StartProcess,
    start_fork: StartFork,
    redis_server_factory: StartServer,
    frontier_name: str,
) -> None:
    old = redis_server_factory()
    new = replica_of(old, redis_server_factory)
    with FaultProxy(old.port) as name:
        shop = Shop(tmp_path, start_process, start_fork, old, frontier_name, products=100, latency=0.1)
        url = f"redis://127.0.0.1:{name.port}/0"
        workers = [shop.start(worker, {**SETTINGS, "PRIOQUEUE_REDIS_URL": url}) for worker in WORKERS]
        shop.wait_until_fetched(0.2)

        fail_over(old, new)
        name.lead_to(new.port)
        shop.frontier = FrontierView(new.client(), frontier_name)
        for worker in workers:
            worker.ends()

    shop.check_complete(repeated_at_most=len(shop.pages) // 50)
    assert shop.frontier.check_books() == shop.frontier.counts()["done"]
