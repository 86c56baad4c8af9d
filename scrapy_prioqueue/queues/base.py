"""The interface between the scheduler and its queues of requests."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from scrapy import Request
from twisted.internet.defer import Deferred

from scrapy_prioqueue.pump.delegate import PumpConfig
from scrapy_prioqueue.pump.pump import Pump
from scrapy_prioqueue.settings import Config


class RequestQueue(ABC):
    """A queue of requests; the methods have the meanings that they have in Scrapy's scheduler."""

    @abstractmethod
    def enqueue(self, request: Request) -> bool:
        """Store a request; return False if it was filtered or rejected."""

    @abstractmethod
    def next_request(self) -> Request | None:
        """Return the request to start now."""

    @abstractmethod
    def has_pending(self) -> bool:
        """Return whether the spider must stay open."""

    def awaits_request(self) -> bool:
        """Return whether a request may arrive soon, after `next_request` has returned None."""
        return False

    @abstractmethod
    def close(self, reason: str) -> Deferred[Any] | None:
        """Store the requests that must outlive this process."""

    def note_missing(self) -> None:
        """Note that a request was lost to an error before it was enqueued, so the crawl must not end as finished."""
        return

    @property
    def pump(self) -> Pump[Request] | None:
        """The pump of a shared frontier or of one in process, None for Scrapy's own queues."""
        return None

    @property
    def kept(self) -> int:
        """Number of requests that exist only in this process, although the frontier is shared."""
        return 0

    @property
    def outside(self) -> int:
        """Number of the waiting requests that are in the server or on disk."""
        return 0

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of waiting requests, as far as is known."""


class ClosedQueue(RequestQueue):
    """Rejects all requests, while a spider that can't crawl is being closed."""

    def enqueue(self, request: Request) -> bool:
        return False

    def next_request(self) -> Request | None:
        return None

    def has_pending(self) -> bool:
        return True

    def close(self, reason: str) -> None:
        return None

    def __len__(self) -> int:
        return 0


def pump_config(config: Config) -> PumpConfig:
    """Return the settings of the pump."""
    return PumpConfig(
        lease_ttl_s=config.lease_ttl_s,
        max_idle_s=config.max_idle_s,
        outbox_limit=config.outbox_limit,
        goes_on=config.on_outage == "continue",
        outage_grace_s=config.outage_grace_s,
        counts_starts=not config.holds_until_start,
        slow_page_s=config.slow_page_s,
    )
