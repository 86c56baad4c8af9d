"""The server answers with errors for a while: the worker continues, logs the reason, and repeats nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import redis

from tests.faults.conftest import OpenShop
from tests.support.shop import Worker, let_pass

# A lease that nobody knows of would keep the crawl from its end for longer than the tests wait.
LONG_TTL = {"PRIOQUEUE_LEASE_TTL": 1000}

PASSWORD = "changed"


def revoke_the_password(client: redis.Redis) -> Callable[[], object]:
    """Ask for a password that no worker has."""
    server: Any = client
    server.config_set("requirepass", PASSWORD)
    server.execute_command("AUTH", PASSWORD)
    server.client_kill_filter(_type="normal", skipme=True)
    return lambda: server.config_set("requirepass", "")


def take_the_rights(client: redis.Redis) -> Callable[[], object]:
    """Forbid scripts to everybody."""
    server: Any = client
    server.execute_command("ACL", "SETUSER", "default", "-evalsha")
    return lambda: server.execute_command("ACL", "SETUSER", "default", "+evalsha")


def take_one_right(client: redis.Redis) -> Callable[[], object]:
    """Forbid a command that scripts use in their middle."""
    server: Any = client
    server.execute_command("ACL", "SETUSER", "default", "-hset")
    return lambda: server.execute_command("ACL", "SETUSER", "default", "+hset")


def make_it_a_replica(client: redis.Redis) -> Callable[[], object]:
    """Let it follow a primary that isn't there, and serve what it has."""
    server: Any = client
    server.replicaof("127.0.0.1", 1)
    return lambda: server.replicaof("NO", "ONE")


def make_it_a_replica_without_primary(client: redis.Redis) -> Callable[[], object]:
    """Let it follow a primary that isn't there, and serve nothing."""
    server: Any = client
    server.config_set("replica-serve-stale-data", "no")
    return make_it_a_replica(client)


REFUSALS = [
    (revoke_the_password, "set user and password"),
    (take_the_rights, "give the Redis user what it needs"),
    (take_one_right, "give the Redis user what it needs"),
    (make_it_a_replica, "this is a replica"),
    (make_it_a_replica_without_primary, "this is a replica that has lost its primary"),
]


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("refuse", "advice"), REFUSALS, ids=lambda value: getattr(value, "__name__", ""))
def test_a_server_that_refuses_calls_for_a_while_causes_no_repeats(
    open_shop: OpenShop, refuse: Callable[[redis.Redis], Callable[[], object]], advice: str
) -> None:
    shop = open_shop(products=150, appendfsync="always")
    worker: Worker = shop.start("worker-1", LONG_TTL)

    shop.wait_until_fetched(0.2)
    serve_again = refuse(shop.server.client())
    worker.wait_for(advice)
    let_pass(2)
    serve_again()
    worker.ends(expects=advice)

    assert worker.process.log.count(advice) == 1
    assert worker.process.log.count("is available again") == 1
    shop.check_complete(repeated_at_most=0)
    assert shop.frontier.check_books() == shop.frontier.counts()["done"]
