"""What every queue of requests offers to the scheduler."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from scrapy import Request
from twisted.internet.defer import Deferred

from scrapy_prioqueue.pump.host import PumpConfig
from scrapy_prioqueue.settings import Config


class RequestQueue(ABC):
    """Requests in, requests out; same meaning as in Scrapy's scheduler."""

    @abstractmethod
    def enqueue(self, request: Request) -> bool:
        """Store a request; False if it was filtered out or rejected."""

    @abstractmethod
    def next_request(self) -> Request | None:
        """Return the request to start now."""

    @abstractmethod
    def has_pending(self) -> bool:
        """Tell whether the spider must stay open."""

    def awaits_request(self) -> bool:
        """Tell whether a request may come soon, where `next_request` has just returned None."""
        return False

    @abstractmethod
    def close(self, reason: str) -> Deferred[Any] | None:
        """Store the requests that must outlive this process."""

    def note_missing(self) -> None:
        """Something that should have been enqueued was lost to an error, so the crawl is not over when it ends here."""
        return

    @abstractmethod
    def __len__(self) -> int:
        """Return how many requests wait, as far as is known."""


class ClosedQueue(RequestQueue):
    """Takes nothing and has nothing: for the moments until a spider that can't crawl is closed."""

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
    """Return the pump's part of the settings."""
    return PumpConfig(
        lease_ttl_s=config.lease_ttl_s,
        max_idle_s=config.max_idle_s,
        outbox_limit=config.outbox_limit,
        goes_on=config.on_outage == "continue",
        outage_grace_s=config.outage_grace_s,
        counts_starts=not config.holds_until_start,
        slow_page_s=config.slow_page_s,
    )
