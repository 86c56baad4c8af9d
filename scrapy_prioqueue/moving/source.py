"""The interface of a crawl of another scheduler that is moved."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass
from typing import ClassVar

from scrapy_prioqueue.errors import PrioQueueError


@dataclass(frozen=True, slots=True)
class SourceRequest:
    """A stored request.

    Args:
        where: it is stored, for messages.
        data: as it was serialized.
        is_start: it is in a queue of start requests, which come after others of equal priority.
    """

    where: str
    data: bytes
    is_start: bool = False


class SourceError(PrioQueueError):
    """The source can't be read, or changes while it is read."""


class Source(ABC):
    """The requests and fingerprints of one crawl; nothing is written to them."""

    formats: ClassVar[Set[str]]
    """In which requests may be serialized."""

    usual_identity: ClassVar[str | None] = None
    """Whose fingerprints they are if no pending request shows it; None if that is unknown."""

    was_killed: bool = False
    """The crawl's software wasn't closed gracefully, so requests in progress and the last fingerprints are lost."""

    are_distinct: ClassVar[bool] = True
    """No fingerprint is there twice."""

    where: str
    """Key or file of the fingerprints, for messages."""

    @abstractmethod
    def count(self) -> int:
        """Return how many requests there are."""

    @abstractmethod
    def requests(self) -> Iterator[SourceRequest]:
        """Yield the requests in the order in which they would be served, assuming equal priorities."""

    @abstractmethod
    def seen_count(self) -> int:
        """Return how many fingerprints there are."""

    @abstractmethod
    def fingerprints(self) -> Iterator[bytes]:
        """Yield the fingerprints."""

    @abstractmethod
    def known(self, fingerprints: Sequence[bytes]) -> Sequence[bool]:
        """Return for each of these fingerprints whether the crawl has it."""
