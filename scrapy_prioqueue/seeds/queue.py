"""The scheduler's queue of a spider that reads seeds: makes requests of them and follows each until it is stored."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from scrapy import Request
from scrapy.crawler import Crawler
from scrapy.dupefilters import BaseDupeFilter
from twisted.internet.defer import Deferred

from scrapy_prioqueue.codec.values import brief
from scrapy_prioqueue.errors import EncodeError, RequestError, SeedError
from scrapy_prioqueue.frontier.base import DEAD_BY_DECODE, Claim, Frontier, Push
from scrapy_prioqueue.frontier.seeds import Seed, SeedStore
from scrapy_prioqueue.pump.burial import bury
from scrapy_prioqueue.pump.outbox import Settled
from scrapy_prioqueue.queues.delays import Delay
from scrapy_prioqueue.queues.frontier import FrontierQueue
from scrapy_prioqueue.rank import rank_of
from scrapy_prioqueue.runtime import Runner, suitable_runner
from scrapy_prioqueue.seeds.letters import SLOT, detail_of
from scrapy_prioqueue.seeds.parsing import request_from_seed
from scrapy_prioqueue.seeds.reader import BATCH_SIZE, Reader
from scrapy_prioqueue.settings import Config

logger = logging.getLogger(__name__)

PLENTY = 2 * BATCH_SIZE
"""Requests that wait in the frontier above which a worker takes seeds at leisure."""


@dataclass(slots=True)
class _Open:
    """A seed that is not settled.

    Args:
        waiting: how many of its requests and dead letters are not stored yet.
    """

    seed: Seed
    waiting: int = 1


class SeededQueue(FrontierQueue):
    """A queue over a frontier in Redis that is fed from keys, too; it is the reader's host."""

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
        self._reader = Reader(store, lambda: suitable_runner(is_local=False), self)
        self._open: dict[Request, _Open] = {}
        self._buried: dict[int, tuple[Push, _Open]] = {}
        self._stored: Request | None = None
        self._dead_rank = rank_of(config.tiers.index(config.default_tier), 0)

    def start(self) -> None:
        super().start()
        logger.info("Reading seeds from %s", ", ".join(self._config.seeds_keys), extra={"spider": self._spider})
        self._reader.start()

    def close(self, reason: str) -> Deferred[Any]:
        self._reader.stop()
        closed = super().close(reason)
        return closed.addCallback(lambda _: self._reader.close(self._config.close_timeout_s))

    def has_own_work(self) -> bool:
        # An operator who drains the crawl wants it to end with what is in it.
        return super().has_own_work() or (self._reader.is_busy and not self._is_drained)

    # The reader's host

    def has_room(self) -> bool:
        # Before the first answer nothing is known of an operator's orders.
        is_known = self._pump.depth.workers > 0
        may_take = not (self._is_drained or self._holding.is_on or self._engine.is_closing)
        return is_known and may_take and self._pump.gate.is_open

    def has_plenty(self) -> bool:
        return len(self) >= PLENTY

    def note_seeds(self) -> None:
        self._pump.consider()

    def take(self, seed: Seed) -> None:
        opened = _Open(seed)
        try:
            requests = self._requests_of(seed.data)
        except ValueError as error:
            self._bury(opened, str(error))
        except Exception as error:
            logger.exception("Unexpected error in make_request_from_seed()", extra={"spider": self._spider})
            self._bury(opened, f"make_request_from_seed() raised {type(error).__name__}: {error}")
        else:
            for request in requests:
                self._crawl(request, opened)
        self._settle(opened)

    def _requests_of(self, data: bytes) -> list[Request]:
        make = getattr(self._spider, "make_request_from_seed", None)
        made = request_from_seed(data, self._spider) if make is None else make(data)
        found = [made] if isinstance(made, Request) else list(made) if isinstance(made, Iterable) else [made]
        requests = [request for request in found if request is not None]
        for request in requests:
            if not isinstance(request, Request):
                raise SeedError(f"make_request_from_seed() returned {brief(request)}, which is no Request")
        return requests

    def _crawl(self, request: Request, opened: _Open) -> None:
        # As those of `start()`: among equals they go in the order in which they were taken.
        request.meta.setdefault("is_start_request", True)
        opened.waiting += 1
        self._open[request] = opened
        self._stored = None
        assert self._crawler.engine is not None
        self._crawler.engine.crawl(request)
        if self._stored is not request:
            # A duplicate, or not wanted by a handler of `request_scheduled`, such as the filter of other sites.
            self._settle_request(request)

    # The scheduler's queue

    def enqueue(self, request: Request) -> bool:
        opened = self._open.get(request)
        if opened is None:
            return super().enqueue(request)
        try:
            is_stored = self._enqueue(request)
        except RequestError as error:
            self._bury(opened, error.why)
            return False
        self._stored = request if is_stored else None
        return is_stored

    def _is_seen_here(self, request: Request, fingerprint: bytes | None, revisit_s: int | None) -> bool:
        if fingerprint is not None and request in self._open and self._pump.outbox.awaits(fingerprint):
            # The entry must not be dropped before the request is stored, whoever has found it, too.
            return False
        return super()._is_seen_here(request, fingerprint, revisit_s)

    def _keep(
        self, request: Request, rank: int, error: EncodeError, delay: Delay, page: Request | None, *, is_start: bool
    ) -> None:
        if request in self._open:
            # Kept in this process it would be lost with it.
            raise RequestError(request, f"can't be stored: {error}")
        super()._keep(request, rank, error, delay, page, is_start=is_start)

    # What became of it

    def settled(self, outcome: Settled[Request]) -> None:
        operation = outcome.operation
        if isinstance(operation, Claim) and id(operation.push) in self._buried:
            self._settle(self._buried.pop(id(operation.push))[1])
            return
        super().settled(outcome)
        if outcome.tag is not None and outcome.tag in self._open:
            self._settle_request(outcome.tag)

    def _settle_request(self, request: Request) -> None:
        self._settle(self._open.pop(request))

    def _settle(self, opened: _Open) -> None:
        opened.waiting -= 1
        if not opened.waiting:
            self._reader.settle(opened.seed)

    def _bury(self, opened: _Open, why: str) -> None:
        seed = opened.seed
        logger.error(
            "Seed %s of %s becomes a dead letter: %s",
            brief(seed.data),
            seed.key,
            why,
            extra={"spider": self._spider},
        )
        self.count("prioqueue/dead/decode")
        push = Push(self._dead_rank, SLOT, seed.data)
        opened.waiting += 1
        self._buried[id(push)] = (push, opened)
        bury(self._pump.outbox, push, DEAD_BY_DECODE, detail_of(seed.key, why))
        self._pump.consider()
