"""A call that reaches the server after the worker has given it up changes nothing."""

from __future__ import annotations

import pytest

from scrapy_prioqueue.errors import FrontierFull, FrontierUnavailable
from scrapy_prioqueue.frontier.base import Batch, Demand, FrontierConfig, Push
from scrapy_prioqueue.frontier.redis.connection import Connection
from scrapy_prioqueue.frontier.redis.frontier import RedisFrontier
from scrapy_prioqueue.frontier.redis.wire import SUPERSEDED
from tests.support.coroutines import closed, run
from tests.support.servers import RedisServer, StartServer


def test_a_batch_that_was_refused_is_not_applied_by_an_earlier_call(
    redis_server_factory: StartServer, frontier_name: str
) -> None:
    server = redis_server_factory()
    client = server.client()
    frontier = RedisFrontier(FrontierConfig(frontier_name, ("a",), "w1"), Connection(server.url))
    run(frontier.join())
    late = frontier.twin()
    batch = Batch(1, [Push(0, "slot", b"request", b"fingerprint")])

    # Its answer is lost: the worker knows only that it may have been sent.
    frontier._is_in_doubt = True  # noqa: SLF001
    client.config_set("maxmemory", 1)
    refused = run(frontier.exchange([batch], None))
    client.config_set("maxmemory", 0)
    replies = run(late._session.run(late._exchange_calls([batch], None)))  # noqa: SLF001

    assert isinstance(refused.rejection, FrontierFull)
    assert replies == [[SUPERSEDED]]
    other = Batch(1, [Push(0, "slot", b"another", b"fingerprint")])
    (committed,) = run(frontier.exchange([other], None)).committed
    assert list(committed.duplicates) == []
    run(late.close())
    run(frontier.close())


@pytest.mark.real_time
def test_a_lease_call_that_arrives_after_the_outage_leases_nothing(own_server: RedisServer, frontier_name: str) -> None:
    # As after a cut of the link: what is in the buffers of a closed connection is delivered all the same.
    made = RedisFrontier(FrontierConfig(frontier_name, ("a",), "w1"), Connection(own_server.url, timeout_s=0.5))
    with closed(made) as frontier:
        run(frontier.join())
        run(frontier.exchange([Batch(1, [Push(0, "slot", b"request", b"fingerprint")])], None))
        with closed(frontier.twin()) as late:
            own_server.freeze()
            with pytest.raises(FrontierUnavailable):
                run(frontier.exchange((), Demand(1)))
            own_server.thaw()
            run(frontier.reconcile(()))
            replies = run(late._session.run(late._exchange_calls((), Demand(1))))  # noqa: SLF001

        assert replies == [[SUPERSEDED]]
        (lease,) = run(frontier.exchange((), Demand(1))).leases
        assert lease.payload == b"request"


def test_a_fence_that_arrives_after_a_later_one_does_not_set_the_session_back(
    own_server: RedisServer, frontier_name: str
) -> None:
    frontier = RedisFrontier(FrontierConfig(frontier_name, ("a",), "w1"), Connection(own_server.url))
    run(frontier.join())
    session = frontier._session  # noqa: SLF001
    run(session.fence(0))
    old = session.nonce
    run(session.fence(0))
    batch = Batch(1, [Push(0, "slot", b"request", None)])
    run(frontier.exchange([batch], None))

    newest, session.nonce = session.nonce, old
    membership = session._membership(0, flush=False, has_cleared=False)  # noqa: SLF001
    reply = run(session.call("join", (*membership, session._policy)))  # noqa: SLF001
    session.nonce = newest

    assert reply == [SUPERSEDED]
    assert run(session.look_up()).last_batch == 1
    run(frontier.close())
