"""Requests as a crawl stores them, for tests of commands."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from scrapy import Request, Spider
from scrapy.utils.request import fingerprint

from scrapy_prioqueue.codec import RequestCodec
from scrapy_prioqueue.frontier.base import Push
from scrapy_prioqueue.frontier.labels import Label, labelled
from scrapy_prioqueue.rank import rank_of

TIERS = ("urgent", "high", "normal", "low")

_CODEC = RequestCodec(Spider("any"))


def page(url: str, *, tier: int = 0, priority: int = 0, slot: str = "", **fields: Any) -> Push:
    """Return a push of a request for a URL."""
    request = Request(url, priority=priority, **fields)
    host = slot or url.split("/")[2]
    return Push(rank_of(tier, priority), host, _CODEC.encode(request, host), fingerprint(request))


def with_budgets(url: str, *keys: str, is_rendered: bool = False, **fields: Any) -> Push:
    """Return a push of a request with budget keys."""
    made = page(url, **fields)
    return replace(made, payload=labelled(made.payload, Label(is_rendered, keys)))
