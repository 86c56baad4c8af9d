"""A server name that leads to another address after a failover, as those of managed services do."""

from __future__ import annotations

import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pytest
import redis

from scrapy_prioqueue import FrontierClient
from scrapy_prioqueue.errors import FrontierUnavailable
from scrapy_prioqueue.frontier import open_frontier
from scrapy_prioqueue.frontier.base import Batch, Demand, Exchanged, Frontier, FrontierConfig, Push
from scrapy_prioqueue.settings.table import SETTINGS
from tests.support.coroutines import closed, run
from tests.support.servers import RedisServer, StartServer
from tests.support.waiting import wait_until

pytestmark = [
    pytest.mark.real_time,
    pytest.mark.server_faults,
    pytest.mark.skipif(sys.platform != "linux", reason="only Linux has a second address for loopback by itself"),
]

NAME = "primary.cache.example"
FIRST_ADDRESS, SECOND_ADDRESS = "127.0.0.1", "127.0.0.2"

TIMEOUT_S = 0.5

BATCHES = [Batch(number, [Push(0, "slot", b"payload", bytes([number]) * 20)]) for number in (1, 2, 3)]


@dataclass
class Service:
    """A primary and its replica with the same port, and a name that leads to one of them."""

    old: RedisServer
    new: redis.Redis
    leads_to: str = FIRST_ADDRESS

    @property
    def url(self) -> str:
        return f"redis://{NAME}:{self.old.port}/0"

    def fail_over(self) -> None:
        """Promote the replica when it has everything, and let the name lead to it."""
        with self.old.client() as client:
            # Only a client that has written waits for what was written.
            client.set("written-last", 1)
            wait_until(lambda: client.wait(1, 100), what="the replica has everything", within=20)
        self.new.replicaof("NO", "ONE")
        self.leads_to = SECOND_ADDRESS


@pytest.fixture
def service(redis_server_factory: StartServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[Service]:
    old = redis_server_factory(repl_diskless_sync_delay=0)
    new = redis_server_factory(bind=SECOND_ADDRESS, port=old.port, replicaof=f"{FIRST_ADDRESS} {old.port}")
    client = redis.Redis(SECOND_ADDRESS, new.port)
    service = Service(old, client)
    resolve = socket.getaddrinfo

    def getaddrinfo(host: Any, *args: Any, **options: Any) -> Any:
        return resolve(service.leads_to if host == NAME else host, *args, **options)

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    yield service
    client.close()


def demote(service: Service) -> None:
    """Make the old primary a replica of the new one; its connections stay open."""
    with service.old.client() as client:
        client.replicaof(SECOND_ADDRESS, str(service.old.port))


def kill(service: Service) -> None:
    service.old.kill()


def freeze(service: Service) -> None:
    """Stop the old primary, which closes nothing and answers nothing."""
    service.old.freeze()


def exchange(frontier: Frontier, batch: Batch) -> Exchanged:
    """Send a batch until it is confirmed, as a worker does, which needs few attempts."""
    for _ in range(3):
        with suppress(FrontierUnavailable):
            answer = run(frontier.exchange([batch], Demand(0)))
            if answer.recall is None:
                return answer
    raise AssertionError("the worker has not found the new primary")


@pytest.mark.parametrize("end", [demote, kill, freeze])
def test_workers_and_programs_follow_a_name(
    service: Service, frontier_name: str, end: Callable[[Service], None]
) -> None:
    config = FrontierConfig(frontier_name, SETTINGS["PRIOQUEUE_TIERS"].default, "w1")
    with (
        closed(open_frontier(config, service.url, timeout_s=TIMEOUT_S)) as frontier,
        FrontierClient(service.url, frontier_name, timeout_s=TIMEOUT_S) as client,
    ):
        run(frontier.join())
        assert exchange(frontier, BATCHES[0]).depth.accepted == 1
        assert client.push("https://a.example/1")

        service.fail_over()
        end(service)

        assert exchange(frontier, BATCHES[1]).depth.accepted == 3
        with suppress(FrontierUnavailable):
            client.push("https://a.example/2")
        client.push("https://a.example/2")
        assert client.depth().accepted == 4
        if end is freeze:
            service.old.thaw()
        # Nothing goes to the old one any more.
        assert exchange(frontier, BATCHES[2]).depth.accepted == 5
