"""Leaving the crawl: sends the rest of the outbox within a time limit."""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from twisted.internet.defer import CancelledError, Deferred, inlineCallbacks

from scrapy_prioqueue.errors import FrontierFull, FrontierUnavailable, RequestTooLarge
from scrapy_prioqueue.frontier.base import Demand, Depth, Exchanged, Frontier
from scrapy_prioqueue.frontier.runs import FleetTotals
from scrapy_prioqueue.logs import CrawlLog
from scrapy_prioqueue.printable import counted
from scrapy_prioqueue.pump.backpressure import take_too_large
from scrapy_prioqueue.pump.delegate import Delegate
from scrapy_prioqueue.pump.leases import Leases
from scrapy_prioqueue.pump.outbox import Unsent
from scrapy_prioqueue.runtime import Runner, call_later, pause

logger = logging.getLogger(__name__)

Tag = TypeVar("Tag")
T = TypeVar("T")

RETRY_S = 0.2

_UNSENT = (
    ("request", " found on pages: those pages are fetched again, or yielded by start() of a later run"),
    ("request", " from no page: start() of a later run may yield the same again"),
    ("ack", ", without which a page is fetched again when its lease expires"),
    ("request", " to be released, which others get when the leases expire"),
)
"""Nouns and texts for the log, one pair for each count of `Unsent`."""


@inlineCallbacks
def take_leave(
    frontier: Frontier,
    runner: Runner,
    delegate: Delegate[Tag],
    leases: Leases[Tag],
    running: Deferred[Any] | None,
    timeout_s: float,
    ended_by: Exception | None = None,
) -> Any:
    """Commit the outbox, leave, and close the connections; return the last counts, None if unknown.

    Args:
        leases: of this worker, with its outbox.
        running: the call in progress, if any.
        timeout_s: seconds after which it gives up and logs the operations that were not sent.
        ended_by: the error that made this worker close, if any; it has been logged.
    """
    failures: list[Exception] = []
    depth: Depth | None = None
    leaving: Deferred[Depth] = _leave(frontier, runner, delegate, leases, running, failures)
    timer = call_later(timeout_s, leaving.cancel)
    try:
        depth = yield leaving
    except Exception as error:
        if isinstance(error, CancelledError):
            within = f"within {timeout_s:g} s (PRIOQUEUE_CLOSE_TIMEOUT)"
            why = f"not possible {within}: {failures[-1]}" if failures else f"no answer {within}"
        else:
            why = "see the error above" if str(error) == str(ended_by) else str(error)
        _log_unsent(CrawlLog(logger, delegate.spider), frontier.address, leases.outbox.unsent(), why)
    finally:
        timer.cancel()
    yield runner.start(frontier.close())
    runner.close()
    return depth


@inlineCallbacks
def _leave(
    frontier: Frontier,
    runner: Runner,
    delegate: Delegate[Tag],
    leases: Leases[Tag],
    running: Deferred[Any] | None,
    failures: list[Exception],
) -> Any:
    outbox, log = leases.outbox, CrawlLog(logger, delegate.spider)
    if running is not None:
        yield running
    while outbox:
        answer: Exchanged = yield _insist(runner, partial(frontier.exchange, outbox.batches(), None), failures)
        for outcome in [*outbox.confirm(answer.committed), *outbox.give_up_claims(outbox.take_rejected())]:
            delegate.note_outcome(outcome)
        if answer.recall is not None:
            outbox.put_back(certainly=True)
        if isinstance(answer.rejection, FrontierFull):
            outbox.put_back(certainly=True)
            _log_given_up(log, outbox.give_up_requests(), answer.rejection)
        elif isinstance(answer.rejection, RequestTooLarge):
            too_large = take_too_large(frontier, outbox, delegate)
            outbox.release_lingering()
            if too_large:
                _log_given_up(log, len(too_large), answer.rejection)
        elif answer.rejection is not None:
            raise answer.rejection
    if leases.must_reconcile or failures:
        # The outbox has ended every lease that this worker knows of, so the server's other leases for it are released.
        yield _insist(runner, lambda: frontier.reconcile(()), failures)
    depth: Depth = yield _last_depth(frontier, runner, failures)
    totals: FleetTotals | None = yield _insist(runner, partial(frontier.leave, delegate.last_report()), failures)
    delegate.note_totals(totals)
    return depth


@inlineCallbacks
def _last_depth(frontier: Frontier, runner: Runner, failures: list[Exception]) -> Any:
    count = partial(frontier.exchange, (), Demand(0))
    last: Exchanged = yield _insist(runner, count, failures)
    while last.recall is not None:
        # The answer of a recall has no counts.
        last = yield _insist(runner, count, failures)
    letters: int = yield _insist(runner, frontier.count_letters, failures)
    return replace(last.depth, letters=letters)


@inlineCallbacks
def _insist(runner: Runner, call: Callable[[], Coroutine[Any, Any, T]], failures: list[Exception]) -> Any:
    """Repeat a call until the server answers, and collect the errors; the caller limits the time."""
    while True:
        try:
            result: T = yield runner.start(call())
        except FrontierUnavailable as error:
            failures.append(error)
            yield pause(RETRY_S)
        else:
            return result


def _log_given_up(log: CrawlLog, requests: int, why: Exception) -> None:
    log.warning(
        "Closed without storing %s (%s). The pages with links to them are released and will be fetched again",
        counted(requests, "request"),
        why,
    )


def _log_unsent(log: CrawlLog, address: str, unsent: Unsent, why: str) -> None:
    parts = [counted(count, noun) + text for (noun, text), count in zip(_UNSENT, unsent, strict=True) if count]
    if parts:
        log.warning(
            "Closed before the frontier at %s confirmed everything (%s). Not confirmed: %s",
            address,
            why,
            "; ".join(parts),
        )
    else:
        log.warning(
            "Closed without leaving the frontier at %s (%s). This worker counts as alive for PRIOQUEUE_LEASE_TTL",
            address,
            why,
        )
