"""Budgets in a worker: the keys of a request, its cost, and log lines about used-up budgets."""

from __future__ import annotations

import logging
import shlex
from collections.abc import Mapping
from time import monotonic
from typing import Any
from weakref import WeakKeyDictionary

from scrapy import Request, signals
from scrapy.crawler import Crawler
from scrapy.http import Response
from scrapy.utils.httpobj import urlparse_cached

from scrapy_prioqueue.domains import registered_domain
from scrapy_prioqueue.engine import StatCounter
from scrapy_prioqueue.errors import RequestError
from scrapy_prioqueue.frontier.base import DEAD_BY_BUDGET, Lease
from scrapy_prioqueue.frontier.labels import Label, label_of, labelled
from scrapy_prioqueue.frontier.operations import Spent
from scrapy_prioqueue.hints import frontier_command
from scrapy_prioqueue.logs import CrawlLog
from scrapy_prioqueue.printable import in_a_line
from scrapy_prioqueue.stats import (
    BUDGET_BYTES_STAT,
    BUDGET_PAGES_STAT,
    BUDGET_RENDERS_STAT,
    BUDGET_SECONDS_STAT,
    DEAD_STATS,
)

logger = logging.getLogger(__name__)

BUDGET_META = "prioqueue_budget"
"""Key in `meta`: the budget key of the request, or several from narrow to wide; by default its registered domain."""

RENDER_META = "prioqueue_render"
"""Key in `meta`: the request is rendered by a browser; scrapy-playwright has its own key."""

_RENDER_METAS = (RENDER_META, "playwright")

MOST_KEYS = 100
"""Maximum number of budget keys with stats and log lines of their own; there may be millions of keys."""

OTHERS = "(others)"
"""Name in the stats for all other keys together."""


class Costs:
    """Labels requests with their budget keys, and measures their cost; does nothing until `turn_on`.

    Args:
        frontier: name of the frontier; None for one in process, which commands can't reach.
    """

    def __init__(self, crawler: Crawler, frontier: str | None) -> None:
        assert crawler.stats is not None
        self._stats = StatCounter(crawler.stats)
        self._signals = crawler.signals
        self._log = CrawlLog(logger, crawler.spider)
        self._frontier = frontier
        self.is_on = False
        """There are budgets, so requests are labelled and measured."""
        self._began: WeakKeyDictionary[Request, float] = WeakKeyDictionary()
        self._bytes: WeakKeyDictionary[Request, int] = WeakKeyDictionary()
        self._seconds: dict[str, float] = {}
        self._known: set[str] = set()
        self._used_up: set[str] = set()

    def turn_on(self) -> None:
        """Label and measure requests from now on, since this worker or another one sets budgets."""
        if not self.is_on:
            self.is_on = True
            self._signals.connect(self._reached_downloader, signals.request_reached_downloader)
            self._signals.connect(self._downloaded, signals.response_downloaded)

    def spent(self, request: Request, lease: Lease) -> Spent | None:
        """Count the cost of a request that is done in the stats, and return it; None if the request has no label."""
        label = label_of(lease.payload)
        if label is None:
            return None
        now = monotonic()
        time_s = now - self._began.pop(request, now)
        spent = Spent(self._bytes.pop(request, 0), round(time_s * 1000))
        for key in label.keys:
            self._count(key, label, spent)
        return spent

    def _count(self, key: str, label: Label, spent: Spent) -> None:
        if len(self._known) < MOST_KEYS:
            self._known.add(key)
        shown = key if key in self._known else OTHERS
        self._stats.count(BUDGET_PAGES_STAT.replace("<key>", shown))
        if label.is_rendered:
            self._stats.count(BUDGET_RENDERS_STAT.replace("<key>", shown))
        self._stats.count(BUDGET_BYTES_STAT.replace("<key>", shown), spent.bytes)
        seconds = BUDGET_SECONDS_STAT.replace("<key>", shown)
        self._seconds[seconds] = self._seconds.get(seconds, 0.0) + spent.time_ms / 1000
        self._stats.set(seconds, self._seconds[seconds])

    def _reached_downloader(self, request: Request) -> None:
        self._began[request] = monotonic()

    def _downloaded(self, response: Response, request: Request) -> None:
        self._bytes[request] = self._bytes.get(request, 0) + len(response.body)

    def over(self, counts: Mapping[str, int]) -> None:
        """Count dead letters over budget, by budget key, and log each key once."""
        for key, count in counts.items():
            self._stats.count(DEAD_STATS[DEAD_BY_BUDGET], count)
            self._log_used_up(key)

    def _log_used_up(self, key: str) -> None:
        if key in self._used_up or len(self._used_up) > MOST_KEYS:
            return
        self._used_up.add(key)
        if len(self._used_up) > MOST_KEYS:
            self._log.warning("Further budgets that are used up are not logged")
            return
        if self._frontier is None:
            self._log.warning(
                "The budget of %s is used up: its requests become dead letters (reason budget). To fetch them,"
                " raise PRIOQUEUE_BUDGETS for the next crawl",
                in_a_line(key),
            )
            return
        self._log.warning(
            "The budget of %(key)s is used up: its requests become dead letters (reason budget). To continue, run"
            " `%(raise)s`, or with --renders, --bytes or --seconds, and then `%(replay)s`",
            {
                "key": in_a_line(key),
                "raise": in_a_line(frontier_command(f"budget {shlex.quote(key)} --pages N", self._frontier)),
                "replay": frontier_command("dead replay --reason budget", self._frontier),
            },
        )


def with_label(request: Request, payload: bytes) -> bytes:
    """Return the payload of a request with its label in front; unchanged if the request has no budget key.

    Raises:
        RequestError: the keys in `meta` can't be used.
    """
    label = label_for(request)
    if label is None:
        return payload
    try:
        return labelled(payload, label)
    except ValueError as error:
        raise RequestError(request, str(error)) from None


def label_for(request: Request) -> Label | None:
    """Return the label of a request, None if it has no budget key.

    Raises:
        RequestError: the keys in `meta` can't be used.
    """
    keys = _keys_of(request)
    return Label(any(request.meta.get(key) for key in _RENDER_METAS), keys) if keys else None


def _keys_of(request: Request) -> list[str]:
    value: Any = request.meta.get(BUDGET_META)
    if value is None:
        host = urlparse_cached(request).hostname
        return [registered_domain(host)] if host else []
    keys = [value] if isinstance(value, str) else value
    if not isinstance(keys, (list, tuple)) or not keys or not all(isinstance(key, str) and key for key in keys):
        why = f"meta[{BUDGET_META!r}] = {value!r} can't be used: it must be a name, or a list of names"
        raise RequestError(request, why)
    return list(dict.fromkeys(keys))
