"""The types of a frontier's keys, and the error if another program has written a key of another type."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from time import monotonic
from typing import Any

from scrapy_prioqueue.errors import WrongKeyType
from scrapy_prioqueue.frontier.redis.connection import Connection
from scrapy_prioqueue.frontier.redis.keys import Keys
from scrapy_prioqueue.frontier.redis.link import Command
from scrapy_prioqueue.frontier.redis.seen.subfilters import FILTER_TYPE
from scrapy_prioqueue.printable import text_of

TYPES: Mapping[str, str] = {
    **dict.fromkeys(("state", "stats", "pace", "turns", "leased", "lost", "alone", "refused", "dead"), "hash"),
    **dict.fromkeys(("sessions", "claims", "granted", "info", "work", "stops", "served", "kept", "slow"), "hash"),
    **dict.fromkeys(("limits", "delays", "running", "budgets", "used", "passes"), "hash"),
    **dict.fromkeys(("runs", "numbers", "history"), "hash"),
    **dict.fromkeys(("queue", "suspects", "ready", "delayed", "waiting", "leases", "died", "ended"), "zset"),
    **dict.fromkeys(("paced", "closed", "unsorted", "ordered", "ran"), "zset"),
    **dict.fromkeys(("workers", "busy", "hungry"), "zset"),
    **{"seen": "hash", "marks": "set", "counted": "set", "returning": "set", "scale": "list"},
}
"""Nouns of all keys of a frontier, and their types."""

MORE_TYPES: Mapping[str, Sequence[str]] = {"seen": ("set", "string", FILTER_TYPE)}
"""Further types of some nouns."""

MANY = frozenset({"queue", "seen", "served", "counted"})
"""Nouns with any number of keys; they are checked only after an error."""

SEARCH_S = 10.0
"""Time limit of a search among all keys of a server, in seconds."""


def has_wrong_type(noun: str, kind: str) -> bool:
    """Return whether a key of this noun can't have that type; "none" stands for a missing key."""
    return kind not in ("none", TYPES.get(noun, kind), *MORE_TYPES.get(noun, ()))


def type_questions(keys: Keys) -> Sequence[Command]:
    """Return commands for the types of a frontier's keys, without nouns with many keys."""
    return [("TYPE", name) for name in _single_keys(keys)]


def refuse_wrong_types(keys: Keys, answers: Iterable[Any]) -> None:
    """Raise an error if a key of a frontier has a wrong type; keys with unknown types are accepted.

    Args:
        answers: to `type_questions`.

    Raises:
        WrongKeyType: names the key.
    """
    _refuse(keys, _single_keys(keys), answers)


async def search_wrong_type(connection: Connection, *frontiers: Keys) -> None:
    """Search all keys of some frontiers for a wrong type, after the server has refused a command for that reason.

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
            raise WrongKeyType(text_of(name), kind.decode(), TYPES[noun])
