"""How a worker leaves the crawl: what is left in the outbox is told, within a time limit."""

from __future__ import annotations

import logging
from typing import Any, TypeVar

from twisted.internet.defer import CancelledError, Deferred, inlineCallbacks

from scrapy_prioqueue.frontier.base import Exchanged, Frontier
from scrapy_prioqueue.pump.host import Host
from scrapy_prioqueue.pump.outbox import Outbox
from scrapy_prioqueue.runtime import Runner, call_later

logger = logging.getLogger(__name__)

Tag = TypeVar("Tag")


@inlineCallbacks
def take_leave(
    frontier: Frontier,
    runner: Runner,
    outbox: Outbox[Tag],
    host: Host[Tag],
    running: Deferred[Any] | None,
    timeout_s: float,
) -> Any:
    """Commit the outbox, leave, close the connections.

    Args:
        running: the exchange that is under way, if one is.
        timeout_s: seconds until it gives up and says what was not told.
    """
    leaving: Deferred[None] = _leave(frontier, runner, outbox, host, running)
    timer = call_later(timeout_s, leaving.cancel)
    try:
        yield leaving
    except Exception as error:
        logger.warning(
            "Closed without telling the frontier at %s everything (%s): %d acks and requests were not sent;"
            " the leases of this worker expire, and those pages are fetched again",
            frontier.address,
            f"no answer within {timeout_s:g} s" if isinstance(error, CancelledError) else error,
            len(outbox),
        )
    else:
        timer.cancel()
    yield runner.start(frontier.close())
    runner.close()


@inlineCallbacks
def _leave(
    frontier: Frontier, runner: Runner, outbox: Outbox[Tag], host: Host[Tag], running: Deferred[Any] | None
) -> Any:
    if running is not None:
        yield running
    while outbox:
        answer: Exchanged = yield runner.start(frontier.exchange(outbox.batches(), None))
        for outcome in outbox.confirm(answer.committed):
            host.settled(outcome)
        if answer.refusal is not None:
            raise answer.refusal
    yield runner.start(frontier.leave())
