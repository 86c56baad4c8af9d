"""Renews leases from a thread while the spider's code blocks the loop; it is passive while the loop runs."""

from __future__ import annotations

import asyncio
import logging
import sys
import sysconfig
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath
from time import monotonic
from types import CodeType, FrameType
from typing import TYPE_CHECKING

from scrapy_prioqueue.errors import PrioQueueError
from scrapy_prioqueue.frontier.base import Frontier
from scrapy_prioqueue.frontier.waits import Blocked, SlowPage
from scrapy_prioqueue.hints import evict_command, frontier_command
from scrapy_prioqueue.logs import CrawlLog
from scrapy_prioqueue.printable import in_a_line
from scrapy_prioqueue.runtime import Timer, call_later

if TYPE_CHECKING:
    from scrapy import Spider

logger = logging.getLogger(__name__)

_LIBRARIES = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})


@dataclass(frozen=True, slots=True)
class CodeLocation:
    """The position of a thread at one moment.

    Args:
        text: function, file and line.
        codes: of all functions on its stack.
    """

    text: str
    codes: Collection[CodeType]


def location_of(thread_id: int) -> CodeLocation:
    """Return a thread's position: the innermost function outside of libraries, else the innermost one."""
    frames = list(_frames(sys._current_frames().get(thread_id)))  # noqa: SLF001 - documented
    own = [frame for frame in frames if not _is_of_library(frame.f_code.co_filename)]
    where = next(iter(own or frames), None)
    if where is None:
        return CodeLocation("in code that is not known", ())
    file = "/".join(PurePath(where.f_code.co_filename).parts[-2:])
    text = f"in {where.f_code.co_name} of {file}, line {where.f_lineno}"
    return CodeLocation(text, {frame.f_code for frame in frames})


def _frames(frame: FrameType | None) -> Iterator[FrameType]:
    """Yield frames, the innermost first."""
    while frame is not None:
        yield frame
        frame = frame.f_back


def _is_of_library(file: str) -> bool:
    return file.startswith((*_LIBRARIES, "<")) or "site-packages" in file


_PULSES_PER_TTL = 12
_LOOKS_PER_TTL = 6
_OVERDUE_TTLS = 0.5
"""Later than the pump's own renewals, and early enough for a second attempt before a lease expires."""

MOST_PAGES = 5
"""Maximum number of pages that are named; blocking code usually belongs to one page."""

_Tokens = Sequence[tuple[int, int]]
"""(lease id, attempt) of leases."""

PagesAtWork = Callable[[Collection[CodeType]], Sequence[SlowPage]]
"""Returns the pages whose spider code may be running, given the code on the stack; called in the thread."""


@dataclass(frozen=True, slots=True)
class Beat:
    """One action of the thread.

    Args:
        at: when it was sent, by `time.monotonic`.
        renewed: number of leases renewed.
        lost: ids of leases that this worker doesn't hold any more.
        gives_back: unstarted leases were released.
        is_warning: the log says that the loop has been blocked for a long time.
    """

    at: float = 0.0
    renewed: int = 0
    lost: Sequence[int] = ()
    gives_back: bool = False
    is_warning: bool = False


@dataclass(slots=True)
class _Silence:
    """A period in which the loop is blocked.

    Args:
        since: time of the last pulse before it.
        warn_at: when to log the next warning.
        lost: ids of leases that were lost in it.
    """

    since: float
    warn_at: float = 0.0
    has_failed: bool = False
    lost: set[int] = field(default_factory=set)


class Heartbeat:
    """Watches the loop from a thread, and renews leases over its own connection once renewals are overdue.

    Args:
        leases: called in the thread; returns (lease id, attempt) of all leases that run or may be started.
        ttl_s: lifetime of a lease without renewal, in seconds.
        slow_s: seconds after which the loop counts as blocked, 0 for never. Then the log and the frontier report it,
            and unstarted leases are released.
        started: called in the thread; returns (lease id, attempt) of all leases that run or have an unconfirmed end.
        has_own_work: called in the thread; returns whether there is work here without a lease.
        spider: for log records.
    """

    def __init__(
        self,
        frontier: Frontier,
        leases: Callable[[], Sequence[tuple[int, int]]],
        ttl_s: float,
        slow_s: float = 0.0,
        started: Callable[[], Sequence[tuple[int, int]]] = list,
        has_own_work: Callable[[], bool] = bool,
        spider: Spider | None = None,
    ) -> None:
        self._log = CrawlLog(logger, spider)
        self._frontier = frontier
        self._leases = leases
        self._ttl_s = ttl_s
        self._look_s = ttl_s / _LOOKS_PER_TTL
        self._pulse_at = monotonic()
        self.renewed_at = self._pulse_at
        """When the latest renewal was sent, by the loop or the thread, by `time.monotonic`."""
        self._slow_s = slow_s
        self._started = started
        self._has_own_work = has_own_work
        self._pages_at_work: PagesAtWork = lambda _: ()
        self._silence = _Silence(0.0)
        self.has_noted = False
        """The frontier has a report that the loop is blocked; reset by the code that deletes the report."""
        self.beats: deque[Beat] = deque()
        """Actions of the thread, oldest first; the loop removes them when it runs again."""
        self._closed = threading.Event()
        self._timer: Timer | None = None
        self._owner = threading.current_thread()

    def start(self, pages_at_work: PagesAtWork = lambda _: ()) -> None:
        """Begin to watch; called on Scrapy's loop. Leases in process need no renewal: no other worker gets them."""
        self._pages_at_work = pages_at_work
        if self._frontier.is_local or self._closed.is_set():
            return
        self._owner = threading.current_thread()
        self.renewed_at = monotonic()
        self._pulse()
        # A daemon, so that a process whose crawl is never closed can end.
        threading.Thread(target=self._watch, name="prioqueue heartbeat", daemon=True).start()

    @property
    def lag_s(self) -> float:
        """Seconds by which the loop is late with its next pulse."""
        return max(0.0, monotonic() - self._pulse_at - self._ttl_s / _PULSES_PER_TTL)

    def note_renewal(self, at: float) -> None:
        """Note that the loop has renewed all leases, with a call sent at this time of `time.monotonic`."""
        self.renewed_at = max(self.renewed_at, at)

    def close(self) -> None:
        """Stop watching, without waiting for a renewal in progress. Safe to call twice."""
        self._closed.set()
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()

    def _pulse(self) -> None:
        """Show that the loop is running."""
        self._pulse_at = monotonic()
        self._timer = call_later(self._ttl_s / _PULSES_PER_TTL, self._pulse)

    # In the thread

    def _watch(self) -> None:
        looked_at = monotonic()
        while not self._closed.wait(self._look_s) and self._owner.is_alive():
            last_look, looked_at = looked_at, monotonic()
            # After a stop of the whole process the loop gets time to renew by itself.
            was_stopped = looked_at - last_look > 2 * self._look_s
            if not was_stopped and self._is_needed(looked_at):
                self._beat(self._pulse_at)
                looked_at = monotonic()

    def _is_needed(self, now: float) -> bool:
        is_silent = now - self._pulse_at > self._look_s
        return is_silent and now - self.renewed_at > _OVERDUE_TTLS * self._ttl_s

    def _beat(self, pulse_at: float) -> None:
        """Renew; `pulse_at`, the time of the last pulse, identifies the silence."""
        started = monotonic()
        if self._silence.since != pulse_at:
            self._silence = _Silence(pulse_at, warn_at=pulse_at + self._slow_s)
            self._warn(started - pulse_at)
        silence = self._silence
        try:
            if 0 < self._slow_s <= started - pulse_at:
                beat = asyncio.run(self._renew_blocked(silence, started))
            else:
                beat = asyncio.run(self._renew(silence, started))
        except Exception as error:
            self._complain(error, silence)
            return
        if beat is not None:
            self.renewed_at = max(self.renewed_at, started)
            self.beats.append(beat)

    def _warn(self, held_up_s: float) -> None:
        self._log.warning(
            "The spider's code has blocked the event loop for %.1f s, %s. A thread renews this worker's leases"
            " meanwhile, so that others don't fetch the same pages (PRIOQUEUE_LEASE_TTL = %g s), but nothing else"
            " runs. Run such code in a thread, for example with twisted.internet.threads.deferToThread",
            held_up_s,
            self._code_location().text,
            self._ttl_s,
        )

    def _code_location(self) -> CodeLocation:
        return location_of(self._owner.ident or 0)

    async def _renew(self, silence: _Silence, started: float) -> Beat | None:
        frontier = self._frontier.twin()
        try:
            return await self._renew_over(frontier, silence, started, self._leases(), await frontier.leases())
        finally:
            await frontier.close()

    async def _renew_blocked(self, silence: _Silence, started: float) -> Beat | None:
        """Renew started leases, release the others, and report the blocked loop in the log and the frontier.

        The loop may never run again.
        """
        where = self._code_location()
        pages = list(self._pages_at_work(where.codes))[:MOST_PAGES]
        if started >= silence.warn_at:
            silence.warn_at = started + (started - silence.since)
            self._warn_blocked(where, pages, started - silence.since)
            self.beats.append(Beat(is_warning=True))
        frontier = self._frontier.twin()
        try:
            leases, held = await self._give_back_unstarted(frontier, started)
            beat = await self._renew_over(frontier, silence, started, leases, held)
            has_none = all(lease_id in silence.lost for lease_id, _ in held)
            is_idle = bool(silence.lost) and has_none and not self._has_own_work()
            # Set before and after the call, since the loop may run again meanwhile and delete the report too early.
            self.has_noted = True
            pages = [page for page in pages if page.lease_id not in silence.lost]
            await frontier.report_slow(pages, Blocked(where.text, monotonic() - silence.since, is_idle))
            self.has_noted = True
            return beat
        finally:
            await frontier.close()

    def _warn_blocked(self, where: CodeLocation, pages: Sequence[SlowPage], blocked_s: float) -> None:
        named = [f"{page.url} (callback {page.callback}, id {page.lease_id})" for page in pages]
        self._log.warning(
            "The event loop has been blocked for %d s, %s, and may never run again (PRIOQUEUE_SLOW_PAGE)%s."
            " Requests that are not started are released. '%s' gives a page to other workers, '%s' gives all pages"
            " of this worker. To end this process use SIGKILL",
            blocked_s,
            where.text,
            f", while the spider's code processes {in_a_line(', '.join(named))}" if named else "",
            frontier_command("release ID", self._frontier.config.name),
            evict_command(self._frontier.config.worker, self._frontier.config.name),
        )

    async def _give_back_unstarted(self, frontier: Frontier, started: float) -> tuple[_Tokens, _Tokens]:
        """Release unstarted leases; return the started ones, and those of them that the server knows."""
        # Report this to the loop first, so that it starts none of these leases when it runs again.
        self.beats.append(Beat(started, gives_back=True))
        leases = self._started()
        held = await frontier.leases()
        kept = sorted({*leases}.intersection(held))
        if len(kept) < len(held):
            await frontier.reconcile(kept)
        return leases, kept

    async def _renew_over(
        self, frontier: Frontier, silence: _Silence, started: float, leases: _Tokens, held: _Tokens
    ) -> Beat | None:
        """Renew; return None if the server has forgotten this session: the loop's next exchange enters again."""
        leases = [lease for lease in leases if lease[0] not in silence.lost]
        # The frontier has more leases: those whose acks wait, and those of an answer that the loop has not read.
        lost = await frontier.renew(sorted({*leases, *held}))
        silence.lost.update(lost)
        renewed = sum(lease_id not in lost for lease_id, _ in held)
        return Beat(started, renewed, lost) if renewed or lost or not leases else None

    def _complain(self, error: Exception, silence: _Silence) -> None:
        if silence.has_failed:
            return
        silence.has_failed = True
        if isinstance(error, PrioQueueError):
            self._log.warning("The thread could not renew this worker's leases and tries again: %s", error)
        else:
            self._log.error("Unexpected error in the thread that renews leases; it tries again", exc_info=error)
