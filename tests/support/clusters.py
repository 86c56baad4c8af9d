"""Clusters of Redis servers for tests: three primaries and three replicas, hash slots that move, and failovers."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from redis.crc import key_slot
from redis_server import HOST, PORT_ATTEMPTS, RedisServerError

from tests.support.servers import RedisServer
from tests.support.waiting import wait_until

PRIMARIES = 3
NODES = 6
HASH_SLOTS = 16384

PORTS = range(20_000, 22_700)
"""Nodes talk to each other 10,000 above; that is below the ports of outgoing connections, too."""

WITHIN_S = 30.0

CONFIG: dict[str, Any] = {
    "cluster_enabled": True,
    "cluster_node_timeout": 1500,
    # A replica is promoted whatever the time that it has been without its primary.
    "cluster_replica_validity_factor": 0,
    "cluster_migration_barrier": NODES,
    "repl_diskless_sync_delay": 0,
}


class Cluster:
    """Six nodes, each of which is the primary of a third of the hash slots, or a replica of one.

    Args:
        nodes: servers in cluster mode that know nothing of each other.
    """

    def __init__(self, nodes: Sequence[RedisServer]) -> None:
        self.nodes = nodes
        self._ids = {node.port: call(node, "CLUSTER", "MYID").decode() for node in nodes}
        self._connect()

    @property
    def url(self) -> str:
        """What ``PRIOQUEUE_REDIS_URL`` takes, with all nodes."""
        return self.url_of(*self.nodes)

    def url_of(self, *nodes: RedisServer) -> str:
        """Return a URL that names only some nodes."""
        return f"redis+cluster://{','.join(f'{HOST}:{node.port}' for node in nodes)}"

    def primary_of(self, key: str) -> RedisServer:
        """Return the primary that has a key; waits until all nodes that live agree on it."""
        wait_until(lambda: len(self._views(key)) == 1, what=f"the nodes agree on where {key} is", within=WITHIN_S)
        (port,) = self._views(key)
        return self._node(port)

    def other_primary(self, key: str) -> RedisServer:
        """Return a primary that doesn't have a key."""
        return next(node for node in self.primaries() if node is not self.primary_of(key))

    def replica_of(self, primary: RedisServer) -> RedisServer:
        """Return the replica of a primary."""
        line, *_ = call(primary, "CLUSTER", "REPLICAS", self._ids[primary.port])
        return next(node for node in self.nodes if line.decode().startswith(self._ids[node.port]))

    def primaries(self) -> Sequence[RedisServer]:
        """Return all primaries, as a living node knows them."""
        found = call(self._living()[0], "CLUSTER", "SLOTS")
        return [self._node(port) for port in sorted({nodes[0][1] for _, _, *nodes in found})]

    def count_keys(self, key: str) -> int:
        """Return the number of keys in the hash slot of a key."""
        return int(call(self.primary_of(key), "CLUSTER", "COUNTKEYSINSLOT", key_slot(key.encode())))

    def begin_move(self, key: str, target: RedisServer) -> None:
        """Begin to move the hash slot of a key to another primary; no key moves yet."""
        source, slot = self.primary_of(key), key_slot(key.encode())
        call(target, "CLUSTER", "SETSLOT", slot, "IMPORTING", self._ids[source.port])
        call(source, "CLUSTER", "SETSLOT", slot, "MIGRATING", self._ids[target.port])

    def move_keys(self, key: str, target: RedisServer, most: int = 10**9) -> int:
        """Move keys of a hash slot that is moving; return how many."""
        source, slot, moved = self.primary_of(key), key_slot(key.encode()), 0
        while found := call(source, "CLUSTER", "GETKEYSINSLOT", slot, min(100, most - moved)):
            call(source, "MIGRATE", HOST, target.port, "", 0, 10_000, "KEYS", *found)
            moved += len(found)
            if moved >= most:
                break
        return moved

    def end_move(self, key: str, target: RedisServer) -> None:
        """Give a hash slot whose keys have moved to its new primary, as ``redis-cli --cluster reshard`` does."""
        source, slot = self.primary_of(key), key_slot(key.encode())
        for node in (target, source, *(node for node in self.primaries() if node not in (target, source))):
            call(node, "CLUSTER", "SETSLOT", slot, "NODE", self._ids[target.port])

    def move(self, key: str, target: RedisServer) -> None:
        """Move the hash slot of a key, with all keys in it, to another primary."""
        self.begin_move(key, target)
        self.move_keys(key, target)
        self.end_move(key, target)

    def wait_for_failover(self, key: str, old: RedisServer) -> RedisServer:
        """Wait until another primary than the old one serves a key, and return it."""

        def is_served() -> bool:
            ports = self._views(key, but=old)
            return len(ports) == 1 and old.port not in ports and all(self._serves(self._node(port)) for port in ports)

        wait_until(is_served, what=f"a failover of where {key} is", within=WITHIN_S)
        (port,) = self._views(key, but=old)
        return self._node(port)

    def mend(self) -> None:
        """Start the nodes that were killed, end moves, wait until all is well, and delete all keys."""
        self.restore()
        for primary in self.primaries():
            for slot in re.findall(rb"\[(\d+)-[<>]-", call(primary, "CLUSTER", "NODES")):
                call(primary, "CLUSTER", "SETSLOT", slot, "STABLE")
            call(primary, "FLUSHALL")

    def restore(self) -> None:
        """Start the nodes that were killed; wait until all see each other, replicas follow, and all know whom."""
        for node in self.nodes:
            if not node.is_running:
                node.start()
        wait_until(lambda: all(map(self._is_whole, self.nodes)), what="the cluster is whole", within=WITHIN_S)
        # Gossip tells a primary of its replica after the replica follows it.
        wait_until(lambda: len(set(map(_roles, self.nodes))) == 1, what="all nodes know all replicas", within=WITHIN_S)

    def _connect(self) -> None:
        for epoch, node in enumerate(self.nodes, 1):
            call(node, "CLUSTER", "SET-CONFIG-EPOCH", epoch)
        # All pairs, since gossip takes seconds.
        for at, node in enumerate(self.nodes):
            for other in self.nodes[:at]:
                call(node, "CLUSTER", "MEET", HOST, other.port)
        bounds = [HASH_SLOTS * number // PRIMARIES for number in range(PRIMARIES + 1)]
        for node, first, end in zip(self.nodes, bounds, bounds[1:], strict=False):
            # Redis before 7.0 has no ADDSLOTSRANGE.
            call(node, "CLUSTER", "ADDSLOTS", *range(first, end))
        for replica, primary in zip(self.nodes[PRIMARIES:], self.nodes, strict=False):
            self._make_replica(replica, self._ids[primary.port])
        self.restore()

    def _make_replica(self, replica: RedisServer, primary: str) -> None:
        wait_until(
            lambda: primary.encode() in call(replica, "CLUSTER", "NODES"), what="nodes have met", within=WITHIN_S
        )
        call(replica, "CLUSTER", "REPLICATE", primary)

    def _node(self, port: int) -> RedisServer:
        return next(node for node in self.nodes if node.port == port)

    def _living(self, *, but: RedisServer | None = None) -> Sequence[RedisServer]:
        return [node for node in self.nodes if node.is_running and node is not but]

    def _views(self, key: str, *, but: RedisServer | None = None) -> set[int]:
        slot = key_slot(key.encode())
        found = [each for node in self._living(but=but) for each in call(node, "CLUSTER", "SLOTS")]
        return {nodes[0][1] for first, last, *nodes in found if first <= slot <= last}

    def _serves(self, node: RedisServer) -> bool:
        return b"cluster_state:ok" in call(node, "CLUSTER", "INFO")

    def _is_whole(self, node: RedisServer) -> bool:
        lines = call(node, "CLUSTER", "NODES").decode().splitlines()
        are_seen = len(lines) == len(self.nodes) and all(" connected" in line and "fail" not in line for line in lines)
        replication = call(node, "INFO replication")
        return are_seen and self._serves(node) and (b"role:master" in replication or b"status:up" in replication)


def _roles(node: RedisServer) -> frozenset[tuple[str, str]]:
    """Return the ids of all nodes, each with that of its primary, as a node knows them."""
    lines = (line.split() for line in call(node, "CLUSTER", "NODES").decode().splitlines())
    return frozenset((id_, primary) for id_, _, _, primary, *_ in lines)


def call(node: RedisServer, *command: str | int | bytes) -> Any:
    """Run a command on a node and return its reply as it is."""
    return node.client().execute_command(*command)  # type: ignore[no-untyped-call]


StartCluster = Callable[..., Cluster]
"""Starts a cluster; the keywords are directives of all nodes."""


@contextmanager
def clusters(directory: Path) -> Iterator[StartCluster]:
    """Yield a function that starts clusters in folders below the given one; all nodes are killed at the end."""
    with ExitStack() as nodes:

        def start_node(number: int, **config: Any) -> RedisServer:
            for left in reversed(range(PORT_ATTEMPTS)):
                port = random.SystemRandom().choice(PORTS)
                node = RedisServer(directory / f"node-{number}-{port}", port, **config)
                nodes.callback(node.kill)
                try:
                    node.start()
                except RedisServerError:
                    if not left:
                        raise
                else:
                    return node
            raise AssertionError

        def start(**config: Any) -> Cluster:
            return Cluster([start_node(number, **{**CONFIG, **config}) for number in range(NODES)])

        yield start
