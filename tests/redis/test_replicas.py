"""Waiting for replicas (`PRIOQUEUE_WAIT_REPLICAS`), a demoted primary, a dead connection; on real servers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

from scrapy_prioqueue.errors import FrontierUnavailable
from scrapy_prioqueue.frontier import open_frontier
from scrapy_prioqueue.frontier.base import Batch, Demand, Exchanged, Frontier, FrontierConfig, Push
from scrapy_prioqueue.frontier.redis import connection as connection_module
from scrapy_prioqueue.frontier.redis.connection import Connection
from scrapy_prioqueue.frontier.redis.items import ItemData, RedisItems
from tests.support.coroutines import run
from tests.support.servers import RedisServer, StartServer, replica_of
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.server_faults, pytest.mark.real_time]

OpenFrontier = Callable[..., Frontier]

TIMEOUT_S = 1.0

FIRST, SECOND = (Batch(number, [Push(0, "slot", b"payload", bytes([number]) * 20)]) for number in (1, 2))


@pytest.fixture
def join() -> Iterator[OpenFrontier]:
    """Joins frontiers that wait for one replica by default."""
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
def primary(own_server: RedisServer) -> RedisServer:
    """A server without replicas."""
    return own_server


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

    with pytest.raises(FrontierUnavailable, match=r"only 0 of 1 replica \(PRIOQUEUE_WAIT_REPLICAS\)") as caught:
        commit(frontier, FIRST)

    assert caught.value.was_sent


def test_more_replicas_than_there_are_do_not_have_it(
    join: OpenFrontier, primary: RedisServer, replica: RedisServer
) -> None:
    frontier = join(primary, wait_replicas=2)

    def has_one() -> bool:
        with pytest.raises(FrontierUnavailable, match=r"only [01] of 2 replicas") as caught:
            commit(frontier, FIRST)
        return "only 1 of 2" in str(caught.value)

    wait_until(has_one, what="the one replica has it", within=20)


def test_commit_is_sent_again_until_a_frozen_replica_has_it(
    join: OpenFrontier, primary: RedisServer, replica: RedisServer
) -> None:
    frontier = join(primary)
    commit_again_and_again(frontier, FIRST)

    replica.freeze()
    with pytest.raises(FrontierUnavailable, match="only 0 of 1 replica"):
        commit(frontier, SECOND)
    replica.thaw()
    answer = commit_again_and_again(frontier, SECOND)

    assert [committed.number for committed in answer.committed] == [2]
    assert answer.depth.pending == 2
    assert replica.client().zcard("{prioqueue:x}:queue:slot") == 2


def test_exchange_without_a_batch_waits_for_no_replica(join: OpenFrontier, primary: RedisServer) -> None:
    assert commit(join(primary)).depth.pending == 0


def test_no_replica_is_waited_for_by_default(join: OpenFrontier, primary: RedisServer) -> None:
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


class Name:
    """An address that can be switched to another server for new connections, like a name in a managed failover."""

    def __init__(self, port: int) -> None:
        self.leads_to = port
        self.port = 0
        self._tasks: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[Name]:
        """Lead connections on, until the end."""
        server = await asyncio.start_server(self._lead, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            server.close()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _lead(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", self.leads_to)
        for source, target in ((reader, back), (there, writer)):
            task = asyncio.create_task(self._pass_on(source, target))
            self._tasks.add(task)

    async def _pass_on(self, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        try:
            while data := await source.read(65536):
                target.write(data)
                await target.drain()
        finally:
            target.close()
            with suppress(ConnectionError):
                await target.wait_closed()


async def fail_over(primary: RedisServer, replica: RedisServer) -> None:
    """Let a worker go through a failover in which its connections to the old primary stay open."""
    async with Name(primary.port).opened() as name:
        frontier = open_frontier(FrontierConfig("x", ("a",), "w1"), f"redis://127.0.0.1:{name.port}/0", timeout_s=5)
        await frontier.join()
        rings: list[int] = []
        bell = asyncio.create_task(frontier.listen(lambda: rings.append(1)))
        await frontier.exchange((FIRST,), Demand(0))
        client, other = primary.client(), replica.client()
        # Only a client that has written waits for what was written.
        client.set("written-last", 1)
        wait_until(lambda: client.wait(1, 100), what="the replica has it", within=20)
        other.replicaof("NO", "ONE")
        name.leads_to = replica.port
        client.replicaof("127.0.0.1", str(replica.port))

        with pytest.raises(FrontierUnavailable, match="READONLY|ReadOnlyError"):
            await frontier.exchange((SECOND,), Demand(0))
        answer = await frontier.exchange((SECOND,), Demand(1))

        assert answer.recall is not None
        answer = await frontier.exchange((SECOND,), Demand(1))
        assert ([each.number for each in answer.committed], answer.depth.accepted) == ([2], 2)
        with pytest.raises(FrontierUnavailable):
            # It would hear nothing of the new primary.
            await asyncio.wait_for(bell, 10)
        await frontier.close()


def test_worker_whose_primary_was_demoted_finds_the_new_one_at_the_same_address(
    primary: RedisServer, replica: RedisServer
) -> None:
    run(fail_over(primary, replica))


async def hear_until_frozen(server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> int:
    """Listen through some silences, then to a server that keeps the connection and says nothing; return the rings."""
    monkeypatch.setattr(connection_module, "PING_S", 0.05)
    connection = Connection(server.url, timeout_s=TIMEOUT_S)
    rings: list[int] = []
    bell = asyncio.create_task(connection.listen("bell", lambda: rings.append(1)))
    client = server.client()
    for expected in (1, 2):
        await asyncio.sleep(0.2)
        while client.publish("bell", "") == 0:
            await asyncio.sleep(0.01)
        while len(rings) < expected:
            await asyncio.sleep(0.01)
    server.freeze()
    try:
        with pytest.raises(FrontierUnavailable, match="no answer"):
            await asyncio.wait_for(bell, 20)
    finally:
        server.thaw()
        await connection.close()
    return len(rings)


def test_bell_whose_connection_is_dead_is_noticed_and_silence_alone_is_none(
    primary: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run(hear_until_frozen(primary, monkeypatch)) == 2


@pytest.mark.parametrize("as_stream", [False, True])
def test_items_wait_for_a_frozen_replica_and_are_written_once(
    primary: RedisServer, replica: RedisServer, as_stream: bool
) -> None:
    items = RedisItems(
        primary.url, timeout_s=TIMEOUT_S, options={}, as_stream=as_stream, spider="books", wait_replicas=1
    )
    entries = [ItemData("items", b"same"), ItemData("items", b"same")]
    replica.freeze()

    for _ in range(2):
        for error in run(items.append(entries)):
            assert "only 0 of 1 replica (PRIOQUEUE_WAIT_REPLICAS)" in str(error)
    replica.thaw()
    client: Any = replica.client()

    wait_until(lambda: run(items.append(entries)) == [None, None], what="the replica has the items", within=20)
    count = client.xlen if as_stream else client.llen
    assert count("items") == 2
    run(items.close())


def test_items_that_no_replica_had_are_written_again_after_a_reconnect(
    primary: RedisServer, replica: RedisServer
) -> None:
    items = RedisItems(primary.url, timeout_s=TIMEOUT_S, options={}, as_stream=False, spider="books", wait_replicas=1)
    entries = [ItemData("items", b"item")]
    replica.freeze()
    assert "only 0 of 1" in str(run(items.append(entries))[0])
    client: Any = primary.client()
    client.client_kill_filter(_type="normal", skipme=True)
    replica.thaw()

    wait_until(lambda: run(items.append(entries)) == [None], what="the replica has the item", within=20)
    # Twice, since the first one might have been lost with the connection.
    assert client.llen("items") == 2
    run(items.close())
