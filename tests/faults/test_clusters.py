"""A cluster moves the frontier, or loses nodes, during a crawl: nothing is lost, and little is repeated.

`make failovers` does it ten times in each way and prints how long that took.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import pytest
from shop_chaos.view import FrontierView

from scrapy_prioqueue.frontier.redis.keys import Keys
from tests.faults.failovers import WORKERS, Failover, back_ms, failovers_text
from tests.support.clusters import Cluster
from tests.support.forks import StartFork
from tests.support.processes import StartProcess
from tests.support.servers import RedisServer
from tests.support.shop import Shop, let_pass

COUNT = int(os.environ.get("PRIOQUEUE_TEST_FAILOVERS", "1"))

PAGES_EACH = 200 if COUNT == 1 else 1200

STEPS = 10

DOWN_S = 4.0

_ELECTED = re.compile(r"^\S+ (\d+ \w+ \d{4} [\d:.]+) \S Failover election won", re.MULTILINE)


class Crawled:
    """A frontier in a cluster while workers crawl it; their URL names only one other node."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        self.cluster = cluster
        self.keys = Keys(name)
        # One that has no vote in a failover.
        self.endpoint = cluster.replica_of(cluster.other_primary(self.keys.state))
        self._failovers: list[Failover] = []

    def __str__(self) -> str:
        return failovers_text(self._failovers)

    @property
    def primary(self) -> RedisServer:
        """The node that has the frontier."""
        return self.cluster.primary_of(self.keys.state)

    def fail_over(self, fault: Callable[[RedisServer], None]) -> None:
        """Do something to that node, and wait until all workers are at its successor."""
        old, begun_ms = self.primary, datetime.now().timestamp() * 1000
        fault(old)
        new = self.cluster.wait_for_failover(self.keys.state, old)
        elected_ms = datetime.strptime(_ELECTED.findall(new.log)[-1], "%d %b %Y %H:%M:%S.%f").timestamp() * 1000
        back = back_ms(new.client(), self.keys.workers, elected_ms)
        back_after_s = [(at_ms - elected_ms) / 1000 for at_ms in back.values()]
        self._failovers.append(Failover((elected_ms - begun_ms) / 1000, back_after_s))
        if old.is_running:
            old.thaw()


def move(crawled: Crawled) -> None:
    """Move the hash slot to another node and back, in some seconds; a longer outage would cost more repeats."""
    cluster, state = crawled.cluster, crawled.keys.state
    for target in (cluster.other_primary(state), crawled.primary):
        cluster.begin_move(state, target)
        most = 1 + cluster.count_keys(state) // STEPS
        while cluster.move_keys(state, target, most=most):
            let_pass(0.1)
        cluster.end_move(state, target)
        let_pass(1)


def kill(crawled: Crawled) -> None:
    """Kill the primary."""
    crawled.fail_over(RedisServer.kill)


def freeze(crawled: Crawled) -> None:
    """Stop the primary, which takes itself for the primary when it goes on."""
    crawled.fail_over(RedisServer.freeze)


def take_down(crawled: Crawled) -> None:
    """Stop the primary and its replica for a while."""
    nodes = [crawled.primary, crawled.cluster.replica_of(crawled.primary)]
    for node in nodes:
        node.freeze()
    let_pass(DOWN_S)
    for node in nodes:
        node.thaw()


def lose_endpoint(crawled: Crawled) -> None:
    """Kill the node that the URL names, then the primary."""
    crawled.endpoint.kill()
    crawled.fail_over(RedisServer.kill)


FAULTS = (move, lose_endpoint) if COUNT == 1 else (move, kill, freeze, take_down)


@pytest.mark.timeout(300 + 60 * COUNT)
@pytest.mark.parametrize("fault", FAULTS)
def test_invariant_1_trouble_in_a_cluster_loses_nothing_and_repeats_little(
    fault: Callable[[Crawled], None],
    tmp_path: Path,
    start_process: StartProcess,
    start_fork: StartFork,
    cluster: Cluster,
    frontier_name: str,
) -> None:
    options = {"products": PAGES_EACH * COUNT, "latency": 0.3}
    shop = Shop(tmp_path, start_process, start_fork, cluster.nodes[0], frontier_name, **options)
    crawled = Crawled(cluster, frontier_name)
    url = cluster.url_of(crawled.endpoint)
    workers = [shop.start(name, {"PRIOQUEUE_REDIS_URL": url}) for name in WORKERS]

    for number in range(COUNT):
        shop.wait_until_fetched(0.2 + 0.75 * number / COUNT)
        cluster.restore()
        fault(crawled)
    for worker in workers:
        worker.ends()

    print(f"{fault.__name__}: {crawled}")
    shop.check_complete(repeated_at_most=len(shop.pages) // 50)
    frontier = FrontierView(crawled.primary.client(), frontier_name)
    assert frontier.check_books() == frontier.counts()["done"]
