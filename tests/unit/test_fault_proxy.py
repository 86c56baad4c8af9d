"""The faults of the proxy between workers and Redis; `example_project/shop_chaos/proxy.py`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry
from shop_chaos.proxy import FaultProxy

from tests.support.servers import RedisServer
from tests.support.waiting import wait_until

pytestmark = pytest.mark.real_time

TIMEOUT_S = 1.0


@pytest.fixture
def proxy(redis_server: RedisServer) -> Iterator[FaultProxy]:
    with FaultProxy(redis_server.port) as proxy:
        yield proxy


@pytest.fixture
def client(proxy: FaultProxy) -> Iterator[redis.Redis]:
    """A client behind the proxy that has one connection and tries everything once."""
    retry = Retry(NoBackoff(), 0)
    with redis.Redis(port=proxy.port, socket_timeout=TIMEOUT_S, retry=retry, single_connection_client=True) as client:
        assert client.ping()
        yield client


@pytest.mark.parametrize("reset", [False, True])
def test_a_cut_closes_connections_and_new_ones_work(proxy: FaultProxy, client: redis.Redis, reset: bool) -> None:
    proxy.cut(reset=reset)

    with pytest.raises(redis.ConnectionError):
        client.ping()
    assert client.ping()


def test_refused_connections_are_closed_until_they_are_no_longer_refused(
    proxy: FaultProxy, client: redis.Redis
) -> None:
    proxy.refuse(is_on=True)
    proxy.cut(reset=True)

    for _ in range(2):
        with pytest.raises(redis.ConnectionError):
            client.ping()
    proxy.refuse(is_on=False)
    assert client.ping()


def test_held_data_arrives_later(
    proxy: FaultProxy, client: redis.Redis, redis_server: RedisServer, frontier_name: str
) -> None:
    other = redis_server.client()
    proxy.hold()

    with pytest.raises(redis.TimeoutError):
        client.set(frontier_name, 1, ex=60)
    assert other.get(frontier_name) is None
    proxy.resume()
    wait_until(lambda: other.get(frontier_name) == b"1", what="the command has arrived", within=10)


def test_an_answer_that_takes_longer_than_the_time_out_is_too_late(proxy: FaultProxy, client: redis.Redis) -> None:
    proxy.delay(TIMEOUT_S)
    with pytest.raises(redis.TimeoutError):
        client.ping()

    proxy.delay(0)
    assert client.ping()


def test_without_its_server_side_a_connection_is_silent_and_commands_do_not_arrive(
    proxy: FaultProxy, client: redis.Redis, redis_server: RedisServer, frontier_name: str
) -> None:
    proxy.lose("server")

    with pytest.raises(redis.TimeoutError):
        client.set(frontier_name, 1, ex=60)
    assert redis_server.client().get(frontier_name) is None
    assert client.ping()


def test_without_its_client_side_a_connection_stays_open_at_the_server(
    proxy: FaultProxy, client: redis.Redis, redis_server: RedisServer, frontier_name: str
) -> None:
    client.client_setname(frontier_name)

    proxy.lose("client")

    with pytest.raises(redis.ConnectionError):
        client.ping()
    assert client.ping()
    assert frontier_name in [each["name"] for each in redis_server.client().client_list()]


def test_without_answers_commands_are_carried_out(
    proxy: FaultProxy, client: redis.Redis, redis_server: RedisServer, frontier_name: str
) -> None:
    proxy.lose("answers")

    with pytest.raises(redis.TimeoutError):
        client.set(frontier_name, 1, ex=60)
    wait_until(lambda: redis_server.client().get(frontier_name) == b"1", what="the command has arrived", within=10)
