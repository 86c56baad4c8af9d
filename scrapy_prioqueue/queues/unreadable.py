"""What becomes of leases that can't be read or handed out here: others get them, or they become dead letters."""

from __future__ import annotations

import logging
from collections import Counter

from scrapy import Request
from scrapy.crawler import Crawler

from scrapy_prioqueue.codec.plain import read_plain
from scrapy_prioqueue.errors import DecodeError, UnknownName
from scrapy_prioqueue.frontier.base import DEAD_BY_DECODE, Fail, Lease, Refuse
from scrapy_prioqueue.hints import frontier_command
from scrapy_prioqueue.printable import in_a_line
from scrapy_prioqueue.pump.pump import Pump
from scrapy_prioqueue.queues.endings import described
from scrapy_prioqueue.queues.reports import DEAD_STATS

logger = logging.getLogger(__name__)

REFUSAL_DELAYS_S = (2, 6, 18)
"""How long a request is kept back each time that a worker refuses it; then it becomes a dead letter."""

_MOST_CAUSES = 50
"""Causes for which refusals are logged each for itself; others are logged together."""


class Unreadable:
    """Settles leases whose payloads can't be read.

    Args:
        name: of the frontier.
    """

    def __init__(self, crawler: Crawler, pump: Pump[Request], name: str) -> None:
        assert crawler.stats is not None
        self._spider = crawler.spider
        self._stats = crawler.stats
        self._pump = pump
        self._name = name
        self._refused: Counter[str] = Counter()

    def settle(self, lease: Lease, error: Exception) -> None:
        """Give a lease to others if another version of the spider may be able to read it, else give it up."""
        if isinstance(error, UnknownName) and lease.refusals < len(REFUSAL_DELAYS_S):
            self._refuse(lease, error, REFUSAL_DELAYS_S[lease.refusals])
        else:
            self._bury(lease, error)

    def _refuse(self, lease: Lease, error: UnknownName, delay_s: int) -> None:
        self._stats.inc_value("prioqueue/lease/refused")
        cause = str(error) if str(error) in self._refused or len(self._refused) < _MOST_CAUSES else ""
        self._refused[cause] += 1
        count = self._refused[cause]
        if count == 10 ** (len(str(count)) - 1):
            logger.warning(
                "%s is given back, for workers with another version of the spider, and waits %d s (%d of %d): %s"
                " (%d such requests so far, the next is logged at %d; counted in prioqueue/lease/refused)",
                *(_named(lease), delay_s, lease.refusals + 1, len(REFUSAL_DELAYS_S), in_a_line(error)),
                *(count, 10 * count),
                extra={"spider": self._spider},
            )
        self._pump.finish(Refuse(lease.lease_id, lease.attempt, delay_s * 1000))

    def _bury(self, lease: Lease, error: Exception) -> None:
        is_expected = isinstance(error, DecodeError)
        detail, remedy = str(error) if is_expected else described(error), ""
        if isinstance(error, UnknownName):
            command = frontier_command(f"dead replay {lease.lease_id}", self._name)
            remedy = f". Start workers that have it, then run: {command}"
        logger.error(
            "%s can't be decoded and becomes a dead letter: %s%s",
            *(_named(lease), in_a_line(detail), remedy),
            exc_info=None if is_expected else error,
            extra={"spider": self._spider},
        )
        self._stats.inc_value(DEAD_STATS[DEAD_BY_DECODE])
        self._pump.finish(Fail(lease.lease_id, lease.attempt, DEAD_BY_DECODE, detail))


def _named(lease: Lease) -> str:
    """Return how log lines name the request, by its number if not even its URL can be read."""
    try:
        plain = read_plain(lease.payload, lease.slot)
    except DecodeError:
        return f"Request {lease.lease_id}"
    return in_a_line(f"<{plain.method} {plain.url}>")
