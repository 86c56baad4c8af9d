"""Which type each key of a frontier has, and what happens where another program has written one of another type."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from time import monotonic
from typing import Any

from redis.asyncio import Redis

from scrapy_prioqueue.errors import FrontierUnavailable, WrongKeyType
from scrapy_prioqueue.frontier.redis.connection import Connection
from scrapy_prioqueue.frontier.redis.keys import Keys
from scrapy_prioqueue.frontier.redis.layers import FILTER_TYPE
from scrapy_prioqueue.frontier.redis.link import Link
from scrapy_prioqueue.frontier.redis.troubles import is_forbidden

TYPES: Mapping[str, str] = {
    **dict.fromkeys(("state", "stats", "pace", "turns", "leased", "lost", "alone", "refused", "dead"), "hash"),
    **dict.fromkeys(("sessions", "claims", "info", "work", "stops", "served", "kept", "slow"), "hash"),
    **dict.fromkeys(("limits", "delays", "running", "budgets", "used", "passes"), "hash"),
    **dict.fromkeys(("queue", "suspects", "ready", "delayed", "waiting", "leases", "died", "ended"), "zset"),
    **dict.fromkeys(("paced", "closed", "unsorted"), "zset"),
    **dict.fromkeys(("workers", "busy", "hungry"), "zset"),
    **{"seen": "hash", "marks": "set", "counted": "set", "returning": "set"},
}
"""Nouns of the keys that a frontier may have, and their types."""

MORE_TYPES: Mapping[str, Sequence[str]] = {"seen": ("set", "string", FILTER_TYPE)}
"""Types that some of them have in other cases."""

MANY = frozenset({"queue", "seen", "served", "counted"})
"""Nouns of which a frontier has any number of keys; they are looked at only after an error."""

SEARCH_S = 10.0
"""Seconds that a search among all keys of a server may take."""


def has_wrong_type(noun: str, kind: str) -> bool:
    """Return whether no key of this noun has that type; "none" stands for a key that isn't there."""
    return kind not in ("none", TYPES.get(noun, kind), *MORE_TYPES.get(noun, ()))


async def check_key_types(connection: Connection, keys: Keys) -> None:
    """Refuse a frontier of which a key has another type; those of which there may be many are left out.

    Raises:
        WrongKeyType: names the key.
    """
    names = _single_keys(keys)
    try:
        found = await connection.ask(partial(_types, names=names))
    except FrontierUnavailable as error:
        if is_forbidden(error.__cause__):
            return
        raise
    _refuse(keys, zip(names, found, strict=True))


def check_key_types_by(link: Link, keys: Keys) -> None:
    """Do the same for programs that are no workers; it blocks.

    Raises:
        WrongKeyType: names the key.
    """
    names = _single_keys(keys)
    found = link.attempt(*(("TYPE", name) for name in names))
    _refuse(keys, ((name, kind) for name, kind in zip(names, found, strict=True) if isinstance(kind, bytes)))


async def search_wrong_type(connection: Connection, *frontiers: Keys) -> None:
    """Search all keys of some frontiers for one of another type, after the server has refused a command for that.

    Raises:
        WrongKeyType: names the key.
    """
    until = monotonic() + SEARCH_S
    for keys in frontiers:
        await check_key_types(connection, keys)
    for keys in frontiers:
        async for names in connection.scan(keys.pattern()):
            found = await connection.ask(partial(_types, names=names))
            _refuse(keys, zip(names, found, strict=True))
            if monotonic() > until:
                return


def _single_keys(keys: Keys) -> list[bytes]:
    return [keys.of(noun).encode() for noun in TYPES if noun not in MANY]


async def _types(client: Redis, *, names: Iterable[bytes]) -> Any:
    pipeline = client.pipeline(transaction=False)
    for name in names:
        pipeline.type(name)
    return await pipeline.execute()


def _refuse(keys: Keys, found: Iterable[tuple[bytes, bytes]]) -> None:
    for name, kind in found:
        noun = keys.noun(name)
        if has_wrong_type(noun, kind.decode()):
            raise WrongKeyType(name.decode("utf-8", "backslashreplace"), kind.decode(), TYPES[noun])
