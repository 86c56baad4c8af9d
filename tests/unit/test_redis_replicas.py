"""A commit counts as done when enough replicas have it (`PRIOQUEUE_WAIT_REPLICAS`), on real primaries and replicas."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest

from scrapy_prioqueue.errors import FrontierUnavailable
from scrapy_prioqueue.frontier import open_frontier
from scrapy_prioqueue.frontier.base import Batch, Demand, Exchanged, Frontier, FrontierConfig, Push
from tests.support.coroutines import run
from tests.support.servers import RedisServer, StartServer, replica_of
from tests.support.waiting import wait_until

pytestmark = pytest.mark.server_faults

OpenFrontier = Callable[..., Frontier]

TIMEOUT_S = 1.0

FIRST, SECOND = (Batch(number, [Push(0, "slot", b"payload", bytes([number]) * 20)]) for number in (1, 2))


@pytest.fixture
def join() -> Iterator[OpenFrontier]:
    """Joins frontiers that wait for one replica, unless told otherwise."""
    joined: list[Frontier] = []

    def frontier(server: RedisServer, *, wait_replicas: int = 1, **options: Any) -> Frontier:
        config = FrontierConfig("x", ("a",), "w1", wait_replicas=wait_replicas)
        joined.append(open_frontier(config, server.url, timeout_s=TIMEOUT_S, options=options))
        run(joined[-1].join())
        return joined[-1]

    yield frontier
    for one in joined:
        run(one.close())


@pytest.fixture
def primary(redis_server_factory: StartServer) -> RedisServer:
    """A server without replicas."""
    return redis_server_factory()


@pytest.fixture
def replica(primary: RedisServer, redis_server_factory: StartServer) -> RedisServer:
    """Its replica."""
    return replica_of(primary, redis_server_factory)


def commit(frontier: Frontier, *batches: Batch) -> Exchanged:
    return run(frontier.exchange(batches, Demand(0)))


def commit_again_and_again(frontier: Frontier, batch: Batch) -> Exchanged:
    """Do what a worker does, which knows nothing of when replicas come back, nor of how long a busy one takes."""

    def answer() -> Exchanged | None:
        with suppress(FrontierUnavailable):
            return commit(frontier, batch)
        return None

    found = wait_until(answer, what="the replica has the batch", within=20)
    assert found is not None
    return found


def test_commit_is_at_the_replica_when_it_counts_as_done(
    join: OpenFrontier, primary: RedisServer, replica: RedisServer
) -> None:
    answer = commit_again_and_again(join(primary), FIRST)

    assert [committed.number for committed in answer.committed] == [1]
    assert answer.depth.pending == 1
    assert replica.client().zcard("{prioqueue:x}:queue:slot") == 1


@pytest.mark.parametrize("options", [{}, {"socket_timeout": 0.5}, {"socket_timeout": None}])
def test_commit_without_replicas_does_not_count(
    join: OpenFrontier, primary: RedisServer, options: dict[str, Any]
) -> None:
    frontier = join(primary, **options)

    with pytest.raises(FrontierUnavailable, match=r"only 0 of 1 replicas \(PRIOQUEUE_WAIT_REPLICAS\)") as caught:
        commit(frontier, FIRST)

    assert caught.value.was_sent


def test_more_replicas_than_there_are_do_not_have_it(
    join: OpenFrontier, primary: RedisServer, replica: RedisServer
) -> None:
    with pytest.raises(FrontierUnavailable, match="only 1 of 2 replicas"):
        commit(join(primary, wait_replicas=2), FIRST)


def test_commit_is_sent_again_until_a_frozen_replica_has_it(
    join: OpenFrontier, primary: RedisServer, replica: RedisServer
) -> None:
    frontier = join(primary)
    commit_again_and_again(frontier, FIRST)

    replica.freeze()
    with pytest.raises(FrontierUnavailable, match="only 0 of 1 replicas"):
        commit(frontier, SECOND)
    replica.thaw()
    answer = commit_again_and_again(frontier, SECOND)

    assert [committed.number for committed in answer.committed] == [2]
    assert answer.depth.pending == 2
    assert replica.client().zcard("{prioqueue:x}:queue:slot") == 2


def test_exchange_without_a_batch_waits_for_nobody(join: OpenFrontier, primary: RedisServer) -> None:
    assert commit(join(primary)).depth.pending == 0


def test_nobody_is_waited_for_by_default(join: OpenFrontier, primary: RedisServer) -> None:
    assert commit(join(primary, wait_replicas=0), FIRST).depth.pending == 1


def test_scripts_that_were_forgotten_are_waited_for_when_they_have_run(
    join: OpenFrontier, primary: RedisServer, replica: RedisServer
) -> None:
    frontier = join(primary)
    client: Any = primary.client()
    client.script_flush()
    client.config_resetstat()

    commit_again_and_again(frontier, FIRST)

    calls = client.info("commandstats")
    assert calls["cmdstat_script|load" if "cmdstat_script|load" in calls else "cmdstat_script"]["calls"] >= 1
    assert calls["cmdstat_wait"]["calls"] >= 2
