"""Reads the requests of a moved crawl, to be compared with those of its own scheduler."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from urllib.parse import urlsplit

from scrapy_prioqueue.codec.detached import DetachedCodec
from tests.commands.moved import write
from tests.contract.backends import RedisBackend, ack

Shown = dict[str, Any]


def served(backend: RedisBackend) -> list[Shown]:
    """Serve all requests of the frontier, and return them by their sites, each in its order."""
    worker, codec = backend.join(clock=None, max_attempts=9, tiers=("urgent", "high", "normal", "low")), DetachedCodec()
    found: list[Shown] = []
    while leases := worker.lease(1):
        found += [write.shown(codec.decode(lease.payload, lease.slot)) for lease in leases]
        worker.send(*map(ack, leases), demand=None)
    return sorted(found, key=_site)


def in_order(requests: Iterable[Shown]) -> list[Shown]:
    """Return requests in the order of another scheduler as they are served here: by site, then by priority."""
    return sorted(requests, key=lambda shown: (_site(shown), -shown["priority"]))


def _site(shown: Shown) -> str:
    return str(urlsplit(shown["url"]).hostname)
