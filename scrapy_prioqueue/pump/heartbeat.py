"""Renews leases from a thread while the spider's code holds up the loop; nothing here acts while the loop turns."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from time import monotonic

from scrapy_prioqueue.errors import PrioQueueError
from scrapy_prioqueue.frontier.base import Frontier
from scrapy_prioqueue.runtime import Timer, call_later

logger = logging.getLogger(__name__)

_PULSES_PER_TTL = 12
_LOOKS_PER_TTL = 6
_OVERDUE_TTLS = 0.5
"""Later than the pump renews, early enough for a second try before a lease expires."""


@dataclass(frozen=True, slots=True)
class Beat:
    """One renewal by the thread.

    Args:
        at: when it was sent, by `time.monotonic`.
        renewed: how many leases it has renewed.
        lost: ids of those that this worker does not hold any more.
    """

    at: float
    renewed: int
    lost: Sequence[int]


class Heartbeat:
    """Watches the loop from a thread, and renews over a connection of its own once renewals are overdue.

    Args:
        leases: called in the thread; returns (lease id, attempt) of all that may be started or runs.
        ttl_s: seconds until a lease expires that nobody renews.
    """

    def __init__(self, frontier: Frontier, leases: Callable[[], Sequence[tuple[int, int]]], ttl_s: float) -> None:
        self._frontier = frontier
        self._leases = leases
        self._ttl_s = ttl_s
        self._look_s = ttl_s / _LOOKS_PER_TTL
        self._renewed_at = self._pulse_at = monotonic()
        self._warned_at = 0.0
        self._failed_at = 0.0
        self._beats: deque[Beat] = deque()
        self._closed = threading.Event()
        self._timer: Timer | None = None
        self._owner = threading.current_thread()

    def start(self) -> None:
        """Begin to watch; called on Scrapy's loop. Leases in process are left alone: nobody else wants them."""
        if self._frontier.is_local or self._closed.is_set():
            return
        self._owner = threading.current_thread()
        self._renewed_at = monotonic()
        self._pulse()
        # A daemon, so that a process whose crawl is never closed can end.
        threading.Thread(target=self._watch, name="prioqueue heartbeat", daemon=True).start()

    def note_renewal(self, at: float) -> None:
        """The loop has renewed all leases itself, with a call sent at that time of `time.monotonic`."""
        self._renewed_at = max(self._renewed_at, at)

    def collect(self) -> Iterator[Beat]:
        """Yield, once, what the thread has done; for the loop, when it turns again."""
        while self._beats:
            yield self._beats.popleft()

    def close(self) -> None:
        """Stop watching; a renewal that is under way is not waited for. Safe to call twice."""
        self._closed.set()
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()

    def _pulse(self) -> None:
        """Show that the loop turns."""
        self._pulse_at = monotonic()
        self._timer = call_later(self._ttl_s / _PULSES_PER_TTL, self._pulse)

    # In the thread

    def _watch(self) -> None:
        looked_at = monotonic()
        while not self._closed.wait(self._look_s) and self._owner.is_alive():
            last_look, looked_at = looked_at, monotonic()
            # After a stop of the whole process the loop is given the time to renew by itself.
            was_stopped = looked_at - last_look > 2 * self._look_s
            if not was_stopped and self._is_needed(looked_at):
                self._beat(self._pulse_at)
                looked_at = monotonic()

    def _is_needed(self, now: float) -> bool:
        is_silent = now - self._pulse_at > self._look_s
        return is_silent and now - self._renewed_at > _OVERDUE_TTLS * self._ttl_s

    def _beat(self, pulse_at: float) -> None:
        """Renew; a silence is known by the time of the pulse before it."""
        started = monotonic()
        if self._warned_at != pulse_at:
            self._warned_at = pulse_at
            logger.warning(
                "The spider's code has held up the event loop for %.1f s: a thread renews the leases of this worker"
                " meanwhile, so that others don't fetch the same pages (PRIOQUEUE_LEASE_TTL = %g s), but all else"
                " waits. Let such code run in a thread, for example with twisted.internet.threads.deferToThread",
                started - pulse_at,
                self._ttl_s,
            )
        try:
            leases = self._leases()
            renewed, lost = asyncio.run(_renew(self._frontier.twin(), leases))
        except Exception as error:
            self._complain(error, pulse_at)
            return
        if leases and not renewed and not lost:
            # The server has forgotten this session; the loop's next exchange enters again.
            return
        self._renewed_at = max(self._renewed_at, started)
        self._beats.append(Beat(started, renewed, lost))

    def _complain(self, error: Exception, pulse_at: float) -> None:
        if self._failed_at == pulse_at:
            return
        self._failed_at = pulse_at
        if isinstance(error, PrioQueueError):
            logger.warning("The leases of this worker could not be renewed from a thread, which tries again: %s", error)
        else:
            logger.error("Unexpected error in the thread that renews leases, which tries again", exc_info=error)


def warn_of_lost(count: int) -> None:
    """Say that so many leases could not be renewed, since others have them."""
    if count:
        logger.warning(
            "%d leases of this worker went to others: an operator took them, or it was silent for longer than"
            " PRIOQUEUE_LEASE_TTL, because the process was stopped or code held the interpreter's lock for example",
            count,
        )


async def _renew(frontier: Frontier, leases: Sequence[tuple[int, int]]) -> tuple[int, Sequence[int]]:
    """Renew, close the frontier, and return how many leases were renewed and which are lost."""
    try:
        # The frontier knows of more: what waits to be acked, and what came in an answer that the loop has not read.
        held = await frontier.leases()
        lost = await frontier.renew(sorted({*leases, *held}))
        return sum(lease_id not in lost for lease_id, _ in held), lost
    finally:
        await frontier.close()
