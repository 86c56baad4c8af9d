"""Ends the leases of requests that can't be decoded."""

from __future__ import annotations

import logging
from collections import Counter

from scrapy import Request
from scrapy.crawler import Crawler

from scrapy_prioqueue.codec.plain import plain_or_none
from scrapy_prioqueue.engine import Engine, StatCounter
from scrapy_prioqueue.errors import DecodeError, UnknownName
from scrapy_prioqueue.frontier.base import DEAD_BY_DECODE, Fail, Lease, Refuse, Release
from scrapy_prioqueue.hints import frontier_command
from scrapy_prioqueue.logs import CrawlLog, dead_letter, is_power_of_ten
from scrapy_prioqueue.printable import counted, in_a_line
from scrapy_prioqueue.pump.pump import Pump
from scrapy_prioqueue.queues.events import Events
from scrapy_prioqueue.queues.verdicts import described
from scrapy_prioqueue.stats import DEAD_STATS, LEASE_REFUSED_STAT

logger = logging.getLogger(__name__)

REFUSAL_DELAYS_S = (2, 6, 18)
"""Delays of a request after each round of refusals; in the next round it becomes a dead letter."""

MOST_IN_A_ROW = 20
"""Number of requests that can't be decoded after which a worker that has decoded none may close."""

UNDECODABLE = "prioqueue_undecodable"
"""Reason for closing the spider."""

_MOST_CAUSES = 50
"""Maximum number of causes whose refusals are logged separately; all other causes are logged together."""

_MOST_REMEMBERED = 1_000
"""Maximum number of refused requests that are remembered, to notice when one comes again."""


class Unreadable:
    """Ends leases whose payloads can't be decoded.

    A worker that can decode nothing has the wrong code, so it closes and leaves the requests to other workers. A
    refused request comes to the same worker again only after its delay, and after all living workers have refused it.
    So a worker that has refused many requests, and has decoded none but start requests, closes when one of them comes
    again. Any worker closes when many requests in a row can be decoded by no version.

    Args:
        name: of the frontier.
    """

    def __init__(self, crawler: Crawler, engine: Engine, pump: Pump[Request], name: str, events: Events) -> None:
        assert crawler.stats is not None
        self._log = CrawlLog(logger, crawler.spider)
        self._stats = StatCounter(crawler.stats)
        self._engine = engine
        self._pump = pump
        self._name = name
        self._events = events
        self._causes: Counter[str] = Counter()
        self._refused: set[int] = set()
        self._row: set[int] = set()
        self._has_decoded = False
        self._has_closed = False
        self.is_alert = True
        """Whether `note_decoded` must be called: no request could be decoded yet, or the last one could not."""

    def settle(self, lease: Lease, error: Exception) -> None:
        """Refuse a lease if another version of the spider may be able to decode it, else make it a dead letter."""
        self.is_alert = True
        is_known = isinstance(error, UnknownName)
        if self._is_useless(lease, is_known=is_known) and not self._pump.frontier.is_local:
            self._close(lease, error)
        elif is_known and (lease.refusals < len(REFUSAL_DELAYS_S) or self._is_to_wait(lease)):
            self._refuse(lease, error, REFUSAL_DELAYS_S[min(lease.refusals, len(REFUSAL_DELAYS_S) - 1)])
        else:
            self._dead_letter(lease, error)

    def note_decoded(self, request: Request) -> None:
        """Note that a request could be decoded."""
        self._row.clear()
        self._refused.clear()
        # Any version can decode the start requests that it has stored itself.
        self._has_decoded = self._has_decoded or not request.meta.get("is_start_request")
        self.is_alert = not self._has_decoded

    def _is_useless(self, lease: Lease, *, is_known: bool) -> bool:
        """Return whether this worker can't decode what it gets, this lease included."""
        if is_known:
            has_returned = lease.lease_id in self._refused
            return self._has_closed or (has_returned and len(self._refused) >= MOST_IN_A_ROW)
        self._row.add(lease.lease_id)
        return self._has_closed or len(self._row) >= MOST_IN_A_ROW

    def _is_to_wait(self, lease: Lease) -> bool:
        """Return whether a request has to wait until it is known whether this worker can decode any."""
        return not self._has_decoded and not self._pump.frontier.is_local and lease.lease_id not in self._refused

    def _close(self, lease: Lease, error: Exception) -> None:
        self._pump.finish(Release(lease.lease_id, lease.attempt))
        if self._has_closed:
            return
        self._has_closed = True
        self._log.error(
            "Closing: none of the last %d requests could be decoded, the last one because of: %s. This worker probably"
            " runs another version of the spider than the workers that stored them. They stay in the frontier: start"
            " workers of that version, or delete requests that nobody needs any more with: %s",
            *(max(len(self._row), len(self._refused)), in_a_line(_why(error))),
            frontier_command(_removal(lease), self._name),
        )
        self._engine.close_spider(UNDECODABLE)

    def _refuse(self, lease: Lease, error: Exception, delay_s: int) -> None:
        self._stats.count(LEASE_REFUSED_STAT)
        if not self._has_decoded and len(self._refused) < _MOST_REMEMBERED:
            self._refused.add(lease.lease_id)
        cause = str(error) if str(error) in self._causes or len(self._causes) < _MOST_CAUSES else ""
        self._causes[cause] += 1
        count, most = self._causes[cause], len(REFUSAL_DELAYS_S)
        if is_power_of_ten(count):
            self._log.warning(
                "%s is left to workers with another version of the spider, and waits %d s (%d of %d): %s"
                " (%s so far, the next is logged at %d; counted in %s)",
                *(_named(lease), delay_s, min(lease.refusals + 1, most), most, in_a_line(error)),
                *(counted(count, "such request"), 10 * count, LEASE_REFUSED_STAT),
            )
        self._pump.finish(Refuse(lease.lease_id, lease.attempt, delay_s * 1000))

    def _dead_letter(self, lease: Lease, error: Exception) -> None:
        is_expected = isinstance(error, DecodeError)
        detail, remedy = _why(error), ""
        if isinstance(error, UnknownName):
            command = frontier_command(f"dead replay {lease.lease_id}", self._name)
            remedy = f". Start workers that have it, then run: {command}"
        self._log.error(
            "%s can't be decoded and becomes a dead letter: %s%s",
            *(_named(lease), in_a_line(detail), remedy),
            exc_info=None if is_expected else error,
            extra=dead_letter(None, DEAD_BY_DECODE, lease.lease_id),
        )
        self._stats.count(DEAD_STATS[DEAD_BY_DECODE])
        self._events.dead_lettered(None, DEAD_BY_DECODE, detail, letter_id=lease.lease_id)
        self._pump.finish(Fail(lease.lease_id, lease.attempt, DEAD_BY_DECODE, detail))


def _why(error: Exception) -> str:
    return str(error) if isinstance(error, DecodeError) else described(error)


def _removal(lease: Lease) -> str:
    """Return the command that deletes requests such as this one."""
    plain = plain_or_none(lease.payload, lease.slot)
    callback = None if plain is None else plain.callback
    return f"remove . --callback {callback}" if callback and callback.isidentifier() else "remove PATTERN"


def _named(lease: Lease) -> str:
    """Return the text for a request in log lines: its id if not even its URL can be read."""
    plain = plain_or_none(lease.payload, lease.slot)
    if plain is None:
        return f"Request {lease.lease_id}"
    return in_a_line(f"<{plain.method} {plain.url}>")
