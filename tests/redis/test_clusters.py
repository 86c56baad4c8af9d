"""A frontier on a real cluster."""

from __future__ import annotations

from scrapy_prioqueue.frontier.redis.keys import Keys
from tests.contract.backends import RedisBackend, push
from tests.support.clusters import Cluster


def test_worker_finds_the_node_of_its_frontier(cluster: Cluster, frontier_name: str) -> None:
    state = Keys(frontier_name).state
    backend = RedisBackend(frontier_name, cluster.url_of(cluster.other_primary(state)))

    worker = backend.join()
    worker.commit(push("a"))
    (lease,) = worker.lease()

    assert lease.payload
    assert cluster.primary_of(state).client().exists(state)
    backend.close()
