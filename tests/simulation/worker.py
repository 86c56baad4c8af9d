"""A simulated worker: the real pump on the real Redis frontier, with an engine that fetches the pages of a `Site`."""

from __future__ import annotations

import asyncio
import logging
import struct
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import Any

from simulated import QuietDelegate

from scrapy_prioqueue.errors import PrioQueueError
from scrapy_prioqueue.frontier.base import Ack, Fail, Frontier, Joined, Lease, Push, Recall
from scrapy_prioqueue.pump.delegate import PumpConfig
from scrapy_prioqueue.pump.pump import Pump
from scrapy_prioqueue.runtime import AsyncioRunner
from tests.simulation.ledger import Ledger
from tests.simulation.processes import Process, never
from tests.simulation.site import Page, Site
from tests.unit.pumping import finished

# Below the package's own logger, whose errors end a schedule.
logger = logging.getLogger("scrapy_prioqueue.simulation")

HEARTBEAT_S = 5.0
"""How often Scrapy's engine asks by itself."""

CLOSE_TIMEOUT_S = 20.0
OUTBOX_LIMIT = 5
SLOT_CONCURRENCY = 2

_ID = struct.Struct(">Q")


class SimWorker(QuietDelegate):
    """One process of a crawl, from its start to its end; it is the pump's delegate.

    Args:
        process: what everything here runs in.
        on_end: called when it has ended by itself, with the reason.
    """

    def __init__(
        self,
        process: Process,
        worker_id: str,
        site: Site,
        ledger: Ledger,
        concurrency: int,
        max_idle_s: float,
        on_end: Callable[[SimWorker, str], None],
    ) -> None:
        self.name = process.name
        self.worker_id = worker_id
        self.process = process
        self.frontier: Frontier
        self.pump: Pump[str]
        self.has_left = False
        self.is_stopping = False
        self._site = site
        self._ledger = ledger
        self._concurrency = concurrency
        self._max_idle_s = max_idle_s
        self._on_end = on_end
        self._running: list[Lease] = []
        self._seen: set[str] = set()
        self._has_read_start = False
        self._is_leaving = False
        self._has_joined = False

    def run(self, frontier: Frontier) -> None:
        """Join the crawl and take part in it to its end."""
        config = PumpConfig(
            lease_ttl_s=frontier.config.lease_ttl_s,
            max_idle_s=self._max_idle_s,
            outbox_limit=OUTBOX_LIMIT,
        )
        loop = asyncio.get_running_loop()
        self.frontier = frontier
        self.pump = Pump(frontier, AsyncioRunner(), self, config, loop.time)
        self._start(self._join)

    async def _join(self) -> None:
        try:
            joined: Joined = await finished(self.pump.open())
        except PrioQueueError as error:
            self._end(type(error).__name__)
            return
        self.pump._loop.last_depth = joined.depth  # noqa: SLF001
        self._has_joined = True
        self.pump.start()
        self._start(self._read_start)
        self._beat()

    def _start(self, function: Callable[..., Coroutine[Any, Any, None]], *arguments: Any) -> None:
        asyncio.get_running_loop().create_task(self._watched(function, *arguments))

    async def _watched(self, function: Callable[..., Coroutine[Any, Any, None]], *arguments: Any) -> None:
        try:
            await function(*arguments)
        except Exception:
            logger.exception("Exception in a simulated worker")

    async def _read_start(self) -> None:
        for number, name in enumerate(self._site.starts):
            gate = self.pump.gate.wait()
            if gate is not None:
                await finished(gate)
            if self.is_stopping:
                break
            page = self._site.pages[name]
            self._push(page, number)
            await asyncio.sleep(page.link_s)
        else:
            self._has_read_start = True
        self.pump.consider()
        self._look()

    def _push(self, page: Page, start_number: int | None = None) -> None:
        if page.is_filtered:
            if page.name in self._seen:
                fingerprint = page.push(start_number).fingerprint
                assert fingerprint is not None
                self.pump.note_duplicate(fingerprint)
                return
            self._seen.add(page.name)
        self.pump.push(page.push(start_number), page.name)

    # The engine

    def _beat(self) -> None:
        if not self.has_left:
            asyncio.get_running_loop().call_later(HEARTBEAT_S, self._beat)
            self._look()

    def _look(self) -> None:
        """Start what can start, or leave if all is done."""
        while not self._is_leaving and len(self._running) < self._concurrency:
            lease = self.pump.take()
            if lease is None:
                break
            self._running.append(lease)
            self._start(self._fetch, lease)
        is_over = self.is_stopping or (self.pump.has_ended and self._has_read_start)
        if self._has_joined and is_over and not self._running and not self._is_leaving:
            self._is_leaving = True
            self._start(self._leave)

    async def _fetch(self, lease: Lease) -> None:
        page = self._site.pages[lease.payload.decode()]
        if page.kind == "garbled":
            self.pump.finish(Fail(lease.lease_id, lease.attempt, "decode", "garbled"))
        else:
            await asyncio.sleep(page.fetch_s)
            if page.kind == "poison":
                self.process.kill()
                self._on_end(self, "poisoned")
                await never()
            for link in page.links:
                self._push(self._site.pages[link])
                await asyncio.sleep(page.link_s)
            self._ledger.note_finished(self, page.name)
            self.pump.finish(Ack(lease.lease_id, lease.attempt))
        self._running = [other for other in self._running if other is not lease]
        self.pump.consider()
        self._look()

    async def _leave(self) -> None:
        await finished(self.pump.close(CLOSE_TIMEOUT_S))
        self._end("stopped" if self.is_stopping else "ended")

    def _end(self, reason: str) -> None:
        self.has_left = True
        self.process.kill()
        self._on_end(self, reason)

    def stop_soon(self) -> None:
        """Do what a first Ctrl-C does: finish what runs, then leave."""
        self.is_stopping = True
        if self._has_joined:
            self.pump.consider()
            self._look()

    # What the ledger wants to know

    @property
    def is_running(self) -> bool:
        return not self.process.is_dead

    def tokens(self) -> Iterable[tuple[bytes, int]]:
        running = [hold.token for hold in self.pump.held.values() if hold.is_leased]
        for lease_id, attempt in (*running, *((lease.lease_id, lease.attempt) for lease in self.pump.inbox)):
            yield _ID.pack(lease_id), attempt

    def is_busy(self) -> bool:
        return not self.is_stopping and bool(self.has_own_work() or self._running or self.pump.outbox.pushes)

    # The pump's delegate

    def recalled(self, recall: Recall) -> None:
        # The ledger sees what is sent again.
        self._seen.clear()

    def push_of(self, lease: Lease) -> Push:
        return self._site.pages[lease.payload.decode()].push(None)

    def wake(self) -> None:
        asyncio.get_running_loop().call_soon(self._look)

    def stop(self, why: Exception) -> None:
        self.stop_soon()

    def has_own_work(self) -> bool:
        return not self._has_read_start

    @property
    def is_closing(self) -> bool:
        return self.is_stopping

    @property
    def concurrency(self) -> int:
        return self._concurrency

    def free_places(self) -> int:
        return self._concurrency - len(self._running)

    def room(self, waiting: Mapping[str, int], ahead: int) -> tuple[int, dict[str, int]]:
        used = Counter(lease.slot for lease in self._running) + Counter(waiting)
        room = {slot: max(0, SLOT_CONCURRENCY + ahead - count) for slot, count in used.items()}
        return SLOT_CONCURRENCY + ahead, room

    def may_start(self, slot: str) -> bool:
        return sum(lease.slot == slot for lease in self._running) < SLOT_CONCURRENCY
