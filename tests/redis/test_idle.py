"""Connections that a firewall, a NAT or the server drops while they are idle: they are kept alive, or replaced."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, suppress
from typing import Any, TypeVar

import pytest
from shop_chaos.proxy import FaultProxy

from scrapy_prioqueue import FrontierClient
from scrapy_prioqueue.errors import FrontierUnavailable
from scrapy_prioqueue.frontier.base import Batch, Demand, FrontierConfig, Push, Report
from scrapy_prioqueue.frontier.redis import connection
from scrapy_prioqueue.frontier.redis.connection import Connection
from scrapy_prioqueue.frontier.redis.frontier import RedisFrontier
from scrapy_prioqueue.frontier.redis.link import Link
from scrapy_prioqueue.frontier.redis.options import KEEPALIVE_S
from scrapy_prioqueue.frontier.runs import Figures
from tests.support.coroutines import closed, run
from tests.support.servers import RedisServer, StartServer

pytestmark = [pytest.mark.any_server, pytest.mark.real_time]

T = TypeVar("T")

TIMEOUT_S = 0.5


@pytest.fixture
def proxy(redis_server: RedisServer) -> Iterator[FaultProxy]:
    with FaultProxy(redis_server.port) as proxy:
        yield proxy


@pytest.fixture
def frontier(proxy: FaultProxy, frontier_name: str) -> Iterator[RedisFrontier]:
    """A worker that has joined, behind the proxy."""
    config = FrontierConfig(frontier_name, ("a",), "w1")
    with closed(RedisFrontier(config, Connection(url_of(proxy), timeout_s=TIMEOUT_S))) as frontier:
        run(frontier.join())
        run(frontier.record(Report(Figures())))
        yield frontier


def url_of(proxy: FaultProxy) -> str:
    return f"redis://127.0.0.1:{proxy.port}/0"


def exchange(frontier: RedisFrontier, number: int) -> None:
    """Push a request, of the batch with this number."""
    answer = run(frontier.exchange([Batch(number, [Push(0, "slot", b"payload")])], Demand(0)))
    assert [each.number for each in answer.committed] == [number]


# Kept alive


Options = Mapping[str, int]
"""TCP options of a socket by name, as far as the system has them, and SO_KEEPALIVE."""


def options_of(made: socket.socket) -> Options:
    if made.family == socket.AF_UNIX:
        return {}
    names = [name for name in KEEPALIVE_S if hasattr(socket, name)]
    times = {name: made.getsockopt(socket.IPPROTO_TCP, getattr(socket, name)) for name in names}
    return {"SO_KEEPALIVE": int(made.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) > 0), **times}


async def options_of_a_worker(url: str, **options: Any) -> Options:
    made = Connection(url, options=options)
    await made.ask(lambda client: client.ping())
    pool: Any = made.client.connection_pool
    (one,) = pool._available_connections  # noqa: SLF001 - there is no other way
    found = options_of(one._writer.get_extra_info("socket"))  # noqa: SLF001 - likewise
    await made.close()
    return found


def options_of_a_program(url: str) -> Options:
    with closing(Link(url)) as link:
        link.ask(lambda client: client.ping())
        pool: Any = link.client.connection_pool
        return options_of(pool._available_connections[0]._sock)  # noqa: SLF001 - likewise


def test_connections_are_kept_alive(redis_server: RedisServer) -> None:
    expected = {"SO_KEEPALIVE": 1, **{name: value for name, value in KEEPALIVE_S.items() if hasattr(socket, name)}}

    assert run(options_of_a_worker(redis_server.url)) == options_of_a_program(redis_server.url) == expected


def test_users_decide_about_keepalive(redis_server: RedisServer) -> None:
    assert not run(options_of_a_worker(redis_server.url, socket_keepalive=False))["SO_KEEPALIVE"]
    own = {socket.TCP_KEEPCNT: 7}
    assert run(options_of_a_worker(redis_server.url, socket_keepalive_options=own))["TCP_KEEPCNT"] == 7


def test_socket_files_need_no_keepalive(redis_server_factory: StartServer) -> None:
    server = redis_server_factory(unixsocket="redis.sock")
    url = f"unix://{server.directory.resolve()}/redis.sock"

    assert run(options_of_a_worker(url)) == options_of_a_program(url) == {}


# Dropped


def test_connections_that_were_closed_while_idle_are_replaced_without_an_error(
    proxy: FaultProxy, frontier: RedisFrontier, frontier_name: str
) -> None:
    with FrontierClient(url_of(proxy), frontier_name, timeout_s=TIMEOUT_S) as client:
        client.depth()
        for number in range(1, 4):
            proxy.cut(reset=False)

            exchange(frontier, number)
            run(frontier.record(Report(Figures(pages=number))))
            assert client.depth().pending == number


def at_second_try(call: Callable[[], T]) -> T:
    """Return the result of a call that may fail once."""
    with suppress(FrontierUnavailable):
        return call()
    return call()


@pytest.mark.parametrize("drop", ["forget", "reset"])
def test_connections_that_were_forgotten_or_reset_while_idle_cost_one_call(
    proxy: FaultProxy, frontier: RedisFrontier, frontier_name: str, drop: str
) -> None:
    with FrontierClient(url_of(proxy), frontier_name, timeout_s=TIMEOUT_S) as client:
        client.depth()
        if drop == "reset":
            proxy.cut(reset=True)
        else:
            proxy.lose("both")

        at_second_try(lambda: exchange(frontier, 1))
        at_second_try(lambda: run(frontier.record(Report(Figures(pages=1)))))
        assert at_second_try(client.depth).pending == 1


def test_thread_that_renews_leases_needs_no_connection_from_before(proxy: FaultProxy, frontier: RedisFrontier) -> None:
    exchange(frontier, 1)
    (lease,) = run(frontier.exchange([], Demand(1))).leases
    proxy.lose("both")

    with closed(frontier.twin()) as twin:
        assert run(twin.renew([(lease.lease_id, lease.attempt)])) == []


def test_bell_that_is_forgotten_while_idle_is_noticed_by_its_ping(
    proxy: FaultProxy, frontier: RedisFrontier, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "PING_S", 0.1)

    async def listen(until: Callable[[], object]) -> None:
        listening = asyncio.ensure_future(frontier.listen(lambda: None))
        # It listens, and its pings are answered.
        done, _ = await asyncio.wait([listening], timeout=0.5)
        assert not done
        await asyncio.to_thread(until)
        await listening

    with pytest.raises(FrontierUnavailable):
        run(listen(lambda: proxy.lose("both")))
