"""How requests end: verdicts are noted while a request is processed, and decide how its lease ends."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import ceil
from typing import TYPE_CHECKING, NamedTuple
from weakref import WeakKeyDictionary, WeakSet

from scrapy import Request
from scrapy.crawler import Crawler
from scrapy.exceptions import CloseSpider, IgnoreRequest, StopDownload
from scrapy.http import Response
from twisted.python.failure import Failure

from scrapy_prioqueue.codec import RequestCodec
from scrapy_prioqueue.codec.lineage import Found
from scrapy_prioqueue.codec.plain import plain_or_none
from scrapy_prioqueue.engine import Engine, StatCounter
from scrapy_prioqueue.errors import DecodeError, EncodeError, RequestError, UnknownName
from scrapy_prioqueue.frontier.base import (
    DEAD_BY_CALLBACK,
    DEAD_BY_DECODE,
    DEAD_BY_DOWNLOAD,
    Ack,
    Fail,
    Lease,
    Push,
    Refuse,
    Release,
)
from scrapy_prioqueue.frontier.labels import label_of, labelled
from scrapy_prioqueue.hints import frontier_command
from scrapy_prioqueue.logs import CrawlLog, dead_letter, is_power_of_ten
from scrapy_prioqueue.printable import counted, how_often, in_a_line
from scrapy_prioqueue.pump.outbox import bury
from scrapy_prioqueue.pump.pump import Pump
from scrapy_prioqueue.queues.budgets import Costs, with_label
from scrapy_prioqueue.queues.events import Events
from scrapy_prioqueue.queues.reports import too_large
from scrapy_prioqueue.settings import Config
from scrapy_prioqueue.stats import DEAD_STATS, LEASE_REFUSED_STAT, LEASE_RELEASED_STAT, REQUEUED_STAT

if TYPE_CHECKING:
    from scrapy_prioqueue.queues.layers import Layers

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Dead:
    """Make it a dead letter.

    Args:
        reason: one of `DEAD_REASONS`.
        detail: what happened, in one line.
        traceback: the last lines of the traceback, below … if there were more; empty without one.
    """

    reason: str
    detail: str
    traceback: str = ""


@dataclass(frozen=True, slots=True)
class Requeue:
    """Put it back, to fetch it again.

    Args:
        delay_s: seconds until it may be fetched again.
        reason: why, in one line.
    """

    delay_s: float = 0.0
    reason: str = ""


@dataclass(frozen=True, slots=True)
class RequeueIfClosing:
    """Put it back for the next run if the spider is closing; otherwise it is done."""


@dataclass(frozen=True, slots=True)
class Dropped:
    """Release it: the engine has dropped it before its download, as a fast stop does."""


Verdict = Dead | Requeue | RequeueIfClosing

_STRENGTH = (Dead, RequeueIfClosing, Requeue)


class Page(NamedTuple):
    """A fetched page.

    Args:
        request: the one given to the engine, whatever middlewares have changed.
        fetched_at: Unix time in seconds.
    """

    request: Request
    fetched_at: float


# For all crawls in this process: a callback has only a response, which has no reference to a queue.
_in_progress: WeakSet[Request] = WeakSet()
_reached: WeakSet[Request] = WeakSet()
_replaced: WeakSet[Request] = WeakSet()
_verdicts: WeakKeyDictionary[Request, Verdict] = WeakKeyDictionary()
_pages: WeakKeyDictionary[object, Page] = WeakKeyDictionary()


def note_handed_out(request: Request) -> None:
    """Note that a request is given to the engine, by a queue that will ask for its verdict."""
    _in_progress.add(request)


def was_handed_out(request: Request) -> bool:
    """Return whether the engine has, or had, this object."""
    return request in _in_progress or request in _reached


def note_result(result: object, page: Page) -> None:
    """Note which request a response or failure came from, before a spider sees it."""
    _pages[result] = page
    _reached.add(page.request)
    replaced = getattr(result, "request", None)
    if replaced is not None and replaced is not page.request:
        # A middleware has set another request as the response's.
        _pages[replaced] = page


def note_replaced(request: Request) -> None:
    """Note that a downloader middleware has replaced a request in progress by another one."""
    _replaced.add(request)


def page_of(thing: object) -> Page | None:
    """Return the page of a response, or of the request that it names; None if it is from none of our queues."""
    page = _pages.get(thing)
    if page is None and isinstance(thing, Response) and thing.request is not None:
        return page_of(thing.request)
    return page


def in_progress(thing: Request | Response) -> Request | None:
    """Return the request in progress behind a response, or behind the request that it names; None if there is none."""
    if isinstance(thing, Request) and thing in _in_progress:
        return thing
    page = page_of(thing)
    found = page.request if page is not None else thing.request if isinstance(thing, Response) else None
    return found if found is not None and found in _in_progress else None


def note_verdict(request: Request, verdict: Verdict) -> None:
    """Note a verdict on a request in progress; a requeue overrides a dead letter, or else the first one counts."""
    known = _verdicts.get(request)
    if known is None or _STRENGTH.index(type(known)) < _STRENGTH.index(type(verdict)):
        _verdicts[request] = verdict


def retract_failed_download(request: Request) -> None:
    """Remove the verdict that makes a request a dead letter because of its download."""
    known = _verdicts.get(request)
    if isinstance(known, Dead) and known.reason == DEAD_BY_DOWNLOAD:
        del _verdicts[request]


def take_verdict(request: Request) -> Verdict | Dropped | None:
    """Return the verdict on a request that is done, None for an ack.

    A request that was replaced by another one doesn't become a dead letter, whatever middlewares before have noted.
    """
    _in_progress.discard(request)
    verdict = _verdicts.pop(request, None) if _verdicts else None
    if request in _reached:
        return verdict
    if request not in _replaced:
        return Dropped()
    return None if isinstance(verdict, Dead) else verdict


REQUEUES_META = "prioqueue_requeue_times"
"""Key in `meta`: how often the request was put back by `requeue()`."""

DETAIL_LENGTH = 300
"""Maximum length of a dead letter's detail."""

MOST_DROPS = 10
"""How often the engine of a worker that isn't closing may drop a request before its download."""

TRACEBACK_LENGTH = 2_000
"""Maximum length of a traceback; its last lines are kept."""


class Verdicts:
    """Watches how requests are processed, and decides how they end.

    Args:
        can_delay: whether the queue to which requests return can delay them.
    """

    def __init__(
        self, crawler: Crawler, engine: Engine, config: Config, layers: Layers, *, can_delay: bool = True
    ) -> None:
        assert crawler.stats is not None
        self._can_delay = can_delay
        self._stats = StatCounter(crawler.stats)
        self._log = CrawlLog(logger, crawler.spider)
        self._engine = engine
        self._limit = config.requeue_limit
        self._layers = layers

    def watch(self) -> None:
        """Begin to follow the engine; call it once, before the engine starts a request."""
        self._engine.watch_results(lambda result, request, now: note_result(result, Page(request, now)))
        self._engine.watch_replaced(note_replaced)
        self._engine.watch_errors(note_error)

    def hand_out(
        self,
        request: Request,
        read: Callable[[bytes, str], Request] | None = None,
        payload: bytes = b"",
        slot: str = "",
    ) -> None:
        """Note that a request is given to the engine.

        Args:
            read: reads it again as it was scheduled, from payload and slot; None if it is kept as an object.
        """
        note_handed_out(request)
        if self._layers.are_set:
            self._layers.hand_out(request, None if read is None else partial(read, payload, slot))

    def decide(self, request: Request) -> Dead | Dropped | Requeue | None:
        """Return the verdict on a request that is done, None for an ack."""
        if self._layers.are_set:
            self._layers.look_back(request)
        verdict = take_verdict(request)
        if isinstance(verdict, RequeueIfClosing):
            verdict = Requeue(0.0, "its callback closed the spider") if self._engine.is_closing else None
        return self._limited(request, verdict) if isinstance(verdict, Requeue) else verdict

    def _limited(self, request: Request, verdict: Requeue) -> Dead | Requeue:
        requeued = request.meta.get(REQUEUES_META, 0)
        if requeued >= self._limit:
            detail = f"put back {how_often(requeued)} already" + (f": {verdict.reason}" if verdict.reason else "")
            self._log.error("Gave up %s, %s", in_a_line(request), in_a_line(detail))
            return Dead(DEAD_BY_CALLBACK, detail)
        self._stats.count(REQUEUED_STAT)
        self._log.debug(
            "%s is put back and fetched again %s: %s",
            in_a_line(request),
            self._when(verdict.delay_s),
            in_a_line(verdict.reason) or "no reason given",
        )
        return verdict

    def _when(self, delay_s: float) -> str:
        if delay_s and not self._can_delay:
            return f"without the delay of {delay_s:g} s, since Scrapy's own queue has no delays"
        return f"in {delay_s:g} s"

    def decide_kept(self, request: Request) -> Dead | Requeue | None:
        """Return the verdict on a request that stays in this process and so can't be released; None for an ack."""
        verdict = self.decide(request)
        if isinstance(verdict, Dropped):
            return self._limited(request, Requeue(0.0, "it was dropped before it was downloaded"))
        return verdict


class Endings:
    """Settles the leases of requests that are done."""

    def __init__(
        self,
        crawler: Crawler,
        config: Config,
        engine: Engine,
        verdicts: Verdicts,
        codec: RequestCodec,
        pump: Pump[Request],
        budgets: Costs,
        events: Events,
    ) -> None:
        assert crawler.stats is not None
        self._stats = StatCounter(crawler.stats)
        self._log = CrawlLog(logger, crawler.spider)
        self._verdicts = verdicts
        self._codec = codec
        self._pump = pump
        self._budgets = budgets
        self._events = events
        self.unreadable = Unreadable(crawler, engine, pump, config.name, events)
        self._dead_on = config.dead_letter_on
        self._engine = engine
        self._drops: Counter[int] = Counter()

    def end(self, request: Request, lease: Lease) -> bool:
        """End the lease of a request that is done, according to its verdict; False if the lease was only released."""
        verdict = self._verdicts.decide(request)
        if isinstance(verdict, Requeue):
            try:
                self._put_back(lease, verdict)
            except (DecodeError, EncodeError) as error:
                # The user's request class can't always be built. A released request is fetched again, too.
                self._log.error("%s is released instead of put back: %s", in_a_line(request), in_a_line(error))
                self._pump.finish(Release(lease.lease_id, lease.attempt))
                return False
        if isinstance(verdict, Dropped) and (verdict := self._given_up(lease)) is None:
            self._stats.count(LEASE_RELEASED_STAT)
            self._pump.finish(Release(lease.lease_id, lease.attempt))
            return False
        self._pump.finish(self._settling(request, lease, verdict))
        return True

    def _given_up(self, lease: Lease) -> Dead | None:
        """Return the verdict that makes a request a dead letter if the engine has dropped it too often, else None."""
        self._drops[lease.lease_id] += 1
        if self._engine.is_closing or self._drops[lease.lease_id] <= MOST_DROPS:
            return None
        return Dead(DEAD_BY_DOWNLOAD, f"the engine dropped it {MOST_DROPS} times before it was downloaded")

    def _put_back(self, lease: Lease, verdict: Requeue) -> None:
        # The stored request is used, since middlewares may have added headers and meta for this download only.
        stored, found = self._codec.decode_found(lease.payload, lease.slot)
        payload = self._codec.encode(again_of(stored), lease.slot, found=found)
        label = label_of(lease.payload)
        if label is not None:
            payload = labelled(payload, label)
        push = Push(lease.rank, lease.slot, payload, delay_ms=ceil(verdict.delay_s * 1000))
        self._pump.push(push, stored, lease.lease_id)

    def bury_kept(self, request: Request, verdict: Dead, rank: int, slot: str, found: Found) -> None:
        """Make a dead letter of a request that stayed in this process, given as it was scheduled.

        A request that can't be stored is only logged.
        """
        if verdict.reason not in self._dead_on:
            return
        self._note_dead(request, verdict)
        try:
            payload = self._codec.encode(request, slot, found=found)
            if self._budgets.is_on:
                payload = with_label(request, payload)
            if len(payload) > self._pump.frontier.payload_limit:
                raise too_large(payload)
        except (EncodeError, RequestError) as error:
            self._log.warning("%s can't be kept as a dead letter: %s", in_a_line(request), in_a_line(error))
            return
        bury(self._pump.outbox, Push(rank, slot, payload), verdict.reason, verdict.detail, verdict.traceback)

    def _settling(self, request: Request, lease: Lease, verdict: Dead | Requeue | None) -> Ack | Fail:
        spent = self._budgets.spent(request, lease) if self._budgets.is_on else None
        if not isinstance(verdict, Dead) or verdict.reason not in self._dead_on:
            return Ack(lease.lease_id, lease.attempt, spent)
        self._note_dead(request, verdict, lease.lease_id)
        return Fail(lease.lease_id, lease.attempt, verdict.reason, verdict.detail, verdict.traceback, spent)

    def _note_dead(self, request: Request, verdict: Dead, letter_id: int | None = None) -> None:
        self._stats.count(DEAD_STATS[verdict.reason])
        self._log.info(
            "%s becomes a dead letter (%s): %s",
            *(in_a_line(request), verdict.reason, in_a_line(verdict.detail)),
            extra=dead_letter(request, verdict.reason, letter_id),
        )
        self._events.dead_lettered(
            request, verdict.reason, verdict.detail, traceback=verdict.traceback, letter_id=letter_id
        )


def again_of(request: Request) -> Request:
    """Mark a request for requeueing, in place, and return it; the caller must own it."""
    request.dont_filter = True
    request.meta[REQUEUES_META] = request.meta.get(REQUEUES_META, 0) + 1
    return request


def note_error(request: Request, failure: Failure) -> None:
    """Note an exception of a callback or errback, or of a spider middleware after it."""
    error = failure.value
    if isinstance(error, CloseSpider):
        # The callback may not have yielded everything on the page.
        note_verdict(request, RequeueIfClosing())
    elif not isinstance(error, (IgnoreRequest, StopDownload)):
        note_verdict(request, Dead(DEAD_BY_CALLBACK, described(error), last_lines(failure.getTraceback())))


def last_lines(text: str, length: int = TRACEBACK_LENGTH) -> str:
    """Return a text of limited length: if it is longer, its last lines below a line with …."""
    if len(text) <= length:
        return text
    kept = text[2 - length :]
    cut = kept.find("\n") + 1
    # A line that takes most of the room is the message, so its end is kept.
    return "…\n" + kept[cut if cut <= length // 2 else 0 :]


def note_lost(request: Request, page: Request | None, error: Exception) -> None:
    """Make the page of a request that was lost to an error a dead letter."""
    found = None if page is None else in_progress(page)
    if found is not None:
        note_verdict(found, Dead(DEAD_BY_CALLBACK, f"{request} was not stored: {described(error)}"))


def described(error: object) -> str:
    """Return an exception, or another reason, as one line of limited length."""
    text = str(error)
    if isinstance(error, BaseException):
        kind = type(error)
        name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
        text = f"{name}: {text}" if text else name
    line = " ".join(text.split())
    return line if len(line) <= DETAIL_LENGTH else f"{line[: DETAIL_LENGTH - 1]}…"


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
            self._bury(lease, error)

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

    def _bury(self, lease: Lease, error: Exception) -> None:
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
