"""Where the server is, if Sentinels or the nodes of a cluster know it; each new connection asks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Any, cast

from redis import ConnectionPool, Redis
from redis.connection import AbstractConnection
from redis.crc import key_slot
from redis.exceptions import ClusterDownError, MovedError, RedisError, ResponseError
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.sentinel import Sentinel

from scrapy_prioqueue.address import Address, Host
from scrapy_prioqueue.frontier.redis.options import blocking_options, sentinel_options

ANSWER_S = 1.0
"""Longest time-out of a Sentinel or a node of a cluster, in seconds; then another one is asked."""


class Locator(ABC):
    """Knows whom to ask where the server is.

    Its calls block; threads may share it.
    """

    @abstractmethod
    def locate(self) -> Host:
        """Return where the server is now.

        Raises:
            RedisError: nobody answers, or there is none now.
        """


class SentinelLocator(Locator):
    """Asks Sentinels for the primary with this name.

    Args:
        options: of connections to Sentinels.
    """

    def __init__(self, hosts: Sequence[Host], primary: str, options: Mapping[str, Any]) -> None:
        self._lock = Lock()
        self._sentinel = Sentinel(hosts, sentinel_kwargs=dict(options))  # type: ignore[no-untyped-call]
        self._primary = primary

    def locate(self) -> Host:
        sentinels = self._sentinel.sentinels
        with self._lock:
            # Another one is asked first each time, since one that is cut off from the others may be mistaken.
            sentinels.append(sentinels.pop(0))
            try:
                host, port = self._sentinel.discover_master(self._primary)  # type: ignore[no-untyped-call]
            finally:
                for client in sentinels:
                    client.connection_pool.disconnect()
        return str(host), int(port)


@dataclass(frozen=True)
class FixedLocator(Locator):
    """Knows the address."""

    host: Host

    def locate(self) -> Host:
        return self.host


class ClusterLocator(Locator):
    """Asks nodes of a cluster for the primary that has a hash slot.

    Args:
        hosts: of some of the nodes; the others are known from their answers.
        options: of connections to nodes.
        slot: None for any node.
    """

    def __init__(self, hosts: Sequence[Host], options: Mapping[str, Any], slot: int | None = None) -> None:
        self._lock = Lock()
        self._named, self._known = list(hosts), list(hosts)
        self._options = options
        self._slot = slot
        self._others: dict[int, ClusterLocator] = {}

    @property
    def has_slot(self) -> bool:
        """Whether it looks for one hash slot."""
        return self._slot is not None

    def learn(self, error: BaseException) -> None:
        """If this is a ``MOVED``, ask the node that it names next, which may know more than others."""
        host = (error.host, int(error.port)) if isinstance(error, MovedError) else ("", 0)
        if not host[0]:
            return
        with self._lock:
            self._known = [host, *(known for known in self._known if known != host)]

    def at(self, key: str) -> ClusterLocator:
        """Return the one for the hash slot of a key, always the same one."""
        slot = key_slot(key.encode())
        if slot == self._slot:
            return self
        return self._others.setdefault(slot, ClusterLocator(self._named, self._options, slot))

    def locate(self) -> Host:
        with self._lock:
            ranges = self._ranges()
        for first, last, primary in ranges:
            if self._slot is None or first <= self._slot <= last:
                return primary
        raise ClusterDownError(f"CLUSTERDOWN no node has hash slot {self._slot}")

    def primaries(self) -> Sequence[Host]:
        """Return where the primaries are, of all hash slots.

        Raises:
            RedisError: nobody answers.
        """
        with self._lock:
            return sorted({primary for _, _, primary in self._ranges()})

    def _ranges(self) -> Sequence[tuple[int, int, Host]]:
        errors = []
        for asked in list(self._known):
            # Another one is asked first next time, since one that is cut off from the others may be mistaken.
            self._known.remove(asked)
            self._known.append(asked)
            try:
                found = _ask_for_slots(asked, self._options)
            except (RedisError, OSError) as error:
                errors.append(error)
                continue
            nodes = [_host_of(node, asked) for _, _, *nodes in found for node in nodes]
            living = dict.fromkeys([*nodes, *self._named])
            self._known = [*(known for known in self._known if known in living), *(living.keys() - set(self._known))]
            return [(first, last, _host_of(nodes[0], asked)) for first, last, *nodes in found]
        refusals = [error for error in errors if isinstance(error, ResponseError)]
        if refusals:
            # Why the others don't answer is no reason to look elsewhere.
            raise refusals[0]
        why = "; ".join(dict.fromkeys(map(str, errors)))
        raise RedisConnectionError(f"no node of the cluster answers: {why}")


def _ask_for_slots(asked: Host, options: Mapping[str, Any]) -> Any:
    pool = ConnectionPool(**{**options, "host": asked[0], "port": asked[1]})
    try:
        return Redis(connection_pool=pool).execute_command("CLUSTER", "SLOTS")  # type: ignore[no-untyped-call]
    finally:
        pool.disconnect()


def _host_of(node: Sequence[Any], asked: Host) -> Host:
    """Return the address of a node; one without a name is at that of the node that was asked."""
    name, port, *_ = node
    return name.decode() if name and name != b"?" else asked[0], int(port)


def locator_of(address: Address, options: Mapping[str, Any], timeout_s: float) -> Locator | None:
    """Return who knows where the server is, None if the URL says it.

    Args:
        options: the user's.
        timeout_s: time-out of each answer; more than `ANSWER_S` has no effect.
    """
    answer_s = min(timeout_s, ANSWER_S)
    if address.kind == "sentinel":
        return SentinelLocator(address.hosts, address.primary, sentinel_options(address, options, answer_s))
    if address.kind == "cluster":
        times = {"socket_timeout": answer_s, "socket_connect_timeout": answer_s}
        return ClusterLocator(address.hosts, {**blocking_options(address, options, answer_s), **times})
    return None


def located(kind: type[AbstractConnection], locator: Locator) -> type[AbstractConnection]:
    """Return a class of blocking connections each of which asks where the server is before it connects."""

    class LocatedConnection(kind):  # type: ignore[misc, valid-type]
        def connect(self) -> None:
            if self._sock is None:
                self.host, self.port = locator.locate()
            super().connect()

    return cast(type[AbstractConnection], LocatedConnection)
