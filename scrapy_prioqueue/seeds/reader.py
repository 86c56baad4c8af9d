"""Decides when to take seeds and when to settle them; it doesn't know what a seed becomes."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Sequence
from time import monotonic
from typing import TYPE_CHECKING, Any, Protocol

from scrapy.utils.log import failure_to_exc_info
from twisted.internet.defer import CancelledError, Deferred, inlineCallbacks
from twisted.python.failure import Failure

from scrapy_prioqueue.errors import FrontierFull, FrontierRefused, FrontierUnavailable
from scrapy_prioqueue.frontier.seeds import Seed, SeedStore, Taken
from scrapy_prioqueue.logs import CrawlLog
from scrapy_prioqueue.printable import counted
from scrapy_prioqueue.runtime import Alarm, Runner, call_later
from scrapy_prioqueue.stats import SEEDS_RETURNED_STAT, SEEDS_TAKEN_STAT

if TYPE_CHECKING:
    from scrapy import Spider

logger = logging.getLogger(__name__)

POLL_S = 1.0
"""Seconds between two reads if there was nothing, or if the frontier has enough requests."""

RECHECK_S = 0.2
"""Seconds after which a worker whose frontier had enough requests checks again."""

REPORT_S = 0.1
"""Seconds that a settled entry may wait for others, so that they are dropped together."""

RETRY_S = 2.0
REFUSED_RETRY_S = 30.0
"""Seconds from a failure to the next try: after a passing one, reduced by up to half at random so that a fleet doesn't
retry in step, and after one that an operator has to fix.
"""


class SeedDelegate(Protocol):
    """What the reader needs of the queue that it reads for."""

    def has_room(self) -> bool:
        """Return whether requests may be stored now."""

    def has_plenty(self) -> bool:
        """Return whether the frontier has enough requests without new seeds."""

    def take(self, seeds: Sequence[Seed]) -> None:
        """Turn seeds into requests; `Reader.settle` must be called for each seed when its requests are stored."""

    def note_seeds(self) -> None:
        """`Reader.is_busy` has changed."""

    def note_empty(self) -> None:
        """The first read has found that there are no seeds yet."""

    def count(self, stat: str, change: int = 1) -> None:
        """Add to a stat."""


class Reader:
    """Takes seeds in batches, one call to the server at a time.

    Args:
        make_runner: returns a runner for the store alone, which is closed with it.
        delegate: turns the seeds into requests.
        batch_size: entries taken at once. If the worker is killed right after, they wait until it counts as silent.
    """

    def __init__(
        self,
        store: SeedStore,
        make_runner: Callable[[], Runner],
        delegate: SeedDelegate,
        batch_size: int,
        clock: Callable[[], float] = monotonic,
        spider: Spider | None = None,
    ) -> None:
        self._log = CrawlLog(logger, spider)
        self._store = store
        self._make_runner = make_runner
        self._runner: Runner | None = None
        self._delegate = delegate
        self._batch_size = batch_size
        self._clock = clock
        self._alarm = Alarm(clock, self._look)
        self._running: Deferred[None] | None = None
        self._settled: list[Seed] = []
        self._take_at = self._report_at = clock()
        self._has_full_batch = False
        self._has_read = False
        self._logged: object = None
        self._is_closed = False
        self.is_busy = True
        """Whether there are seeds, or may be: the crawl must not end."""
        self.is_refused = False
        """Whether a key can't be read until an operator changes something."""

    def start(self) -> None:
        self._runner = self._make_runner()
        self._look()

    def settle(self, seed: Seed) -> None:
        """Drop an entry for good, since its requests or dead letters are stored."""
        if not self._settled:
            self._report_at = self._clock() + REPORT_S
        self._settled.append(seed)
        self._set_alarm()

    def _set_alarm(self) -> None:
        if self._is_closed or self._running is not None:
            return
        due = self._take_at
        if self._settled:
            due = min(due, self._report_at)
        if self._has_full_batch:
            due = min(due, self._clock() + RECHECK_S)
        self._alarm.set(due)

    def _look(self) -> None:
        if self._is_closed or self._running is not None:
            return
        now = self._clock()
        is_due = self._take_at <= now or (self._has_full_batch and not self._delegate.has_plenty())
        limit = self._batch_size if is_due and self._delegate.has_room() else 0
        if is_due and not limit:
            self._take_at = now + RECHECK_S
        if limit or (self._settled and self._report_at <= now):
            self._exchange(limit)
        self._set_alarm()

    def _exchange(self, limit: int) -> None:
        assert self._runner is not None
        settled, self._settled = self._settled, []
        done: Deferred[None] = Deferred()
        self._running = done
        running: Deferred[Any] = self._runner.start(self._store.exchange(settled, limit))
        running.addCallback(self._on_taken, limit)
        running.addErrback(self._on_failed, settled)
        running.addCallback(lambda _: self._ended(done))

    def _ended(self, done: Deferred[None]) -> None:
        self._running = None
        self._set_alarm()
        done.callback(None)

    def _on_taken(self, taken: Taken, limit: int) -> None:
        self._note_health(taken, limit)
        self._delegate.count(SEEDS_TAKEN_STAT, len(taken.seeds))
        self._delegate.count(SEEDS_RETURNED_STAT, taken.given_back)
        if taken.given_back:
            self._log.info(
                "Put back %s that a lost worker, or an earlier process, had taken", counted(taken.given_back, "seed")
            )
        if self._is_closed:
            # They are given back when the store is closed.
            return
        self._delegate.take(taken.seeds)
        if limit:
            self._has_full_batch = len(taken.seeds) >= limit
            self._take_at = self._clock() + (0 if taken.given_back and not taken.seeds else POLL_S)
            self._set_busy(taken.sees_more)

    def _set_busy(self, is_busy: bool) -> None:
        was_busy, self.is_busy = self.is_busy, is_busy
        if was_busy != is_busy:
            self._delegate.note_seeds()

    def _note_health(self, taken: Taken, limit: int) -> None:
        if not limit:
            return
        trouble = tuple(f"{key} is a {kind}" for key, kind in taken.wrong_types.items())
        self.is_refused = bool(trouble)
        if trouble:
            self._say(
                trouble,
                f"Seeds are not read: {', '.join(trouble)}, not a list, set or sorted set;"
                " delete it, or name another key in PRIOQUEUE_SEEDS_KEY",
            )
        elif self._logged is not None:
            self._logged = None
            self._log.info("Seeds are read again")
        if not (self._has_read or trouble or taken.seeds or taken.sees_more):
            self._delegate.note_empty()
        self._has_read = True

    def _say(self, trouble: object, text: str, **more: Any) -> None:
        """Log an error once, as long as the trouble is the same."""
        if trouble != self._logged:
            self._logged = trouble
            self._log.error(text, **more)

    def _on_failed(self, failure: Failure, settled: list[Seed]) -> None:
        error = failure.value
        self._settled[:0] = settled
        is_passing = isinstance(error, (FrontierUnavailable, FrontierFull)) and not isinstance(error, FrontierRefused)
        retry_s = RETRY_S * random.uniform(0.5, 1) if is_passing else REFUSED_RETRY_S
        self._take_at = self._report_at = self._clock() + retry_s
        self._has_full_batch = False
        if is_passing:
            self._say("away", f"Seeds are not read for now: {error}")
            return
        if isinstance(error, FrontierRefused):
            self._say(str(error), f"Seeds are not read: {error}")
        else:
            self._say(repr(error), "Unexpected error while reading seeds", exc_info=failure_to_exc_info(failure))
        self.is_refused = True
        self._set_busy(False)

    # Closing

    def stop(self) -> None:
        """Take no more seeds."""
        self._is_closed = True
        self._alarm.cancel()

    @inlineCallbacks
    def close(self, timeout_s: float) -> Any:
        """Drop the settled entries, give back the rest, and close the connections; call `stop` first.

        Entries that can't be given back stay under this worker's id, until its next process or another worker does it.
        """
        if self._runner is None:
            return
        leaving: Deferred[int] = self._leave(self._runner)
        timer = call_later(timeout_s, leaving.cancel)
        try:
            given_back = yield leaving
            if given_back:
                self._log.info("Put back %s, not stored", counted(given_back, "seed"))
        except Exception as error:
            is_late = isinstance(error, CancelledError)
            why = f"no answer within {timeout_s:g} s (PRIOQUEUE_CLOSE_TIMEOUT)" if is_late else error
            self._log.info("The seeds that this worker has taken and not stored are put back later (%s)", why)
        finally:
            timer.cancel()
        yield self._runner.start(self._store.close())
        self._runner.close()

    @inlineCallbacks
    def _leave(self, runner: Runner) -> Any:
        if self._running is not None:
            yield self._running
        given_back: int = yield runner.start(self._store.leave(self._settled))
        return given_back
