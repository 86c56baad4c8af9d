"""The interface to seeds: entries that other programs push to plain keys, as one worker takes them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Seed:
    """An entry that this worker has taken.

    Args:
        key: where it came from.
        token: what it is known by until it is settled.
        data: as it was pushed.
    """

    key: str
    token: str
    data: bytes


@dataclass(frozen=True, slots=True)
class Taken:
    """The answer to one round.

    Args:
        seeds: in the order in which they were taken.
        sees_more: there may be more to take, now or when other workers have settled what they have taken or are given
            up: the crawl must not end.
        given_back: entries of lost workers, and of an earlier process under this worker's id, that are to be taken
            again.
        wrong_types: type of each key that is neither list, set nor sorted set.
    """

    seeds: Sequence[Seed] = ()
    sees_more: bool = False
    given_back: int = 0
    wrong_types: Mapping[str, str] = field(default_factory=dict)


class SeedStore(ABC):
    """The keys of seeds, best first, as one worker sees them.

    An entry that is taken is kept under the worker's id until it is settled, so that no kill loses it.
    The methods are coroutines; `FrontierUnavailable` and `FrontierFull` may be raised by each of them, and a call that
    failed may be made again.
    """

    @abstractmethod
    async def exchange(self, settled: Sequence[Seed], limit: int) -> Taken:
        """Drop what is settled, then take up to `limit` entries from the best keys that have any.

        With a `limit` of 0 nothing is known of whether there is more.
        """

    @abstractmethod
    async def leave(self, settled: Sequence[Seed]) -> int:
        """Drop what is settled and give back all else that this worker has taken; return how many entries that were."""

    @abstractmethod
    async def close(self) -> None:
        """Close connections."""
