"""How requests in progress will end: verdicts are noted while they are processed, and decided when they are done."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, NamedTuple
from weakref import WeakKeyDictionary, WeakSet

from scrapy import Request
from scrapy.crawler import Crawler
from scrapy.exceptions import CloseSpider, IgnoreRequest, StopDownload
from scrapy.http import Response
from twisted.python.failure import Failure

from scrapy_prioqueue.engine import Engine, StatCounter
from scrapy_prioqueue.frontier.base import DEAD_BY_CALLBACK, DEAD_BY_DOWNLOAD
from scrapy_prioqueue.logs import CrawlLog
from scrapy_prioqueue.printable import how_often, in_a_line
from scrapy_prioqueue.settings import Config
from scrapy_prioqueue.stats import REQUEUED_STAT

if TYPE_CHECKING:
    from scrapy_prioqueue.queues.layers import Layers

logger = logging.getLogger(__name__)

REQUEUES_META = "prioqueue_requeue_times"
"""Key in `meta`: how often the request was put back by `requeue()`."""

DETAIL_LENGTH = 300
"""Maximum length of a dead letter's detail."""

TRACEBACK_LENGTH = 2_000
"""Maximum length of a traceback; its last lines are kept."""


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
