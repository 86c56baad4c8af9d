"""Commits that wait for replicas (`PRIOQUEUE_WAIT_REPLICAS`), on a primary with a real replica."""

from __future__ import annotations

from typing import Any

import pytest

from scrapy_prioqueue.errors import FrontierUnavailable
from tests.contract.backends import RedisBackend, push
from tests.support.servers import RedisServer, StartServer
from tests.support.waiting import wait_until


@pytest.fixture
def primary(redis_server_factory: StartServer) -> RedisServer:
    return redis_server_factory()


@pytest.fixture
def replica(redis_server_factory: StartServer, primary: RedisServer) -> RedisServer:
    server = redis_server_factory()
    client: Any = server.client()
    client.replicaof("127.0.0.1", primary.port)
    wait_until(lambda: client.info("replication")["master_link_status"] == "up", what="the replica follows", within=20)
    return server


def test_commit_that_a_replica_has_is_done(primary: RedisServer, replica: RedisServer) -> None:
    backend = RedisBackend("replicated", primary.url)
    worker = backend.join(wait_replicas=1)

    worker.commit(push("1"))

    client: Any = replica.client()
    assert client.zcard("{prioqueue:replicated}:queue:a.example") == 1
    backend.close()


def test_commit_without_enough_replicas_is_not_confirmed_and_does_no_harm_when_it_is_sent_again(
    primary: RedisServer, replica: RedisServer
) -> None:
    backend = RedisBackend("replicated", primary.url, timeout_s=1.0)
    worker = backend.join(wait_replicas=1)
    replica.freeze()

    with pytest.raises(FrontierUnavailable, match=r"0 of 1 replicas \(PRIOQUEUE_WAIT_REPLICAS\)"):
        worker.send(push("1"), demand=None)
    with pytest.raises(FrontierUnavailable, match="0 of 1 replicas"):
        worker.exchange(worker.last_batch, demand=None)
    replica.thaw()
    answer = worker.exchange(worker.last_batch, demand=None)

    assert [committed.number for committed in answer.committed] == [1]
    assert worker.lease_payloads() == ["1"]
    backend.close()


def test_exchange_without_a_commit_waits_for_nobody(primary: RedisServer) -> None:
    backend = RedisBackend("replicated", primary.url, timeout_s=1.0)
    worker = backend.join(wait_replicas=1)

    assert worker.lease_payloads() == []
    backend.close()
