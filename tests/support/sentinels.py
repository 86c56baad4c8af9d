"""Three Sentinels, and the servers that they watch: a primary and replicas, all on loopback."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import redis
from redis.sentinel import Sentinel
from redis_server import HOST

from tests.support.servers import RedisServer, server_fleet
from tests.support.waiting import wait_until

PRIMARY = "books"
"""Name under which the Sentinels know the primary."""

SENTINELS, QUORUM = 3, 2
DOWN_AFTER_MS, FAILOVER_TIMEOUT_MS = 1000, 4000

WITHIN_S = 30.0


class SentinelServer(RedisServer):
    """A Sentinel."""

    ready_line = "Sentinel ID is"
    arguments = ("--sentinel",)


class Watched:
    """Servers and the Sentinels that watch them.

    Args:
        servers: the first primary and its replicas.
        sentinels: all of them.
        server_options: keyword arguments of clients of the servers, besides host and port.
        sentinel_options: likewise of the Sentinels.
    """

    def __init__(
        self,
        servers: Sequence[RedisServer],
        sentinels: Sequence[SentinelServer],
        *,
        server_options: Mapping[str, Any],
        sentinel_options: Mapping[str, Any],
    ) -> None:
        self.servers = servers
        self.sentinels = sentinels
        self._server_options = server_options
        self._sentinel_options = sentinel_options

    @property
    def hosts(self) -> Sequence[tuple[str, int]]:
        """The addresses of the Sentinels."""
        return [(HOST, sentinel.port) for sentinel in self.sentinels]

    @property
    def url(self) -> str:
        """What ``PRIOQUEUE_REDIS_URL`` takes, without passwords."""
        hosts = ",".join(f"{host}:{port}" for host, port in self.hosts)
        return f"redis+sentinel://{hosts}/{PRIMARY}/0"

    def client(self) -> redis.Redis:
        """Return a client of the primary; after a failover its next new connection leads to the new one."""
        options = {"socket_timeout": 5.0, **self._sentinel_options}
        sentinel: Any = Sentinel(self.hosts, sentinel_kwargs=options)  # type: ignore[no-untyped-call]
        client: redis.Redis = sentinel.master_for(PRIMARY, socket_timeout=10.0, **self._server_options)
        return client

    def sentinel_client(self, index: int) -> Any:
        """Return a client of one Sentinel, whose replies are text."""
        port = self.sentinels[index].port
        return redis.Redis(HOST, port, socket_timeout=5.0, decode_responses=True, protocol=2, **self._sentinel_options)

    def server_client(self, server: RedisServer) -> Any:
        """Return a client of one server."""
        return redis.Redis(HOST, server.port, socket_timeout=10.0, protocol=2, **self._server_options)

    def primary_by(self, index: int) -> RedisServer:
        """Return the primary by what one Sentinel says."""
        _, port = self.sentinel_client(index).execute_command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", PRIMARY)
        return self._server_at(int(port))

    def _server_at(self, port: int) -> RedisServer:
        return next(server for server in self.servers if server.port == port)

    @property
    def primary(self) -> RedisServer:
        """The primary by what most of the running Sentinels say."""
        said = [self.primary_by(index).port for index, each in enumerate(self.sentinels) if each.is_running]
        return self._server_at(max(said, key=said.count))

    @property
    def replicas(self) -> Sequence[RedisServer]:
        """The other servers."""
        primary = self.primary
        return [server for server in self.servers if server is not primary]

    def order_failover(self) -> None:
        """Make one Sentinel promote a replica, although nothing is wrong with the primary."""
        order_failover(self.sentinel_client(0))

    def wait_for_promotion(self, instead_of: RedisServer) -> RedisServer:
        """Wait until all running Sentinels know another primary; return it."""

        def promoted() -> RedisServer | None:
            said = {self.primary_by(index) for index, each in enumerate(self.sentinels) if each.is_running}
            return said.pop() if len(said) == 1 and instead_of not in said else None

        found = wait_until(promoted, what="all Sentinels know the new primary", within=WITHIN_S)
        assert found is not None
        return found

    def wait_until_whole(self, within: float = WITHIN_S) -> None:
        """Wait until all servers but one are replicas of that one and follow it, and all Sentinels know that."""
        wait_until(self._is_whole, what="all replicas follow, and all Sentinels know it", within=within)

    def _is_whole(self) -> bool:
        try:
            are_known = all(self._knows_all(self.sentinel_client(index)) for index in range(len(self.sentinels)))
            return are_known and all(self._follows(server) for server in self.replicas)
        except redis.ConnectionError:
            # One of them is not there yet.
            return False

    def _knows_all(self, sentinel: Any) -> bool:
        primary = sentinel.sentinel_masters()[PRIMARY]
        replicas = [each for each in sentinel.sentinel_slaves(PRIMARY) if each["flags"] == "slave"]
        is_complete = primary["flags"] == "master" and primary["num-other-sentinels"] == len(self.sentinels) - 1
        return is_complete and [each["master-link-status"] for each in replicas] == ["ok"] * (len(self.servers) - 1)

    def _follows(self, server: RedisServer) -> bool:
        replication = self.server_client(server).info("replication")
        where = replication["role"], replication.get("master_port"), replication.get("master_link_status")
        return where == ("slave", self.primary.port, "up")


class StartSentinels:
    """Starts Sentinels and servers in folders below the given one.

    Args:
        ends: ends all of them.
    """

    def __init__(self, directory: Path, ends: ExitStack) -> None:
        self._directory = directory
        self._ends = ends
        self._numbers = count(1)
        self._start_server = ends.enter_context(server_fleet(directory))

    def __call__(
        self,
        *,
        replicas: int = 2,
        server_config: Mapping[str, Any] | None = None,
        sentinel_config: Mapping[str, Any] | None = None,
        server_options: Mapping[str, Any] | None = None,
        sentinel_options: Mapping[str, Any] | None = None,
    ) -> Watched:
        """Start three Sentinels, a primary and replicas, and wait until they know each other.

        Args:
            replicas: number of replicas.
            server_config: directives of the servers.
            sentinel_config: directives of the Sentinels, such as `{"sentinel auth-pass books": "secret"}`.
            server_options: keyword arguments of clients of the servers, besides host and port.
            sentinel_options: likewise of the Sentinels.
        """
        config = {"repl-diskless-sync-delay": 0, **(server_config or {})}
        primary = self._start_server(**config)
        link = {"replicaof": f"{HOST} {primary.port}", **config}
        servers = [primary, *(self._start_server(**link) for _ in range(replicas))]
        about = {
            f"sentinel monitor {PRIMARY}": f"{HOST} {primary.port} {QUORUM}",
            f"sentinel down-after-milliseconds {PRIMARY}": DOWN_AFTER_MS,
            f"sentinel failover-timeout {PRIMARY}": FAILOVER_TIMEOUT_MS,
            **(sentinel_config or {}),
        }
        sentinels = [self._start_sentinel(**about) for _ in range(SENTINELS)]
        watched = Watched(
            servers, sentinels, server_options=server_options or {}, sentinel_options=sentinel_options or {}
        )
        watched.wait_until_whole()
        return watched

    def _start_sentinel(self, **config: Any) -> SentinelServer:
        sentinel = SentinelServer(self._directory / f"sentinel-{next(self._numbers)}", **config)
        self._ends.callback(sentinel.kill)
        sentinel.start()
        return sentinel


@contextmanager
def sentinel_fleet(directory: Path) -> Iterator[StartSentinels]:
    """Yield what starts Sentinels and servers; all are killed at the end."""
    with ExitStack() as ends:
        yield StartSentinels(directory, ends)


def order_failover(client: Any) -> None:
    """Make a Sentinel promote a replica as soon as it finds one good enough, whose answers must not be late."""

    def is_accepted() -> bool:
        try:
            return bool(client.execute_command("SENTINEL", "FAILOVER", PRIMARY))
        except redis.ResponseError as error:
            if "NOGOODSLAVE" not in str(error):
                raise
            return False

    wait_until(is_accepted, what="the Sentinel begins a failover", within=WITHIN_S)
