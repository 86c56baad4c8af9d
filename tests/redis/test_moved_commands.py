"""Programs that aren't workers, after the server of a frontier has changed or a node of its cluster has gone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from prometheus_client.core import CollectorRegistry
from redis_server import HOST
from scrapy.settings import Settings
from shop_chaos.proxy import FaultProxy

from scrapy_prioqueue.client import FrontierClient
from scrapy_prioqueue.errors import FrontierRefused
from scrapy_prioqueue.frontier.redis.keys import Keys
from scrapy_prioqueue.frontier.redis.link import Link
from scrapy_prioqueue.frontier.redis.operators.exporter import Exporter
from scrapy_prioqueue.frontier.redis.operators.importer import Importer
from scrapy_prioqueue.monitoring.fleet import FleetCollector, Search
from tests.commands.conftest import run_command
from tests.redis.test_clusters import on_each_node, state_of
from tests.support.clusters import Cluster, call
from tests.support.servers import RedisServer, StartServer, replica_of
from tests.support.waiting import wait_until

pytestmark = pytest.mark.any_server

URLS = [f"https://{site}.example/" for site in "abc"]


def reshard(cluster: Cluster, key: str) -> None:
    cluster.move(key, cluster.other_primary(key))


def fail_over(cluster: Cluster, key: str) -> None:
    old = cluster.primary_of(key)
    call(cluster.replica_of(old), "CLUSTER", "FAILOVER")
    cluster.wait_for_failover(key, old)


MOVES = pytest.mark.parametrize("move", [reshard, fail_over])

Move = Callable[[Cluster, str], None]


@pytest.fixture
def link(cluster: Cluster) -> Iterator[Link]:
    link = Link(cluster.url, timeout_s=5)
    yield link
    link.close()


def exists(link: Link, name: str) -> float | None:
    """Return what Prometheus would read of a frontier by this link, None for nothing."""
    registry = CollectorRegistry()
    registry.register(FleetCollector(link, lambda: [name], lambda _: None, lease_ttl_s=10))
    return registry.get_sample_value("prioqueue_frontier_exists", {"frontier": name})


@MOVES
def test_pushes_and_metrics_follow_the_hash_slot_at_once(
    move: Move, cluster: Cluster, link: Link, keys: Keys, frontier_name: str
) -> None:
    with FrontierClient(cluster.url, frontier_name) as client:
        client.push(URLS[0])
        assert exists(link, frontier_name) == 1

        move(cluster, keys.state)
        assert exists(link, frontier_name) == 1
        assert client.push_many(URLS).accepted == 2
        assert client.depth().pending == 3


def test_pushes_leave_a_primary_that_became_a_replica(
    own_server: RedisServer, redis_server_factory: StartServer, frontier_name: str
) -> None:
    new = replica_of(own_server, redis_server_factory)
    state = Keys(frontier_name).state
    with (
        FaultProxy(own_server.port) as name,
        FrontierClient(f"redis://{HOST}:{name.port}/0", frontier_name) as client,
    ):
        client.push(URLS[0])
        wait_until(lambda: new.client().exists(state), what="the replica has the frontier", within=20)
        new.client().replicaof("NO", "ONE")
        own_server.client().replicaof(HOST, new.port)
        name.lead_to(new.port)

        assert client.push_many(URLS).accepted == 2
        assert client.depth().pending == 3


def test_metrics_of_a_node_that_is_killed_are_missing_and_do_not_deny_its_frontier(
    cluster: Cluster, link: Link, keys: Keys, frontier_name: str
) -> None:
    with FrontierClient(cluster.url, frontier_name) as client:
        client.push(URLS[0])
    assert exists(link, frontier_name) == 1
    cluster.primary_of(keys.state).kill()
    values: list[float | None] = []

    def is_back() -> bool:
        values.append(exists(link, frontier_name))
        return values[-1] == 1

    wait_until(is_back, what="the promoted replica is read", within=30)
    assert 0 not in values


@pytest.fixture
def half_dead(cluster: Cluster, frontier_name: str) -> Iterator[tuple[str, str, RedisServer]]:
    """Names of a frontier of a living node and of a dead one, and the dead one, which has no replica left."""
    living, lost, _ = on_each_node(cluster, frontier_name, state_of)
    for name in (living, lost):
        with FrontierClient(cluster.url, name) as client:
            client.push(URLS[0])
    for node in cluster.nodes:
        call(node, "CONFIG", "SET", "cluster-require-full-coverage", "no")
    dead = cluster.primary_of(state_of(lost))
    for node in (cluster.replica_of(dead), dead):
        node.kill()
    yield living, lost, dead
    cluster.restore()
    for node in cluster.nodes:
        call(node, "CONFIG", "SET", "cluster-require-full-coverage", "yes")


def listed(url: str) -> int:
    return run_command(("list", "--json"), Settings({"PRIOQUEUE_NAME": "any", "PRIOQUEUE_REDIS_URL": url}))


def test_frontiers_of_living_nodes_are_listed(
    cluster: Cluster, half_dead: tuple[str, str, RedisServer], capsys: pytest.CaptureFixture[str]
) -> None:
    living, lost, dead = half_dead

    assert listed(cluster.url) == 3
    out, err = capsys.readouterr()
    assert living in out
    assert lost not in out
    assert f"can't be used: {HOST}:{dead.port}: " in err


def test_exporter_of_all_finds_the_frontiers_of_living_nodes(
    link: Link, half_dead: tuple[str, str, RedisServer]
) -> None:
    living, _, dead = half_dead
    reports: list[str] = []
    search = Search(link, reports.append)
    wait_until(lambda: living in search.names(), what="the frontier is found", within=20)
    search.close()
    wait_until(lambda: reports, what="the dead node is reported", within=20)
    assert f"{HOST}:{dead.port}" in reports[0]


def test_list_of_one_node_says_that_there_are_others(
    cluster: Cluster, capsys: pytest.CaptureFixture[str], frontier_name: str
) -> None:
    names = on_each_node(cluster, frontier_name, state_of)
    for name in names:
        with FrontierClient(cluster.url, name) as client:
            client.push(URLS[0])
    node = cluster.primary_of(state_of(names[0]))

    assert listed(f"redis://{HOST}:{node.port}") == 0
    out, err = capsys.readouterr()
    assert [name for name in names if name in out] == names[:1]
    assert "one node of a cluster" in err
    assert "redis+cluster://" in err


def test_import_that_another_node_refuses_has_left_nothing(cluster: Cluster, link: Link, frontier_name: str) -> None:
    first, second, _ = on_each_node(cluster, frontier_name, state_of)
    with FrontierClient(cluster.url, first) as client:
        client.push(URLS[0])
    records: list[Any] = list(Exporter(link, first).records())
    elsewhere = Link(f"redis://{HOST}:{cluster.primary_of(state_of(first)).port}")
    importer = Importer(elsewhere, second)

    with pytest.raises(FrontierRefused, match="MOVED|MovedError"):
        importer.run(records)
    assert importer.has_left is None
    elsewhere.close()
