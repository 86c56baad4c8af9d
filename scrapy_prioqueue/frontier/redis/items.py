"""Scraped items in Redis: appends several to lists or streams in one round trip."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from redis.exceptions import RedisError

from scrapy_prioqueue.errors import FrontierUnavailable
from scrapy_prioqueue.frontier.redis.connection import Connection
from scrapy_prioqueue.frontier.redis.keys import connection_name
from scrapy_prioqueue.frontier.redis.link import Command
from scrapy_prioqueue.frontier.redis.troubles import is_displaced, is_forbidden, is_of_wrong_type

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
    """

    def __init__(self, url: str, *, timeout_s: float, options: Mapping[str, Any], as_stream: bool, spider: str) -> None:
        name = connection_name(spider, "items")
        self._connection = Connection(url, timeout_s=timeout_s, options=options, name=name)
        self._nodes: dict[str, Connection] = {}
        self._as_stream = as_stream
        self.address = self._connection.address

    async def append(self, entries: Sequence[ItemData]) -> Sequence[Exception | None]:
        """Append entries in order; return for each the error, None if it was appended.

        Repeat entries with errors, except `ItemTooLarge`. An entry with another error may have been appended already.
        """
        found: list[Exception | None] = [self._too_large(entry) for entry in entries]
        by_node: dict[Connection, list[tuple[Command, Sequence[int]]]] = {}
        for command, indexes in self._commands(entries, [index for index, error in enumerate(found) if error is None]):
            by_node.setdefault(self._node(str(command[1])), []).append((command, indexes))
        for node, part in by_node.items():
            errors = await self._errors(node, [command for command, _ in part])
            for (command, indexes), error in zip(part, errors, strict=True):
                for index in indexes:
                    found[index] = error and self._explained(node, error, str(command[1]))
        return found

    def _node(self, key: str) -> Connection:
        """Return the connection to the node of a cluster that has a key; else the only one."""
        if not self._connection.in_cluster:
            return self._connection
        return self._nodes.setdefault(key, self._connection.at(key))

    def _too_large(self, entry: ItemData) -> ItemTooLarge | None:
        limit = self._node(entry.key).argument_limit
        if len(entry.data) <= limit:
            return None
        return ItemTooLarge(
            f"its {len(entry.data)} bytes are more than the server accepts (proto-max-bulk-len = {limit})"
        )

    async def _errors(self, node: Connection, commands: Sequence[Command]) -> Sequence[Exception | None]:
        try:
            answers = await node.replies(*commands)
        except FrontierUnavailable as error:
            return [ConnectionError(f"{AWAY}: {error.why}")] * len(commands)
        return [answer if isinstance(answer, RedisError) else None for answer in answers]

    def _commands(self, entries: Sequence[ItemData], indexes: Iterable[int]) -> Iterator[tuple[Command, Sequence[int]]]:
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
