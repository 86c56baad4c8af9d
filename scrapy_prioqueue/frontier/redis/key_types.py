"""Which type each key of a frontier has, and what happens where another program has written one of another type."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from time import monotonic
from typing import Any

from scrapy_prioqueue.errors import WrongKeyType
from scrapy_prioqueue.frontier.redis.connection import Connection
from scrapy_prioqueue.frontier.redis.keys import Keys
from scrapy_prioqueue.frontier.redis.link import Command, Link
from scrapy_prioqueue.frontier.redis.seen.layers import FILTER_TYPE

TYPES: Mapping[str, str] = {
    **dict.fromkeys(("state", "stats", "pace", "turns", "leased", "lost", "alone", "refused", "dead"), "hash"),
    **dict.fromkeys(("sessions", "claims", "granted", "info", "work", "stops", "served", "kept", "slow"), "hash"),
    **dict.fromkeys(("limits", "delays", "running", "budgets", "used", "passes"), "hash"),
    **dict.fromkeys(("queue", "suspects", "ready", "delayed", "waiting", "leases", "died", "ended"), "zset"),
    **dict.fromkeys(("paced", "closed", "unsorted", "ordered"), "zset"),
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


def type_questions(keys: Keys) -> Sequence[Command]:
    """Return commands for the types of a frontier's keys; those of which there may be many are left out."""
    return [("TYPE", name) for name in _single_keys(keys)]


def refuse_wrong_types(keys: Keys, answers: Iterable[Any]) -> None:
    """Refuse a frontier of which a key has another type; what the server doesn't say is taken for right.

    Args:
        answers: to `type_questions`.

    Raises:
        WrongKeyType: names the key.
    """
    _refuse(keys, _single_keys(keys), answers)


def check_key_types_by(link: Link, keys: Keys) -> None:
    """Do both for programs that are no workers; it blocks.

    Raises:
        WrongKeyType: names the key.
    """
    refuse_wrong_types(keys, link.attempt(*type_questions(keys)))


async def search_wrong_type(connection: Connection, *frontiers: Keys) -> None:
    """Search all keys of some frontiers for one of another type, after the server has refused a command for that.

    Raises:
        WrongKeyType: names the key.
    """
    until = monotonic() + SEARCH_S
    for keys in frontiers:
        refuse_wrong_types(keys, await connection.attempt(*type_questions(keys)))
    for keys in frontiers:
        async for names in connection.scan(keys.pattern()):
            _refuse(keys, names, await connection.attempt(*(("TYPE", name) for name in names)))
            if monotonic() > until:
                return


def _single_keys(keys: Keys) -> list[bytes]:
    return [keys.of(noun).encode() for noun in TYPES if noun not in MANY]


def _refuse(keys: Keys, names: Iterable[bytes], kinds: Iterable[Any]) -> None:
    for name, kind in zip(names, kinds, strict=True):
        noun = keys.noun(name)
        if isinstance(kind, bytes) and has_wrong_type(noun, kind.decode()):
            raise WrongKeyType(name.decode("utf-8", "backslashreplace"), kind.decode(), TYPES[noun])
