"""The interface that the pump needs from the scheduler's queue, and its configuration."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from scrapy_prioqueue.frontier.base import DeadLetter, Lease, Orders, Push, Recall
from scrapy_prioqueue.frontier.kept import Kept
from scrapy_prioqueue.pump.outbox import Hold, Settled

Tag = TypeVar("Tag")


class Host(Protocol[Tag]):
    """What the pump asks of the scheduler that it works for."""

    def settled(self, outcome: Settled[Tag]) -> None:
        """An operation was carried out."""

    def too_large(self, push: Push, tag: Tag | None, roots: Sequence[Hold]) -> None:
        """The frontier refuses a request for its size: the host keeps it, and releases its pages when it is done."""

    def buried(self, letter: DeadLetter) -> None:
        """A request was lost too often and is given up."""

    def over_budget(self, counts: Mapping[str, int]) -> None:
        """So many requests are given up, by the budget key that they were over."""

    def letters_dropped(self, reasons: Sequence[str]) -> None:
        """Of these reasons there are too many dead letters, so that the oldest are dropped; said with each answer."""

    def warn(self, text: str) -> None:
        """An operator should know this of the crawl."""

    def has_budgets(self) -> None:
        """Requests have to carry their budget keys from now on."""

    def changed_kept(self) -> Kept | None:
        """Return the report on requests that stay in this worker, None if it hasn't changed since the last call."""

    def lost_kept(self, kept: Mapping[str, Kept]) -> None:
        """Workers are lost, by their ids, that had kept requests to themselves."""

    def forgotten(self) -> None:
        """The server has lost the frontier."""

    def recalled(self, recall: Recall) -> None:
        """This worker has restored data that the server may have lost."""

    def ordered(self, orders: Orders) -> None:
        """An operator wants something else than before."""

    def lost(self, lease_id: int) -> bool:
        """A page that may never end has lost its lease; return whether others are to have it first."""

    def push_of(self, lease: Lease) -> Push:
        """Return a leased request as one to be stored, with its fingerprint if it is filtered."""

    def wake(self) -> None:
        """There is something new: requests, or the end of the crawl."""

    def stop(self, why: Exception) -> None:
        """This worker has no place in the crawl any more."""

    def has_own_work(self) -> bool:
        """Something is going on here that the pump knows nothing of."""

    def is_closing(self) -> bool:
        """Nothing new is to be started."""

    def is_paused(self) -> bool:
        """Nothing new is started for the time being."""

    def concurrency(self) -> int:
        """Return how many requests run at a time."""

    def free_places(self) -> int:
        """Return how many requests could start now."""

    def slot_room(self, waiting: Mapping[str, int], ahead: int) -> tuple[int, dict[str, int]]:
        """Return how many more requests of a slot could be used, by default and by slot, besides those that wait."""

    def may_start(self, slot: str) -> bool:
        """Tell whether one more request of a slot can start now."""

    def may_wait(self, slot: str) -> bool:
        """Tell whether one more request of a slot can start soon, and wait in the downloader until then."""

    def held_up(self) -> Collection[str]:
        """Return the slots whose started requests wait for something, so that further ones would go out with them."""

    def count(self, stat: str, change: int = 1) -> None:
        """Add to a stat."""


@dataclass(frozen=True, slots=True)
class PumpConfig:
    """Times in seconds; see the settings of the same names.

    Args:
        goes_on: whether the crawl goes on while the server is away.
        outage_grace_s: seconds for which it goes on with what is leased only.
        counts_starts: whether start requests go into the frontier.
        slow_page_s: seconds after which a page may never end, and the loop counts as blocked; 0 for never.
    """

    lease_ttl_s: float
    max_idle_s: float
    outbox_limit: int
    goes_on: bool = True
    outage_grace_s: float = 0.0
    counts_starts: bool = True
    slow_page_s: float = 0.0
