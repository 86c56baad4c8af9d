"""What the pump needs of the scheduler's queue and of the engine, and its configuration."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol, TypeVar

from scrapy_prioqueue.frontier.base import Exchanged, Lease, Orders, Push, Recall, Report
from scrapy_prioqueue.frontier.kept import Kept
from scrapy_prioqueue.frontier.runs import FleetTotals
from scrapy_prioqueue.pump.outbox import HeldRequest, Outcome

if TYPE_CHECKING:
    from scrapy import Spider

Tag = TypeVar("Tag")

Trouble = Literal["outage", "full"]
"""What keeps a worker from working with the server as usual: it doesn't answer, or it accepts no new requests."""


class Slots(Protocol):
    """The downloader's slots and their room; implemented by `DownloadSlots`."""

    def may_start(self, slot: str) -> bool:
        """Return whether one more request of a slot can start now."""

    def may_wait(self, slot: str) -> bool:
        """Return whether one more request of a slot can start soon, and wait in the downloader until then."""

    def room(self, waiting: Mapping[str, int], ahead: int) -> tuple[int, dict[str, int]]:
        """Return how many more requests of a slot could be used, by default and by slot, besides the waiting ones."""


class Engine(Protocol):
    """The engine, which starts requests; implemented by `scrapy_prioqueue.engine.Engine` for Scrapy's."""

    @property
    def slots(self) -> Slots:
        """The downloader's slots."""

    @property
    def is_closing(self) -> bool:
        """Return whether the spider is closing."""

    @property
    def is_paused(self) -> bool:
        """Return whether the engine is paused."""

    @property
    def concurrency(self) -> int:
        """Maximum number of requests that run at a time."""

    def wake(self) -> None:
        """Make the engine ask for requests: there may be new ones, or the crawl has ended."""


class Delegate(Protocol[Tag]):
    """The interface that the pump needs from the scheduler's queue."""

    @property
    def spider(self) -> Spider | None:
        """The spider, for log records."""

    @property
    def engine(self) -> Engine:
        """The engine."""

    def note_outcome(self, outcome: Outcome[Tag]) -> None:
        """Called when an operation has its outcome."""

    def too_large(self, push: Push, tag: Tag | None, roots: Sequence[HeldRequest]) -> None:
        """Called when a request is too large for the server: keep it, and let `roots` go when it is done."""

    def note_answer(self, answer: Exchanged) -> None:
        """Process an answer except for its leases and outcomes: losses, dead letters, warnings and budgets."""

    def recalled(self, recall: Recall) -> None:
        """Called when this worker has restored data that the server may have lost."""

    def ordered(self, orders: Orders) -> None:
        """Called when an operator's commands have changed."""

    def stop(self, why: Exception) -> None:
        """Called when this worker may not take part in the crawl any more."""

    def lost(self, lease_id: int) -> bool:
        """Called when a page that may never end has lost its lease; return whether others should get it first."""

    def degraded(self, cause: Trouble, detail: str) -> None:
        """Called when such a trouble begins."""

    def recovered(self, cause: Trouble, after_s: float) -> None:
        """Called when it ends."""

    def lost_leases(self, leases: Sequence[Lease], *, are_started: bool) -> None:
        """Called when a renewal finds that this worker has lost leases, before `lost`."""

    def push_of(self, lease: Lease) -> Push:
        """Return a push of a leased request, with its fingerprint if it is filtered."""

    def changed_kept(self) -> Kept | None:
        """Return the report on requests that stay in this worker, None if it hasn't changed since the last call."""

    def has_own_work(self) -> bool:
        """Return whether there is work here that the pump doesn't know of."""

    def free_places(self) -> int:
        """Return how many requests could start now."""

    def held_up(self) -> Collection[str]:
        """Return the slots in which started requests wait, for robots.txt; more of them would all be sent at once."""

    def count(self, stat: str, change: int = 1) -> None:
        """Add to a stat."""

    def last_report(self) -> Report | None:
        """Return the last report on this worker's run, None to store none; called when it leaves."""

    def note_totals(self, totals: FleetTotals | None) -> None:
        """Called with the totals of all runs if this was the last worker of a crawl that has ended, else with None."""


@dataclass(frozen=True, slots=True)
class PumpConfig:
    """Times in seconds; see the settings with these names.

    Args:
        goes_on: whether the crawl continues while the server is away.
        outage_grace_s: seconds of an outage during which only leased requests are started.
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
