"""Items are written again after the server of their key has changed while the old one lives on."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from shop_chaos.proxy import FaultProxy

from scrapy_prioqueue.frontier.redis.items import ItemData, RedisItems
from tests.support.clusters import Cluster, call
from tests.support.coroutines import run
from tests.support.servers import RedisServer, StartServer, replica_of
from tests.support.waiting import wait_until

pytestmark = pytest.mark.any_server

KEY = "books:items"


def items_of(url: str) -> RedisItems:
    return RedisItems(url, timeout_s=5, options={}, as_stream=False, spider="books")


def append(items: RedisItems, text: str) -> Exception | None:
    (error,) = run(items.append([ItemData(KEY, text.encode())]))
    return error


@pytest.fixture
def in_cluster(cluster: Cluster) -> Iterator[RedisItems]:
    """Items in a cluster, one of which is written."""
    items = items_of(cluster.url)
    assert append(items, "first") is None
    yield items
    run(items.close())


def reshard(cluster: Cluster) -> None:
    cluster.move(KEY, cluster.other_primary(KEY))


def fail_over(cluster: Cluster) -> None:
    old = cluster.primary_of(KEY)
    call(cluster.replica_of(old), "CLUSTER", "FAILOVER")
    cluster.wait_for_failover(KEY, old)


@pytest.mark.every_server
@pytest.mark.parametrize("move", [reshard, fail_over])
def test_items_follow_their_hash_slot_to_another_node(
    move: Callable[[Cluster], None], cluster: Cluster, in_cluster: RedisItems
) -> None:
    move(cluster)

    # redis-py 5.1 has no class of its own for it.
    assert re.search("MovedError|MOVED", told := str(append(in_cluster, "second")))
    assert "another node of the cluster" in told
    assert append(in_cluster, "second") is None
    client: Any = cluster.primary_of(KEY).client()
    assert client.lrange(KEY, 0, -1) == [b"first", b"second"]


def test_items_leave_a_primary_that_became_a_replica(
    own_server: RedisServer, redis_server_factory: StartServer
) -> None:
    new = replica_of(own_server, redis_server_factory)
    client: Any = new.client()
    with FaultProxy(own_server.port) as name:
        items = items_of(f"redis://127.0.0.1:{name.port}/0")
        assert append(items, "first") is None
        wait_until(lambda: client.llen(KEY), what="the replica has the item", within=20)

        client.replicaof("NO", "ONE")
        own_server.client().replicaof("127.0.0.1", new.port)
        name.lead_to(new.port)

        assert "name the primary" in str(append(items, "second"))
        assert append(items, "second") is None
        run(items.close())
    assert client.lrange(KEY, 0, -1) == [b"first", b"second"]
