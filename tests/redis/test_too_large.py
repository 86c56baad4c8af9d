"""A batch that is too large is recognised, whether the server answers or only closes the connection."""

from __future__ import annotations

import re

import pytest
from shop_chaos.proxy import FaultProxy, Refuse

from scrapy_prioqueue.errors import FrontierUnavailable, RequestTooLarge
from scrapy_prioqueue.frontier.base import Batch, Demand, FrontierConfig, Push
from scrapy_prioqueue.frontier.redis.connection import Connection
from scrapy_prioqueue.frontier.redis.frontier import CUT_OFFS, RedisFrontier
from tests.support.coroutines import run
from tests.support.servers import RedisServer, StartServer

LIMIT = 200_000
"""More than the largest script, which is loaded first."""

SMALL, LARGE = Push(0, "slot", b"small", b"fingerprint 1"), Push(0, "slot", b"x" * 2 * LIMIT, b"fingerprint 2")
BATCHES = [Batch(1, [SMALL]), Batch(2, [LARGE])]


def refuses(answer: bytes) -> Refuse:
    return lambda data: answer if any(int(size) > LIMIT for size in re.findall(rb"\$(\d+)\r\n", data)) else None


@pytest.mark.parametrize(("answer", "failures"), [(b"-ERR max request size exceeded\r\n", 0), (b"", CUT_OFFS - 1)])
def test_batch_is_refused_and_the_one_before_it_and_leases_are_not(
    redis_server: RedisServer, frontier_name: str, answer: bytes, failures: int
) -> None:
    with FaultProxy(redis_server.port, refuse=refuses(answer)) as proxy:
        url = f"redis://127.0.0.1:{proxy.port}/0"
        frontier = RedisFrontier(FrontierConfig(frontier_name, ("a",), "w1"), Connection(url))
        run(frontier.join())
        for _ in range(failures):
            with pytest.raises(FrontierUnavailable):
                run(frontier.exchange(BATCHES, Demand(9)))

        answered = run(frontier.exchange(BATCHES, Demand(9)))

        assert isinstance(answered.rejection, RequestTooLarge)
        assert [lease.payload for lease in answered.leases] == [b"small"][: len(answered.committed)]
        again = BATCHES[len(answered.committed) : 1]
        assert [each.number for each in run(frontier.exchange(again, Demand(9))).committed] == [b.number for b in again]
        run(frontier.close())


def test_limit_of_the_server_is_read_with_each_connection(
    redis_server_factory: StartServer, frontier_name: str
) -> None:
    server = redis_server_factory(proto_max_bulk_len=2**21)
    frontier = RedisFrontier(FrontierConfig(frontier_name, ("a",), "w1"), Connection(server.url))
    run(frontier.join())
    assert frontier.payload_limit == 2**21

    server.client().config_set("proto-max-bulk-len", 2**20)
    batches = [Batch(1, [Push(0, "slot", b"x" * (2**20 + 1))])]
    for _ in range(CUT_OFFS):
        try:
            answered = run(frontier.exchange(batches, Demand(9)))
            break
        except FrontierUnavailable:
            continue

    assert isinstance(answered.rejection, RequestTooLarge)
    assert frontier.payload_limit == 2**20
    run(frontier.close())
