"""Scraped items in Redis: appends several to lists or streams in one round trip."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from redis.exceptions import RedisError

from scrapy_prioqueue.errors import FrontierUnavailable
from scrapy_prioqueue.frontier.redis.connection import Connection
from scrapy_prioqueue.frontier.redis.keys import connection_name
from scrapy_prioqueue.frontier.redis.scripts import Argument
from scrapy_prioqueue.frontier.redis.troubles import is_displaced, is_forbidden, is_of_wrong_type, lacking_replicas

STREAM_FIELD = "item"
"""Field of a stream entry that contains the item."""

AWAY = "the server can't be used"


@dataclass(frozen=True, slots=True)
class ItemData:
    """A serialized item.

    Args:
        key: of a list or a stream.
        data: the serialized item.
    """

    key: str
    data: bytes


class ItemTooLarge(Exception):
    """The server accepts no argument of this size."""


class ItemRefused(Exception):
    """The server doesn't accept an item now."""


class RedisItems:
    """Appends items to lists or streams of a server.

    Args:
        as_stream: whether the keys are streams.
        spider: name of the spider, for the name of the connection.
        wait_replicas: replicas that must have an item before it counts as appended.
    """

    def __init__(
        self,
        url: str,
        *,
        timeout_s: float,
        options: Mapping[str, Any],
        as_stream: bool,
        spider: str,
        wait_replicas: int = 0,
    ) -> None:
        name = connection_name(spider, "items")
        self._connection = Connection(url, timeout_s=timeout_s, options=options, name=name)
        self._nodes: dict[str, Connection] = {}
        self._as_stream = as_stream
        self._wait_replicas = wait_replicas
        self._unconfirmed: dict[int, tuple[ItemData, object]] = {}
        """Entries that too few replicas have, by their ids, each with the connection that appended it."""
        self.address = self._connection.address

    async def append(self, entries: Sequence[ItemData]) -> Sequence[Exception | None]:
        """Append entries in order; return for each the error, None if it was appended.

        Repeat entries with errors, except `ItemTooLarge`. An entry with another error may have been appended already.
        """
        found: list[Exception | None] = [self._too_large(entry) for entry in entries]
        by_node: dict[Connection, list[int]] = {}
        for index, entry in enumerate(entries):
            if found[index] is None:
                by_node.setdefault(self._node(entry.key), []).append(index)
        for node, indexes in by_node.items():
            for index, error in (await self._append(node, entries, indexes)).items():
                found[index] = error
        return found

    def _node(self, key: str) -> Connection:
        """Return the connection to the node of a cluster that has a key; else the only one."""
        if not self._connection.in_cluster:
            return self._connection
        if key not in self._nodes:
            self._nodes[key] = self._connection.at(key)
        return self._nodes[key]

    def _too_large(self, entry: ItemData) -> ItemTooLarge | None:
        limit = self._node(entry.key).argument_limit
        if len(entry.data) <= limit:
            return None
        return ItemTooLarge(
            f"its {len(entry.data)} bytes are more than the server accepts (proto-max-bulk-len = {limit})"
        )

    async def _append(
        self, node: Connection, entries: Sequence[ItemData], indexes: Sequence[int]
    ) -> Mapping[int, Exception | None]:
        sent: list[tuple[Sequence[Argument], Sequence[int]]] = []
        used: list[object] = []

        def commands(connection: object) -> Sequence[Sequence[Argument]]:
            # What this connection has appended is not repeated: it only waits for the replicas again.
            fresh = [index for index in indexes if self._appended_by(entries[index]) is not connection]
            sent[:], used[:] = self._commands(entries, fresh), [connection]
            return [command for command, _ in sent]

        try:
            replies = await node.write(commands, wait_replicas=self._wait_replicas)
        except FrontierUnavailable as error:
            return dict.fromkeys(indexes, ConnectionError(f"{AWAY}: {error.why}"))
        found: dict[int, Exception | None] = dict.fromkeys(indexes)
        for (command, own), reply in zip(sent, replies, strict=False):
            if isinstance(reply, RedisError):
                found.update(dict.fromkeys(own, self._explained(node, reply, str(command[1]))))
        shortage = self._shortage(node, replies[-1]) if self._wait_replicas else None
        for index in (index for index, error in found.items() if error is None):
            found[index] = shortage
            if shortage is None:
                self._unconfirmed.pop(id(entries[index]), None)
            else:
                self._unconfirmed[id(entries[index])] = entries[index], used[0]
        return found

    def _appended_by(self, entry: ItemData) -> object:
        return self._unconfirmed.get(id(entry), (None, None))[1]

    def _shortage(self, node: Connection, reply: Any) -> Exception | None:
        """Return an error if too few replicas have what was appended."""
        if isinstance(reply, RedisError):
            return ItemRefused(node.unavailable(reply).why)
        if reply >= self._wait_replicas:
            return None
        return ItemRefused(lacking_replicas(reply, self._wait_replicas, "items"))

    def _commands(
        self, entries: Sequence[ItemData], indexes: Iterable[int]
    ) -> Iterator[tuple[Sequence[Argument], Sequence[int]]]:
        if self._as_stream:
            for index in indexes:
                yield ("XADD", entries[index].key, "*", STREAM_FIELD, entries[index].data), [index]
            return
        by_key: dict[str, list[int]] = {}
        for index in indexes:
            by_key.setdefault(entries[index].key, []).append(index)
        for key, found in by_key.items():
            yield ("RPUSH", key, *(entries[index].data for index in found)), found

    def _explained(self, node: Connection, error: Exception, key: str) -> Exception:
        kind, command = ("stream", "xadd") if self._as_stream else ("list", "rpush")
        if is_of_wrong_type(error):
            return TypeError(f"the key {key} is no {kind}: rename or delete it, or set REDIS_ITEMS_KEY")
        if is_forbidden(error):
            return PermissionError(f"{error}; give the Redis user access: ACL SETUSER <user> ~{key} +{command}")
        if isinstance(error, RedisError):
            why = node.unavailable(error).why
            return ConnectionError(f"{AWAY}: {why}") if is_displaced(error) else ItemRefused(why)
        return error

    async def close(self) -> None:
        """Close the connections."""
        for connection in (self._connection, *self._nodes.values()):
            await connection.close()
