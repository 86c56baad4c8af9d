"""A frontier on a real cluster: where it is found, and what happens while its hash slot moves."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from scrapy_prioqueue.errors import FrontierRefused, FrontierUnavailable
from scrapy_prioqueue.frontier.redis.keys import Keys
from tests.contract.backends import RedisBackend, Worker, ack, is_balanced, push
from tests.support.clusters import Cluster
from tests.support.servers import RedisServer


@pytest.fixture
def one(cluster: Cluster, frontier_name: str) -> Iterator[RedisBackend]:
    """Workers that know one node, which doesn't have the frontier."""
    elsewhere = cluster.other_primary(Keys(frontier_name).state)
    backend = RedisBackend(frontier_name, cluster.url_of(elsewhere))
    yield backend
    backend.close()


def dumps(node: RedisServer) -> dict[bytes, Any]:
    """Return all that a node has, also of a hash slot that is moving to it."""
    client: Any = node.client()
    found = {}
    for key in client.scan_iter(count=1000):
        client.execute_command("ASKING")
        found[key] = client.dump(key)
    return found


def test_worker_finds_the_node_of_its_frontier(cluster: Cluster, one: RedisBackend, keys: Keys) -> None:
    worker = one.join()
    worker.commit(push("a"))

    assert worker.lease_payloads() == ["a"]
    assert cluster.primary_of(keys.state).client().exists(keys.state)


def refused(worker: Worker) -> FrontierUnavailable:
    with pytest.raises(FrontierUnavailable) as caught:
        worker.send(push("new"), push("other", slot="new.example"), demand=None)
    return caught.value


@pytest.mark.parametrize("moved", [1, 3, 100])
def test_scripts_do_nothing_while_the_hash_slot_moves(
    cluster: Cluster, one: RedisBackend, keys: Keys, moved: int
) -> None:
    worker = one.join()
    worker.commit(*(push(f"{at}", slot=f"{at}.example") for at in range(5)))
    source, target = cluster.primary_of(keys.state), cluster.other_primary(keys.state)

    cluster.begin_move(keys.state, target)
    cluster.move_keys(keys.state, target, most=moved)
    before = dumps(source), dumps(target)
    error = refused(worker)

    assert not isinstance(error, FrontierRefused)
    assert "another node" in error.why
    assert (dumps(source), dumps(target)) == before


def test_worker_goes_on_where_its_hash_slot_has_moved(cluster: Cluster, one: RedisBackend, keys: Keys) -> None:
    worker = one.join()
    worker.commit(push("a"), push("b"))
    (first,) = worker.lease()

    cluster.begin_move(keys.state, target := cluster.other_primary(keys.state))
    cluster.move_keys(keys.state, target)
    refused(worker)
    cluster.end_move(keys.state, target)
    assert worker.exchange(worker.last_batch, demand=None).recall is not None
    worker.exchange(worker.last_batch, demand=None)

    worker.send(ack(first), demand=None)
    assert len(worker.lease_payloads()) == 3
    assert is_balanced(worker.depth())
    assert (worker.depth().done, worker.depth().accepted) == (1, 4)


def test_worker_finds_its_hash_slot_at_once_after_it_was_told_where_it_is(
    cluster: Cluster, one: RedisBackend, keys: Keys
) -> None:
    worker = one.join()
    for _ in range(3):
        cluster.move(keys.state, cluster.other_primary(keys.state))
        with pytest.raises(FrontierUnavailable, match="has moved"):
            worker.send(push("a"), demand=None)
        assert worker.exchange(worker.last_batch, demand=None).recall is not None
        worker.exchange(worker.last_batch, demand=None)

    assert worker.lease_payloads() == ["a", "a", "a"]
