"""What the pump needs of the scheduler's queue and of the engine, and its configuration."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from scrapy_prioqueue.frontier.base import Exchanged, Lease, Orders, Push, Recall
from scrapy_prioqueue.frontier.kept import Kept
from scrapy_prioqueue.pump.outbox import Hold, Settled

Tag = TypeVar("Tag")


class Slots(Protocol):
    """How much room the downloader has; `DownloadSlots` is one."""

    def may_start(self, slot: str) -> bool:
        """Tell whether one more request of a slot can start now."""

    def may_wait(self, slot: str) -> bool:
        """Tell whether one more request of a slot can start soon, and wait in the downloader until then."""

    def room(self, waiting: Mapping[str, int], ahead: int) -> tuple[int, dict[str, int]]:
        """Return how many more requests of a slot could be used, by default and by slot, besides those that wait."""


class Engine(Protocol):
    """What starts the requests; Scrapy's is one, as `scrapy_prioqueue.engine.Engine` shows it."""

    @property
    def slots(self) -> Slots:
        """The downloader's slots."""

    @property
    def is_closing(self) -> bool:
        """Nothing new is to be started."""

    @property
    def is_paused(self) -> bool:
        """Nothing new is started for the time being."""

    @property
    def concurrency(self) -> int:
        """How many requests run at a time."""

    def wake(self) -> None:
        """Ask for requests: there are new ones, or the crawl is over."""


class Host(Protocol[Tag]):
    """The scheduler's queue, as the pump knows it."""

    @property
    def engine(self) -> Engine:
        """What starts the requests."""

    def settled(self, outcome: Settled[Tag]) -> None:
        """An operation was carried out."""

    def too_large(self, push: Push, tag: Tag | None, roots: Sequence[Hold]) -> None:
        """The frontier rejects a request for its size: the host keeps it, and releases its pages when it is done."""

    def note_answer(self, answer: Exchanged) -> None:
        """Report what an answer says besides leases and outcomes: losses, dead letters, warnings, budgets."""

    def recalled(self, recall: Recall) -> None:
        """This worker has restored data that the server may have lost."""

    def ordered(self, orders: Orders) -> None:
        """An operator wants something else than before."""

    def stop(self, why: Exception) -> None:
        """This worker has no place in the crawl any more."""

    def lost(self, lease_id: int) -> bool:
        """A page that may never end has lost its lease; return whether others are to have it first."""

    def push_of(self, lease: Lease) -> Push:
        """Return a leased request as one to be stored, with its fingerprint if it is filtered."""

    def changed_kept(self) -> Kept | None:
        """Return the report on requests that stay in this worker, None if it hasn't changed since the last call."""

    def has_own_work(self) -> bool:
        """Something is going on here that the pump knows nothing of."""

    def free_places(self) -> int:
        """Return how many requests could start now."""

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
