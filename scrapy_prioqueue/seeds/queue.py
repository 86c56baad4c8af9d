"""The scheduler's queue of a spider that reads seeds: turns them into requests and tracks each until it is stored."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import isinf
from typing import Any

from scrapy import Request, signals
from scrapy.crawler import Crawler
from scrapy.dupefilters import BaseDupeFilter
from scrapy.exceptions import CloseSpider
from scrapy.utils.defer import deferred_from_coro
from twisted.internet.defer import Deferred

from scrapy_prioqueue.codec.reasons import brief
from scrapy_prioqueue.errors import EncodeError, RequestError, SeedError
from scrapy_prioqueue.frontier.base import DEAD_BY_DECODE, Claim, Frontier, Push
from scrapy_prioqueue.frontier.seeds import Seed, SeedStore
from scrapy_prioqueue.logs import CrawlLog, dead_letter
from scrapy_prioqueue.printable import in_a_line
from scrapy_prioqueue.pump.outbox import HeldRequest, Outcome, push_dead_letter
from scrapy_prioqueue.queues.frontier import FrontierQueue
from scrapy_prioqueue.queues.verdicts import described
from scrapy_prioqueue.rank import rank_of
from scrapy_prioqueue.runtime import Runner, suitable_runner
from scrapy_prioqueue.seeds.letters import SLOT, detail_of
from scrapy_prioqueue.seeds.parsing import request_from_seed
from scrapy_prioqueue.seeds.reader import Reader
from scrapy_prioqueue.settings import Config
from scrapy_prioqueue.stats import DEAD_STATS, SEEDS_DROPPED_STAT

logger = logging.getLogger(__name__)

PLENTY = 2
"""If more batches of requests than this are pending, a worker reads seeds only now and then."""


@dataclass(slots=True)
class _Open:
    """A seed that is not settled.

    Args:
        waiting: number of its requests and dead letters that are not stored yet.
        is_dropped: it has produced no request or dead letter so far.
    """

    seed: Seed
    waiting: int = 1
    is_dropped: bool = True


class SeededQueue(FrontierQueue):
    """A queue over a frontier in Redis that also takes requests from seeds; it is the reader's delegate."""

    def __init__(
        self,
        crawler: Crawler,
        config: Config,
        dupefilter: BaseDupeFilter,
        frontier: Frontier,
        runner: Runner,
        store: SeedStore,
    ) -> None:
        super().__init__(crawler, config, dupefilter, frontier, runner)
        self._crawler = crawler
        self._seeds_log = CrawlLog(logger, crawler.spider)
        self._reader = Reader(
            store, lambda: suitable_runner(is_local=False), self, config.seeds_batch_size, spider=crawler.spider
        )
        self._made: deque[tuple[Request, _Open]] = deque()
        self._given: list[_Open] = []
        self._origins: dict[Request, _Open] = {}
        self._is_giving = False
        self._open: dict[Request, _Open] = {}
        self._new_letters: dict[int, tuple[Push, _Open]] = {}
        self._stored: Request | None = None
        self._dead_rank = rank_of(config.tiers.index(config.default_tier), 0)

    def start(self) -> None:
        super().start()
        self._seeds_log.info("Reading seeds from %s", ", ".join(self._config.seeds_keys))
        self._reader.start()
        self._crawler.signals.connect(self._close_unread, signals.spider_idle)

    def _close_unread(self) -> None:
        # A worker that only waits for others gets this signal, too.
        if self._reader.is_refused and not self._is_drained and not self.has_pending():
            raise CloseSpider("prioqueue_seeds_unread")

    def close(self, reason: str) -> Deferred[Any]:
        self._reader.stop()
        closed = super().close(reason)
        return closed.addCallback(lambda _: self._reader.close(self._config.close_timeout_s))

    def has_own_work(self) -> bool:
        # A drained crawl ends with the requests that it has; its seeds aren't read.
        has_seeds = self._reader.is_busy or self._is_giving
        return super().has_own_work() or (has_seeds and not self._is_drained)

    # The reader's delegate

    def has_room(self) -> bool:
        # Before the first answer an operator's commands aren't known.
        is_known = self._pump.depth.workers > 0
        is_halted = self.engine.is_closing or self.engine.is_paused
        may_take = not (self._is_drained or self._holding.is_on or is_halted)
        return is_known and may_take and self._pump.gate.is_open and not self._is_giving

    def has_plenty(self) -> bool:
        return len(self) >= PLENTY * self._config.seeds_batch_size

    def note_seeds(self) -> None:
        self._pump.consider()

    def note_empty(self) -> None:
        idle_s, until = self._config.max_idle_s, "waiting for entries"
        if not idle_s:
            until = "this worker closes once nothing else is left; with PRIOQUEUE_MAX_IDLE = -1 it waits for entries"
        elif not isinf(idle_s):
            until += f", for {idle_s:g} s without work (PRIOQUEUE_MAX_IDLE)"
        keys = self._config.seeds_keys
        are = "is" if len(keys) == 1 else "are"
        self._seeds_log.info("No seeds yet: %s %s empty or missing; %s", ", ".join(keys), are, until)

    def take(self, seeds: Sequence[Seed]) -> None:
        for seed in seeds:
            self._make(_Open(seed))
        if self._made and not self._is_giving:
            self._is_giving = True
            deferred_from_coro(self._give_all())

    def _make(self, opened: _Open) -> None:
        seed = opened.seed
        try:
            requests = self._requests_of(seed.data)
        except ValueError as error:
            self._dead_letter(opened, str(error))
        except Exception as error:
            self._seeds_log.exception("Unexpected error in make_request_from_seed()")
            self._dead_letter(opened, f"make_request_from_seed() raised {type(error).__name__}: {error}")
        else:
            opened.waiting += len(requests)
            self._made.extend((request, opened) for request in requests)
        self._settle(opened)

    def _requests_of(self, data: bytes) -> list[Request]:
        make = getattr(self.spider, "make_request_from_seed", None)
        made = request_from_seed(data, self.spider) if make is None else make(data)
        found = [made] if isinstance(made, Request) else list(made) if isinstance(made, Iterable) else [made]
        requests = [request for request in found if request is not None]
        for request in requests:
            if not isinstance(request, Request):
                raise SeedError(f"make_request_from_seed() returned {brief(request)}, which is not a Request")
        return requests

    # Passing requests through spider middlewares

    async def _give_all(self) -> None:
        """Send the requests through the `process_start()` of all spider middlewares, and crawl the results."""
        while self._made and not self.engine.is_closing:
            try:
                async for found in self.engine.as_start(self._give()):
                    if self.engine.is_closing:
                        break
                    self._crawl_found(found)
            except Exception as error:
                self._seeds_log.exception("Unexpected error in process_start() of a spider middleware")
                # If it raised before it read a request, take one, so that the loop ends.
                if not self._given:
                    next(self._give())
                why = f"process_start() of a spider middleware raised {type(error).__name__}: {error}"
                self._dead_letter(self._given[-1], why)
            self._settle_given()
        self._is_giving = False
        self._pump.consider()

    def _give(self) -> Iterator[Request]:
        while self._made:
            request, opened = self._made.popleft()
            self._given.append(opened)
            self._origins[request] = opened
            yield request

    def _settle_given(self) -> None:
        """Settle the seeds passed to the middlewares; their results are complete only when the iterators have ended."""
        for opened in self._given:
            # If the spider is closing, requests of an unfinished seed may be missing, so the seed is given back.
            if not (self.engine.is_closing and opened.is_dropped):
                self._settle(opened)
        self._given.clear()
        self._origins.clear()

    def _crawl_found(self, found: object) -> None:
        if not isinstance(found, Request):
            self._seeds_log.warning(
                "process_start() of a spider middleware made %s of a seed; only requests are used", brief(found)
            )
            return
        latest = self._given[-1] if self._given else None
        self._crawl(found, self._origins.get(found, latest))

    def _crawl(self, request: Request, opened: _Open | None) -> None:
        # Like requests of `start()`, seeds of equal rank are served in the order in which they were taken.
        request.meta.setdefault("is_start_request", True)
        assert self._crawler.engine is not None
        if opened is None or request in self._open:
            # A request of the middleware's own, or one that it yields twice: it belongs to no seed.
            self._crawler.engine.crawl(request)
            return
        opened.waiting += 1
        opened.is_dropped = False
        self._open[request] = opened
        self._stored = None
        self._crawler.engine.crawl(request)
        if self._stored is not request:
            # A duplicate, or dropped by a handler of `request_scheduled`, such as the offsite filter.
            self._settle_request(request)

    # The scheduler's queue

    def enqueue(self, request: Request) -> bool:
        opened = self._open.get(request)
        if opened is None:
            return super().enqueue(request)
        try:
            is_stored = self._enqueue(request, None)
        except RequestError as error:
            self._dead_letter(opened, error.why)
            return False
        except Exception as error:
            self._dead_letter(opened, described(error))
            raise
        self._stored = request if is_stored else None
        return is_stored

    def _is_seen_here(self, request: Request, fingerprint: bytes | None, revisit_s: int | None) -> bool:
        if fingerprint is not None and request in self._open and self._pump.outbox.awaits(fingerprint):
            # The entry must stay until the request is stored, even if another page has also found it.
            return False
        return super()._is_seen_here(request, fingerprint, revisit_s)

    def _is_in_session(self, request: Request, page: Request | None, *, is_from_start: bool) -> bool:
        # Like a request of `start()`, a seed may begin a session.
        return super()._is_in_session(request, page, is_from_start=is_from_start or request in self._open)

    def _note_unstorable(self, request: Request, error: EncodeError, *, is_from_start: bool) -> None:
        if request in self._open:
            # Kept in this process, it would be lost with the process.
            raise RequestError(request, f"can't be stored: {error}")
        super()._note_unstorable(request, error, is_from_start=is_from_start)

    def too_large(self, push: Push, tag: Request | None, roots: Sequence[HeldRequest]) -> None:
        try:
            super().too_large(push, tag, roots)
        except RequestError as error:
            assert tag is not None
            self._pump.let_go(roots)
            self._dead_letter(self._open[tag], error.why)
            self._settle_request(tag)

    # Outcomes

    def note_outcome(self, outcome: Outcome[Request]) -> None:
        operation = outcome.operation
        if isinstance(operation, Claim) and id(operation.push) in self._new_letters:
            self._settle(self._new_letters.pop(id(operation.push))[1])
            return
        super().note_outcome(outcome)
        if outcome.tag is not None and outcome.tag in self._open:
            self._settle_request(outcome.tag)

    def _settle_request(self, request: Request) -> None:
        self._settle(self._open.pop(request))

    def _settle(self, opened: _Open) -> None:
        opened.waiting -= 1
        if not opened.waiting:
            self.count(SEEDS_DROPPED_STAT, opened.is_dropped)
            self._reader.settle(opened.seed)

    def _dead_letter(self, opened: _Open, why: str) -> None:
        seed = opened.seed
        self._seeds_log.error(
            "Seed %s of %s becomes a dead letter: %s",
            *(brief(seed.data), seed.key, in_a_line(why)),
            extra=dead_letter(None, DEAD_BY_DECODE, None),
        )
        self.count(DEAD_STATS[DEAD_BY_DECODE])
        self._events.dead_lettered(None, DEAD_BY_DECODE, detail_of(seed.key, why))
        push = Push(self._dead_rank, SLOT, seed.data)
        opened.waiting += 1
        opened.is_dropped = False
        self._new_letters[id(push)] = (push, opened)
        push_dead_letter(self._pump.outbox, push, DEAD_BY_DECODE, detail_of(seed.key, why))
        self._pump.consider()
