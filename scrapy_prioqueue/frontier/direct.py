"""Direct calls of a frontier in process: single operations without an exchange."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

from scrapy_prioqueue.frontier.operations import Ack, Push

if TYPE_CHECKING:
    from scrapy_prioqueue.frontier.base import Depth, Lease

Rejected = Literal["duplicates", "repeated_starts"]
"""Why a push was not accepted, as the name of the field of `Committed`."""


class MustExchange(Exception):
    """The operation needs an exchange."""


class Direct(ABC):
    """Operations that one worker may do without an exchange, while the result is the same.

    Only exchanges end the crawl, make delayed requests pending, and reap expired leases.
    """

    @property
    @abstractmethod
    def may_push(self) -> bool:
        """Whether this worker is in the crawl, and a push can't begin a flood."""

    @property
    @abstractmethod
    def may_take(self) -> bool:
        """Whether requests may also be taken and acknowledged: they are served by rank, turn and budgets only."""

    @property
    @abstractmethod
    def pending(self) -> int:
        """Number of pending requests."""

    @abstractmethod
    def depth(self) -> Depth:
        """Return the counts of the crawl."""

    @abstractmethod
    def push(self, push: Push) -> Rejected | None:
        """Store a request, or return why it was rejected."""

    @abstractmethod
    def take(self, may_start: Callable[[str], bool]) -> Lease | None:
        """Lease the best request that may start, None if none may.

        Args:
            may_start: returns whether a request of a slot may start.

        Raises:
            MustExchange: a request is delayed, a lease has expired, a suspect is pending, or the best is over budget.
        """

    @abstractmethod
    def acknowledge(self, ack: Ack) -> bool:
        """End a lease; False if it is not held any more."""
