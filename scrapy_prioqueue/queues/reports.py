"""Log lines and stats for operators, while a spider runs and when it closes."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from scrapy import Request, Spider, signals
from scrapy.crawler import Crawler
from scrapy.exceptions import CloseSpider

from scrapy_prioqueue.engine import StatCounter
from scrapy_prioqueue.errors import EncodeError
from scrapy_prioqueue.frontier.base import DeadLetter, Depth, Orders, Recall
from scrapy_prioqueue.frontier.kept import Kept
from scrapy_prioqueue.frontier.policy import Policy
from scrapy_prioqueue.hints import frontier_command
from scrapy_prioqueue.logs import CrawlLog, dead_letter, event, is_power_of_ten
from scrapy_prioqueue.printable import counted, in_a_line
from scrapy_prioqueue.runtime import Timer, call_later
from scrapy_prioqueue.stats import (
    DEAD_STATS,
    LETTERS_CRAWL_STAT,
    LETTERS_KEPT_STAT,
    RECALL_RESENT_STAT,
    RECALLS_STAT,
    START_REPEATED_STAT,
    UNSERIALIZABLE_STAT,
    UNSERIALIZABLE_TYPE_STAT,
)

logger = logging.getLogger(__name__)


QUIET_S = 60.0
"""Minimum seconds between two log lines about floods."""


class Floods:
    """Logs when a flood begins, and when it ends.

    A `start()` with millions of requests fills the frontier again each time that it falls to the low mark, as intended.
    So a flood that begins soon after a logged one is only counted, unless it lasts.
    """

    def __init__(self, policy: Policy, spider: Spider | None) -> None:
        self._policy = policy
        self._log = CrawlLog(logger, spider)
        self._is_on = False
        self._is_logged = False
        self._times = 0
        self._pending = 0
        self._quiet: Timer | None = None

    def change(self, *, is_on: bool, pending: int) -> None:
        """Log, or count, that a flood begins or ends.

        Args:
            pending: number of pending requests.
        """
        self._is_on, self._pending = is_on, pending
        self._times += is_on
        if is_on and self._quiet is None:
            self._begin()
        elif not is_on and self._is_logged:
            self._end()

    def close(self) -> None:
        """Stop logging."""
        if self._quiet is not None:
            self._quiet.cancel()

    def _look(self) -> None:
        self._quiet = None
        if self._is_on and not self._is_logged:
            self._begin()

    def _begin(self) -> None:
        policy = self._policy
        pending = counted(self._pending, "request waits", "requests wait")
        if 0 < policy.pending_limit <= self._pending:
            why = f"{pending} (PRIOQUEUE_PENDING_LIMIT = {policy.pending_limit})"
            end = "fewer do"
        elif policy.high_water and self._pending > policy.low_water:
            why = f"{pending} (PRIOQUEUE_HIGH_WATER = {policy.high_water})"
            end = f"{counted(policy.low_water, 'is', 'are')} left (PRIOQUEUE_LOW_WATER)"
        else:
            part = f" = {policy.memory_high_water:g}" if policy.memory_high_water else ""
            why, end = (
                f"the server's memory is used up to PRIOQUEUE_MEMORY_HIGH_WATER{part}",
                "some of it is free again",
            )
        self._log.info(
            "The frontier is flooded: %s. Until %s, start() and seeds are not read, and no requests of"
            " PRIOQUEUE_DISCOVERY_TIERS are served while others can be%s",
            why,
            end,
            f" ({counted(self._times - 1, 'more flood')} since the last line of this kind)" if self._times > 1 else "",
        )
        self._is_logged, self._times = True, 0
        self._quiet = call_later(QUIET_S, self._look)

    def _end(self) -> None:
        low_water = self._policy.low_water
        low = f" (PRIOQUEUE_LOW_WATER = {low_water})" if self._policy.high_water else ""
        if low and self._pending > low_water:
            low = f", and at most {low_water} of them can be served soon (PRIOQUEUE_LOW_WATER)"
        self._log.info(
            "The frontier is no longer flooded: %s%s. start() and seeds are read, and all tiers are served again",
            counted(self._pending, "request waits", "requests wait"),
            low,
        )
        self._is_logged = False


_OF_PAGE = "and the page on which it was found isn't done before it"
_OF_START = "and every worker fetches it, again after each restart, since start() yields it"
_PLAIN_DATA = "Use methods of the spider as callbacks, and plain data in meta and cb_kwargs"
_HIGHER_LIMIT = "Raise that limit, or store the large value elsewhere and put its name into the request"
TOO_LARGE = "(too large)"
MAX_KINDS = 100
OTHER_KINDS = "(others)"


def too_large(payload: bytes) -> EncodeError:
    """Return the reason why a request stays in this process, if its payload is too large for the server."""
    why = f"its {len(payload):,} bytes exceed the limit of the server (proto-max-bulk-len) or of a proxy in front of it"
    return EncodeError("payload", why, TOO_LARGE)


class Reports:
    """Reports on the frontier of one spider.

    Args:
        goes_on: returns whether the crawl continues.
    """

    def __init__(self, crawler: Crawler, policy: Policy, goes_on: Callable[[], bool]) -> None:
        assert crawler.stats is not None
        self._goes_on = goes_on
        self._stats = StatCounter(crawler.stats)
        self._signals = crawler.signals
        self._log = CrawlLog(logger, crawler.spider)
        self._is_forgotten = False
        self._logged_reasons: set[str] = set()
        self._kept = Counter[bool]()
        self._kept_kinds: set[str] = set()
        self._floods = Floods(policy, crawler.spider)
        self._orders = Orders()
        self.done_here = 0
        """Number of done requests that had stayed in this worker."""
        self._repeated_starts = 0

    def dead_lettered(self, request: Request | None, letter: DeadLetter) -> None:
        """Report a request that became a dead letter, None if it can't be decoded."""
        self._count(DEAD_STATS[letter.reason])
        self._log.error(
            "%s becomes a dead letter: %s",
            in_a_line(request or f"request {letter.lease_id} of slot {letter.slot}"),
            in_a_line(letter.detail),
            extra=dead_letter(request, letter.reason, letter.lease_id),
        )

    def letters_dropped(self, reasons: Sequence[str], name: str | None, limit: int) -> None:
        """Report that the oldest dead letters of these reasons were dropped; each reason is logged once per crawl.

        Args:
            name: of the frontier; None for one in process, which commands can't reach.
        """
        for reason in reasons:
            if reason in self._logged_reasons:
                continue
            self._logged_reasons.add(reason)
            advice = "Raise the limit"
            if name is not None:
                replay, purge = (
                    frontier_command(f"dead {verb} --reason {reason}", name) for verb in ("replay", "purge")
                )
                advice = f"Put them back with `{replay}`, delete them with `{purge}`, or raise the limit"
            self._log.warning(
                "The oldest dead letters with the reason %s are dropped: the limit is %d (PRIOQUEUE_DEAD_LETTER_LIMIT)."
                " %s",
                reason,
                limit,
                advice,
            )

    def forgotten(self) -> None:
        """Report that the server has lost the frontier."""
        if self._is_forgotten:
            return
        self._is_forgotten = True
        self._log.error(
            "The server has lost the frontier: it was emptied, or came back without its data. This worker stores"
            " its requests and recent commits again; pages that only the server knew are not fetched. Start the"
            " crawl anew to fetch all pages"
        )
        self._signals.connect(self._close_as_lost, signals.spider_idle)

    def recalled(self, recall: Recall) -> None:
        """Report that this worker has restored data that the server may have lost."""
        self._count(RECALLS_STAT)
        self._count(RECALL_RESENT_STAT, recall.resent)
        if recall.resent:
            self._log.warning(
                "The server has lost its newest writes; this worker sent %s again", counted(recall.resent, "operation")
            )
        if recall.orders:
            self._log.warning(
                "The server had lost %s (pauses, stops, limits, budgets); this worker sent %s again",
                counted(recall.orders, "command of an operator", "commands of operators"),
                "it" if recall.orders == 1 else "them",
            )
        if recall.missing and not self._is_forgotten:
            self._log.error(
                "The server has lost %s of this worker, which has no copy any more: requests may be missing. To keep"
                " more, raise PRIOQUEUE_JOURNAL_TIME or PRIOQUEUE_JOURNAL_LIMIT",
                counted(recall.missing, "batch", "batches"),
            )

    def _close_as_lost(self) -> None:
        # A worker that only waits for others gets this signal, too.
        if not self._goes_on():
            raise CloseSpider("prioqueue_frontier_lost")

    @property
    def unstorable(self) -> int:
        """Number of requests that could not be stored so far."""
        return self._kept.total()

    def kept(self, request: Request, error: EncodeError, *, is_from_start: bool) -> None:
        """Report a request that can't be stored and stays in this process; logs the first and each power of ten."""
        self._count(UNSERIALIZABLE_STAT)
        is_known = error.kind in self._kept_kinds or len(self._kept_kinds) < MAX_KINDS
        if is_known:
            self._kept_kinds.add(error.kind)
        self._count(UNSERIALIZABLE_TYPE_STAT.replace("<type>", error.kind if is_known else OTHER_KINDS))
        is_large = error.kind == TOO_LARGE
        self._kept[is_large] += 1
        count = self._kept[is_large]
        if is_power_of_ten(count):
            self._log.warning(
                "Unable to serialize request: %(request)s - reason: %(reason)s - it stays in the memory of this"
                " process, %(effect)s. %(advice)s,"
                " see 'What requests can hold' in the documentation (%(kept)s so far,"
                " the next is logged at %(next)d; counted in %(stat)s)",
                {
                    "request": in_a_line(request),
                    "reason": in_a_line(error),
                    "effect": _OF_START if is_from_start else _OF_PAGE,
                    "advice": _HIGHER_LIMIT if is_large else _PLAIN_DATA,
                    "kept": counted(count, "such request"),
                    "next": 10 * count,
                    "stat": UNSERIALIZABLE_TYPE_STAT,
                },
                extra=event("request_not_stored", url=request.url, kind=error.kind),
            )

    def start_repeated(self, request: Request) -> None:
        """Report a start request that was stored before; logged for the first and each power of ten."""
        self._count(START_REPEATED_STAT)
        self._repeated_starts += 1
        if self._repeated_starts == 1:
            self._log.info(
                "Start request %s is not fetched again: another worker or an earlier run has yielded it. To fetch"
                ' every request that start() yields, set PRIOQUEUE_START = "each"',
                in_a_line(request),
            )
        elif is_power_of_ten(self._repeated_starts):
            self._log.info(
                "%s not fetched again so far (PRIOQUEUE_START)", counted(self._repeated_starts, "start request")
            )

    def lost(self, kept: Mapping[str, Kept]) -> None:
        """Report lost workers, by id, and the requests that had stayed in them."""
        for worker, what in kept.items():
            self._log.info(
                "Worker %s was lost with %s that only it had; fetching %s again",
                worker,
                counted(what.requests, "request"),
                # Without pages: it has reported the requests while their page was still running.
                counted(what.pages, "page") if what.pages else "their pages",
            )

    def kept_at_close(self, kept: int, rootless: int) -> None:
        """Report the requests that stay in this process at its close; `rootless` ones come from no page."""
        if kept > rootless:
            self._log.info(
                "Did not fetch %s that only this worker has. The pages with links to them are released and fetched"
                " again",
                counted(kept - rootless, "request"),
            )
        if rootless:
            self._log.warning(
                "Lost with this process: %s that can't be stored and came from no page. A run that resumes this crawl"
                " fetches start requests among them again",
                counted(rootless, "request"),
            )

    def warn(self, text: str) -> None:
        """Log a warning about the crawl."""
        self._log.warning("%s", in_a_line(text))

    def ordered(self, orders: Orders, pending: int) -> None:
        """Report changed commands of an operator, or of the frontier itself.

        Args:
            pending: number of pending requests.
        """
        if orders.stop_reason is not None:
            self._log.info("An operator has stopped the crawl: %s", in_a_line(orders.stop_reason))
        if orders.is_paused != self._orders.is_paused:
            text = "has paused the crawl: no requests are started" if orders.is_paused else "has resumed the crawl"
            self._log.info("An operator %s", text)
        if orders.is_drained != self._orders.is_drained:
            text = (
                "is draining the crawl: new requests are dropped"
                if orders.is_drained
                else "has ended draining the crawl"
            )
            self._log.info("An operator %s", text)
        if orders.is_flooded != self._orders.is_flooded:
            self._floods.change(is_on=orders.is_flooded, pending=pending)
        self._orders = orders

    def lost_slow(self, request: Request) -> None:
        """Report that a page that may never end has lost its lease."""
        self._log.info("%s was given to other workers; its result here no longer counts", in_a_line(request))

    def hold_has_ended(self) -> None:
        """Report the end of the hold."""
        self._log.info(
            "This worker's own start requests are done (PRIOQUEUE_HOLD_UNTIL_START); it takes shared requests now"
        )

    def hold_has_failed(self) -> None:
        """Report that the hold can't end, since `start()` has raised."""
        self._log.error(
            "start() raised, so this worker takes no shared requests (PRIOQUEUE_HOLD_UNTIL_START) and closes"
        )

    def left(self, depth: Depth | None, name: str) -> None:
        """Report the last counts of the crawl; without counts, the failure has been logged already."""
        self._floods.close()
        if depth is None:
            return
        self._stats.set(LETTERS_CRAWL_STAT, depth.dead)
        self._stats.set(LETTERS_KEPT_STAT, depth.letters)
        counts = ("pending", "delayed", "leased", "done", "dead", "letters")
        fields = {count: getattr(depth, count) for count in counts}
        self._log.log(
            logging.WARNING if depth.dead or depth.letters else logging.INFO,
            "Left frontier %(name)s: %(pending)d pending, %(delayed)d delayed, %(leased)d leased, %(done)d done,"
            " %(dead)d dead; dead letters kept, of this crawl and earlier ones: %(letters)d%(here)s",
            {
                **fields,
                "name": in_a_line(name),
                "here": f"; also {self.done_here} done that only this worker had" if self.done_here else "",
            },
            extra=event("left", **fields),
        )

    def _count(self, stat: str, change: int = 1) -> None:
        if change:
            self._stats.count(stat, change)
