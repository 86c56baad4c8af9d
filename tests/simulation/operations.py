"""The operations in the arguments of a `commit` call, as its header describes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from scrapy_prioqueue.frontier.redis.scripts import Argument

FIRST = 6
"""Where they begin; the script counts from 1."""

LENGTHS = {"P": 8, "C": 10, "A": 4, "R": 3, "F": 7}


class Store(NamedTuple):
    """A push or a claim; `place` is its index in the batch.

    Args:
        key: id of the lease that is claimed, empty if there is none; None for a push.
        attempts: of the lease that is claimed.
    """

    place: int
    payload: str
    is_filtered: bool
    mark: Argument
    is_delayed: bool = False
    key: bytes | None = None
    attempts: int = 0


class Finish(NamedTuple):
    """An ack ("A"), a release ("R") or a fail ("F")."""

    place: int
    letter: str
    key: bytes
    attempts: int


@dataclass
class Operations:
    """All operations of a batch."""

    stores: list[Store] = field(default_factory=list)
    each_finish: list[Finish] = field(default_factory=list)

    @property
    def claims(self) -> set[bytes]:
        """Ids of the leases that are claimed."""
        return {store.key for store in self.stores if store.key}

    @property
    def finishes(self) -> Mapping[tuple[bytes, int], str]:
        """Letters by id and attempt."""
        return {(finish.key, finish.attempts): finish.letter for finish in self.each_finish}


def operations_of(arguments: Sequence[Argument]) -> Operations:
    """Return the operations of a call."""
    found = Operations()
    at, index = FIRST, 0
    while at < len(arguments):
        letter = str(arguments[at])
        if letter in "PC":
            _, _, _, payload, fingerprint, mark, delay = arguments[at + 1 : at + 8]
            assert isinstance(payload, bytes)
            key, attempts = arguments[at + 8 : at + 10] if letter == "C" else (None, 0)
            assert key is None or isinstance(key, bytes)
            found.stores.append(
                Store(index, payload.decode(), fingerprint not in ("", b""), mark, delay != "", key, int(attempts))
            )
        else:
            key, attempts = arguments[at + 1 : at + 3]
            assert isinstance(key, bytes)
            found.each_finish.append(Finish(index, letter, key, int(attempts)))
        at, index = at + LENGTHS[letter], index + 1
    return found
