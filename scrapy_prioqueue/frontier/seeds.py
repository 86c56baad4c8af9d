"""The interface to seeds: entries that other programs push to plain keys, from the view of one worker."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Seed:
    """An entry that this worker has taken.

    Args:
        key: the key from which it was taken.
        token: identifies it until it is settled.
        data: as it was pushed.
    """

    key: str
    token: str
    data: bytes


@dataclass(frozen=True, slots=True)
class Taken:
    """The answer to one exchange of seeds.

    Args:
        seeds: in the order in which they were taken.
        sees_more: whether there may be more to take, now or after other workers have settled or lost theirs, so that
            the crawl must not end.
        given_back: number of entries of lost workers, and of an earlier process under this worker's id, that were put
            back.
        wrong_types: types of the keys that are neither list, set nor sorted set.
    """

    seeds: Sequence[Seed] = ()
    sees_more: bool = False
    given_back: int = 0
    wrong_types: Mapping[str, str] = field(default_factory=dict)


class SeedStore(ABC):
    """The keys of seeds, best first, from the view of one worker.

    An entry that was taken is stored under the worker's id until it is settled, so no kill loses it.
    The methods are coroutines. Each may raise `FrontierUnavailable` or `FrontierFull`, and may then be called again.
    """

    @abstractmethod
    async def exchange(self, settled: Sequence[Seed], limit: int) -> Taken:
        """Drop the settled entries, then take up to `limit` entries from the best keys that have any.

        With a `limit` of 0, `sees_more` is not computed.
        """

    @abstractmethod
    async def leave(self, settled: Sequence[Seed]) -> int:
        """Drop the settled entries and put back all others that this worker has taken; return how many."""

    @abstractmethod
    async def close(self) -> None:
        """Close connections."""
