"""The connection between a worker and the server, which delays and loses calls and answers."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Sequence
from contextvars import Context
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from scrapy_prioqueue.frontier.redis.connection import Connection
from scrapy_prioqueue.frontier.redis.scripts import Argument
from scrapy_prioqueue.frontier.redis.servers import ServerChanged
from tests.simulation.ledger import Worker
from tests.simulation.processes import Process, never
from tests.simulation.server import SimServer

TIMEOUT_S = 5.0
"""Seconds until a client takes a request for lost, as `Connection` does."""

LATENCIES_S = (0.001, 0.001, 0.02, 0.3)
LATE_S = (0.5, 3.0, 20.0)

Fault = Literal["", "lost", "unanswered", "cut", "slow", "late"]
"""Lost before the server saw it; after it did the work; after it did a part of the calls; slow, but answered in time;
so late that the client has given up when the server does the work."""

FAULTS: Sequence[Fault] = ("lost", "unanswered", "cut", "slow", "late")


@dataclass(frozen=True)
class Fate:
    """What happens to one round trip."""

    fault: Fault
    out_s: float
    back_s: float
    calls: int = 0
    late_s: float = 0.0
    is_torn: bool = False


class Weather:
    """Draws fates; which faults there are, and how often, is drawn once.

    Args:
        chance: what decides on everything.
        focus: faults to be frequent and without others, if there are any among these names.
    """

    def __init__(self, chance: random.Random, focus: Collection[str] = ()) -> None:
        self._chance = chance
        self._faults = [fault for fault in FAULTS if chance.random() < 0.4]
        self._rate = chance.choice([0.02, 0.1, 0.3]) if self._faults else 0.0
        if not set(focus).isdisjoint(FAULTS):
            self._faults = [fault for fault in FAULTS if fault in focus]
            self._rate = 0.3
        self._latencies_s = [chance.choice(LATENCIES_S) for _ in range(3)]
        self._tear_rate = chance.choice([0.0, 0.3])

    def calm_down(self) -> None:
        """Let nothing go wrong any more."""
        self._rate = 0.0

    def fate(self, calls: int) -> Fate:
        """Draw the fate of a round trip with so many calls."""
        chance = self._chance
        out_s, back_s = (latency * chance.random() for latency in chance.choices(self._latencies_s, k=2))
        is_torn = chance.random() < self._tear_rate
        if chance.random() >= self._rate:
            return Fate("", out_s, back_s, is_torn=is_torn)
        fault = chance.choice(self._faults)
        if fault == "slow":
            return Fate(fault, chance.uniform(0, 2), chance.uniform(0, 2), is_torn=is_torn)
        late_s = chance.choice(LATE_S) * chance.random()
        return Fate(fault, out_s, back_s, chance.randrange(calls), late_s, is_torn)


class SimConnection(Connection):
    """A worker's connection to the simulated server.

    Args:
        worker: whose it is.
        process: that of the worker.
    """

    def __init__(self, server: SimServer, weather: Weather, worker: Worker, process: Process) -> None:
        super().__init__("redis://simulated.example:6379/0")
        self._server = server
        self._weather = weather
        self._worker = worker
        self._process = process
        self._incarnation = server.incarnation

    async def open(self) -> None:
        if not self.version:
            await self._travel([lambda: None])
            self.version = self._server.real.version

    async def info(self, section: str) -> dict[str, Any] | None:
        (found,) = await self._travel([lambda: dict(self._server.real.infos[section])])
        if section == "server":
            # A server that was started again is told from the one before by this.
            found["run_id"] = f"{self._server.starts:040d}"
        return dict(found)

    async def run(self, calls: Sequence[tuple[str, str, Sequence[Argument]]], *, wait_replicas: int = 0) -> list[Any]:
        await self.open()
        if self._server.is_away:
            raise self.unavailable(ConnectionError("connection refused"), was_sent=False)
        last, self._incarnation = self._incarnation, self._server.incarnation
        if last != self._incarnation:
            raise ServerChanged(self.address, "it was restarted", was_sent=False)
        run_script = self._server.run_script
        replies = await self._travel(
            [partial(run_script, self._worker, name, arguments) for name, _, arguments in calls]
        )
        return [self._checked(reply) for reply in replies]

    async def ask(self, command: Callable[[Any], Any]) -> Any:
        (answer,) = await self._travel([lambda: _run_now(command(_PlainClient(self._server.real.client)))])
        return answer

    def scan(self, pattern: str) -> AsyncIterator[list[bytes]]:
        return _Scan(self, pattern)

    async def listen(self, channel: str, ring: Callable[[], object]) -> None:
        incarnation = self._server.starts
        rung = asyncio.Event()
        self._server.bells[self] = rung.set
        try:
            while True:
                await rung.wait()
                rung.clear()
                if self._server.starts != incarnation:
                    raise self._lost("the connection was closed")
                ring()
        finally:
            del self._server.bells[self]

    async def close(self) -> None:
        """Nothing was opened."""

    def twin(self) -> SimConnection:
        raise NotImplementedError("the simulation has no threads")

    async def _travel(self, steps: Sequence[Callable[[], Any]]) -> list[Any]:
        """Take a request to the server and its answers back."""
        fate = self._weather.fate(len(steps))
        incarnation = self._server.starts
        await asyncio.sleep(fate.out_s)
        if self._server.is_away or self._server.starts != incarnation or fate.fault == "lost":
            raise self._lost("the request was lost")
        if fate.fault == "late":
            self._deliver_late(steps, fate.late_s)
            await asyncio.sleep(TIMEOUT_S)
            raise self._lost("no answer in time")
        answers = []
        for number, step in enumerate(steps):
            if fate.is_torn and number:
                await asyncio.sleep(fate.out_s)
            is_cut = fate.fault == "cut" and number == fate.calls
            if is_cut or self._server.starts != incarnation:
                raise self._lost("the connection was closed")
            answers.append(step())
            if self._process.is_dead:
                await never()
        await asyncio.sleep(fate.back_s)
        if fate.fault == "unanswered" or self._server.starts != incarnation:
            raise self._lost("the answer was lost")
        return answers

    def _deliver_late(self, steps: Sequence[Callable[[], Any]], late_s: float) -> None:
        incarnation = self._server.starts

        def deliver() -> None:
            # What was sent to a server that has died since reaches no other one.
            if not self._server.is_away and self._server.starts == incarnation:
                with self._server.delivering_late():
                    for step in steps:
                        step()

        asyncio.get_running_loop().call_later(TIMEOUT_S + late_s, deliver, context=Context())

    def _lost(self, why: str) -> Exception:
        return self.unavailable(ConnectionError(why))


class _Scan:
    """All keys in one answer. Not a generator, which asyncio would want to end for a process that was killed."""

    def __init__(self, connection: SimConnection, pattern: str) -> None:
        self._connection = connection
        self._pattern = pattern
        self._is_over = False

    def __aiter__(self) -> _Scan:
        return self

    async def __anext__(self) -> list[bytes]:
        if self._is_over:
            raise StopAsyncIteration
        self._is_over = True
        return sorted(await self._connection.ask(lambda client: client.keys(self._pattern)))


class _PlainClient:
    """Commands of the synchronous client, to be awaited."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def __getattr__(self, name: str) -> Callable[..., Coroutine[Any, Any, Any]]:
        command = getattr(self._client, name)

        async def ask(*arguments: Any, **options: Any) -> Any:
            return command(*arguments, **options)

        return ask

    def pipeline(self, **options: Any) -> _PlainPipeline:
        return _PlainPipeline(self._client.pipeline(**options))


class _PlainPipeline:
    """Commands that are collected, and run when that is awaited."""

    def __init__(self, pipeline: Any) -> None:
        self._pipeline = pipeline

    def __getattr__(self, name: str) -> Any:
        return getattr(self._pipeline, name)

    async def execute(self, **options: Any) -> Any:
        return self._pipeline.execute(**options)


def _run_now(coroutine: Coroutine[Any, Any, Any]) -> Any:
    try:
        coroutine.send(None)
    except StopIteration as stop:
        return stop.value
    raise AssertionError("a plain command must not wait")
