"""Redis servers for tests: that of the example project with a client and a fleet of them that is killed at the end."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import redis
import redis_server

from tests.support.waiting import wait_until


class RedisServer(redis_server.RedisServer):
    """A server that hands out clients."""

    def client(self) -> redis.Redis:
        """Return a new client that gives bytes; a reply that takes 10 s is an error, so that no test hangs."""
        return redis.Redis.from_url(self.url, socket_timeout=10.0, **self._certificates())

    def _certificates(self) -> Mapping[str, Any]:
        """Return options of a client that shows the server's own certificate."""
        names = {"ssl_certfile": "tls_cert_file", "ssl_keyfile": "tls_key_file", "ssl_ca_certs": "tls_ca_cert_file"}
        found = {name: self.config[directive] for name, directive in names.items() if directive in self.config}
        return {**found, "ssl_check_hostname": False} if found else {}


StartServer = Callable[..., RedisServer]
"""Starts a server on a free port; the keywords are those of `redis_server.RedisServer`."""


@contextmanager
def server_fleet(directory: Path) -> Iterator[StartServer]:
    """Yield a function that starts servers in folders below the given one; all are killed at the end."""
    with ExitStack() as servers:
        numbers = count(1)

        def start(**config: Any) -> RedisServer:
            server = RedisServer(directory / f"redis-{next(numbers)}", **config)
            servers.callback(server.kill)
            server.start()
            return server

        yield start


def replica_of(primary: RedisServer, start: StartServer, **config: Any) -> RedisServer:
    """Start a replica and wait until it confirms what is written."""
    client: Any = primary.client()
    client.config_set("repl-diskless-sync-delay", 0)
    replica = start(replicaof=f"{redis_server.HOST} {primary.port}", **config)
    client.set("written-for-the-replica", 1)
    client.delete("written-for-the-replica")
    wait_until(lambda: client.wait(1, 100), what="the replica follows", within=20)
    return replica


def link_status(replica: RedisServer) -> str:
    """Return what a replica says of the connection to its primary: "up" or "down"."""
    info: Any = replica.client().info("replication")
    return str(info["master_link_status"])
