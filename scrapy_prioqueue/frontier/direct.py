"""The short way to a frontier in process: one operation at a time, with nothing around it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

from scrapy_prioqueue.frontier.operations import Ack, Push

if TYPE_CHECKING:
    from scrapy_prioqueue.frontier.base import Depth, Lease

Refused = Literal["duplicates", "repeated_starts"]
"""Why a push was not accepted, as the field of `Committed` that says so."""


class MustExchange(Exception):
    """What is asked for can't be told without an exchange."""


class Direct(ABC):
    """What one worker may do without an exchange, as long as the result is the same.

    Only exchanges say whether the crawl is over, what becomes due with time, and which leases have expired.
    """

    @property
    @abstractmethod
    def may_push(self) -> bool:
        """This worker is in the crawl, and a push can't begin a flood."""

    @property
    @abstractmethod
    def may_take(self) -> bool:
        """Requests may also be taken and acknowledged: they are served by rank and turn, as far as budgets allow."""

    @property
    @abstractmethod
    def pending(self) -> int:
        """Requests that wait."""

    @abstractmethod
    def depth(self) -> Depth:
        """Return the counts of the crawl."""

    @abstractmethod
    def push(self, push: Push) -> Refused | None:
        """Store a request, or say why not."""

    @abstractmethod
    def take(self, may_start: Callable[[str], bool]) -> Lease | None:
        """Lease the best request that may start, None if none may.

        Args:
            may_start: asked of a slot.

        Raises:
            MustExchange: something is delayed, a lease has expired, a suspect waits, or the best is over budget.
        """

    @abstractmethod
    def acknowledge(self, ack: Ack) -> bool:
        """End a lease; False if it is not held any more."""
