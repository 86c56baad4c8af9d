"""One schedule: a crawl by many workers with faults and checks, all determined by a seed."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from contextvars import Context
from dataclasses import dataclass, replace
from typing import Any
from unittest.mock import patch

from scrapy_prioqueue.frontier.base import SUSPECT_GROUPS, FrontierConfig
from scrapy_prioqueue.frontier.policy import Policy, SlotLimit
from scrapy_prioqueue.frontier.redis import frontier as frontier_module
from scrapy_prioqueue.frontier.redis import session as session_module
from scrapy_prioqueue.frontier.redis.frontier import RedisFrontier
from scrapy_prioqueue.frontier.redis.scripts import Script
from scrapy_prioqueue.pump import outbox as outbox_module
from scrapy_prioqueue.pump import pump as pump_module
from scrapy_prioqueue.pump.heartbeat import Heartbeat
from tests.simulation.audit import NAME
from tests.simulation.ledger import Ledger, Violation, Worker
from tests.simulation.line import SimConnection, Weather
from tests.simulation.processes import Process, ProcessLoop
from tests.simulation.server import RealServer, SimServer
from tests.simulation.site import Site
from tests.simulation.worker import SimWorker

TTL_S = 10.0
CALM_AFTER_S = 120.0
"""Seconds after which nothing goes wrong any more, so that the crawl must come to its end."""

END_WITHIN_S = 1500.0
MOST_STEPS = 5_000
"""Calls of one schedule; a few hundred are usual."""

EVENTS = ("kill", "kill caller", "freeze", "stop", "join", "away", "full", "jump", "replace", "restart")
MOST_WRITES_LOST = 20

POLICIES = (
    *[Policy()] * 4,
    Policy(slots={"*": SlotLimit(delay=0.1, burst=2)}),
    Policy(slots={"a.example": SlotLimit(delay=1.5), "*": SlotLimit(concurrency=2)}),
    Policy(weights=[3], high_water=4, low_water=2, discovery=[0], slots={"b.example": SlotLimit(concurrency=1)}),
)
"""What crawls have."""

FREEZES_S = (0.3, 4.0, 15.0, 40.0)
ABSENCES_S = (0.2, 3.0, 15.0)
JUMPS_MS = (-30_000, -2_000, 2_000, 8_000, 30_000, 200_000)


@dataclass(frozen=True)
class Options:
    """What is not drawn from the seed.

    Args:
        scripts: planted ones, None for the real ones.
        patches: further planted ones: what, attribute and value of each.
        focus: faults and events to be frequent and without others of their kind.
        has_policies: half of the crawls have limits, shares or water marks.
    """

    scripts: Mapping[str, Script] | None = None
    patches: Sequence[tuple[Any, str, object]] = ()
    focus: Sequence[str] = ()
    has_policies: bool = True


class Schedule:
    """A crawl under faults.

    Args:
        seed: decides on everything.
    """

    def __init__(self, seed: int, real: RealServer, options: Options) -> None:
        self.seed = seed
        self.chance = chance = random.Random(seed)
        self.site = Site(chance)
        self.server = SimServer(real, options.scripts)
        self.workers: list[SimWorker] = []
        max_attempts = chance.choice([2, 3, 5])
        # Drawn apart, so that the rest of a schedule doesn't depend on it.
        policy = random.Random(f"policy of {seed}").choice(POLICIES) if options.has_policies else Policy()
        groups = random.Random(f"groups of {seed}").choice([(), SUSPECT_GROUPS])
        self.config = FrontierConfig(
            *(NAME, ("a",), ""),
            lease_ttl_s=TTL_S,
            max_attempts=max_attempts,
            crawl_id="crawl",
            policy=policy,
            suspect_groups=groups,
        )
        self.server.ledger = self.ledger = Ledger(self.site, self.config, self.workers, self.server.nothing)
        self.server.on_step = self._on_step
        self.server.on_violation = self.fail
        self.server.failing_steps = self._draw_errors(options)
        self.weather = Weather(chance, options.focus)
        self.events = self._draw_events(options)
        self._coming = 0
        self._ids = 0
        self._failure: str | None = None
        self._changed: asyncio.Event

    def _draw_events(self, options: Options) -> dict[int, str]:
        """Return what happens after which step."""
        kinds = [kind for kind in EVENTS if self.chance.random() < 0.5]
        if not set(options.focus).isdisjoint(EVENTS):
            kinds = [kind for kind in EVENTS if kind in options.focus]
        count = self.chance.choice([0, 2, 4, 8]) if kinds else 0
        return {self.chance.randint(1, 180): self.chance.choice(kinds) for _ in range(count)}

    def _draw_errors(self, options: Options) -> dict[int, int]:
        """Return at which steps a script fails in the middle, and where."""
        # Drawn apart, too.
        chance = random.Random(f"errors of {self.seed}")
        is_frequent = "error" in options.focus
        count = chance.choice([5, 20] if is_frequent else [0, 0, 0, 3])
        return {chance.randint(1, 180): chance.randint(1, 60) for _ in range(count)}

    async def run(self) -> None:
        """Let the crawl go to its end.

        Raises:
            Violation: something was not as it must be.
        """
        self._changed = asyncio.Event()
        loop = asyncio.get_running_loop()
        loop.call_later(CALM_AFTER_S, self._calm_down)
        for _ in range(self.chance.randint(1, 4)):
            self._start_worker_in(self.chance.choice([0.0, 0.0, 0.5, 5.0]))
        while self._failure is None:
            if not self._coming and not any(worker.is_running for worker in self.workers):
                if self.ledger.has_ended:
                    break
                # An operator sees that the crawl is not over.
                self._start_worker_in(1.0)
            await self._changed.wait()
            self._changed.clear()
            self._check_deadline()
        if self._failure is not None:
            raise Violation(self._failure)
        self.ledger.check_at_the_end()

    def fail(self, why: str) -> None:
        """End the schedule; the first reason counts."""
        self._failure = self._failure or why
        self._changed.set()

    def _check_deadline(self) -> None:
        if asyncio.get_running_loop().time() > END_WITHIN_S:
            running = [worker.name for worker in self.workers if worker.is_running]
            self.fail(f"no end within {END_WITHIN_S:g} s; running: {running}")

    def _calm_down(self) -> None:
        self.weather.calm_down()
        self.events.clear()
        self.server.set_full(is_full=False)
        asyncio.get_running_loop().call_later(END_WITHIN_S, self._changed.set)

    # Workers

    def _start_worker_in(self, seconds: float, worker_id: str | None = None) -> None:
        self._coming += 1
        asyncio.get_running_loop().call_later(seconds, self._start_worker, worker_id, context=Context())

    def _start_worker(self, worker_id: str | None) -> None:
        self._coming -= 1
        if self.ledger.has_ended:
            self._changed.set()
            return
        if worker_id is None:
            self._ids += 1
            worker_id = f"w{self._ids}"
        process = Process(f"{worker_id}.{len(self.workers) + 1}")
        chance = self.chance
        worker = SimWorker(
            process, worker_id, self.site, self.ledger, chance.randint(1, 4), chance.choice([0.0, 0.5]), self._on_end
        )
        self.workers.append(worker)
        config = replace(self.config, worker=worker_id)
        self.server.note(worker.name, "starts")
        process.run(
            lambda: worker.run(RedisFrontier(config, SimConnection(self.server, self.weather, worker, process)))
        )

    def _on_end(self, worker: SimWorker, reason: str) -> None:
        self.server.note(worker.name, "ends:", reason)
        self._changed.set()
        if not self.ledger.has_ended:
            self._replace(worker)

    def _replace(self, worker: SimWorker) -> None:
        worker_id = worker.worker_id if self.chance.random() < 0.5 else None
        self._start_worker_in(self.chance.choice([0.1, 2.0, 2 * TTL_S]), worker_id)

    def _kill(self, worker: SimWorker) -> None:
        worker.process.kill()
        self._on_end(worker, "killed")

    # Events

    def _on_step(self, caller: Worker) -> None:
        if self.server.steps > MOST_STEPS:
            self.fail(f"more than {MOST_STEPS} calls")
        kind = self.events.get(self.server.steps)
        if kind is None:
            return
        running = [worker for worker in self.workers if worker.is_running]
        self.server.note("event:", kind)
        if kind in _FOR_WORKERS:
            if running:
                worker = self.chance.choice(running)
                if kind == "kill caller" and caller in running:
                    worker = caller
                _FOR_WORKERS[kind](self, worker)
        else:
            _FOR_SERVER[kind](self)

    def _freeze(self, worker: SimWorker) -> None:
        worker.process.freeze()
        seconds = self.chance.choice(FREEZES_S)
        asyncio.get_running_loop().call_later(seconds, self._thaw, worker, context=Context())

    def _thaw(self, worker: SimWorker) -> None:
        self.server.note(worker.name, "goes on")
        worker.process.thaw()

    def _usurp(self, worker: SimWorker) -> None:
        """Freeze a worker, and start another under its id, as a cluster does with a node that it can't reach."""
        self._freeze(worker)
        self._start_worker_in(1.0, worker.worker_id)

    def _stop(self, worker: SimWorker) -> None:
        Context().run(worker.process.run, worker.stop_soon)

    def _join(self) -> None:
        self._start_worker_in(0.0)

    def _go_away(self) -> None:
        self.server.go_away(self.chance.choice(ABSENCES_S))

    def _fill(self) -> None:
        self.server.set_full(is_full=True)
        asyncio.get_running_loop().call_later(
            self.chance.choice([1.0, 5.0, 20.0]), lambda: self.server.set_full(is_full=False), context=Context()
        )

    def _jump(self) -> None:
        self.server.set_clock(self.chance.choice(JUMPS_MS))

    def _restart(self) -> None:
        # Drawn apart, so that the rest of a schedule doesn't depend on it.
        is_same = random.Random(f"run id of {self.seed} after {self.server.steps}").random() < 0.5
        self.server.restart_without(self.chance.randint(0, MOST_WRITES_LOST), is_same=is_same)


_FOR_WORKERS: Mapping[str, Callable[[Schedule, SimWorker], None]] = {
    "kill": Schedule._kill,  # noqa: SLF001
    "kill caller": Schedule._kill,  # noqa: SLF001
    "freeze": Schedule._freeze,  # noqa: SLF001
    "replace": Schedule._usurp,  # noqa: SLF001
    "stop": Schedule._stop,  # noqa: SLF001
}
_FOR_SERVER: Mapping[str, Callable[[Schedule], None]] = {
    "join": Schedule._join,  # noqa: SLF001
    "away": Schedule._go_away,  # noqa: SLF001
    "full": Schedule._fill,  # noqa: SLF001
    "jump": Schedule._jump,  # noqa: SLF001
    "restart": Schedule._restart,  # noqa: SLF001
}


class _Bugs(logging.Handler):
    """Records of unexpected exceptions in the package's log."""

    def __init__(self, schedule: Schedule) -> None:
        super().__init__(logging.ERROR)
        self._schedule = schedule

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info:
            self._schedule.fail(f"{record.getMessage()}: {record.exc_info[1]!r}")


@contextmanager
def _prepared(schedule: Schedule, patches: Sequence[tuple[Any, str, object]]) -> Iterator[None]:
    """Make limits small, so that a small crawl meets them, and all that is random a matter of the seed."""
    package_logger = logging.getLogger("scrapy_prioqueue")
    handler, old_state = _Bugs(schedule), random.getstate()
    old_propagate, old_level = package_logger.propagate, package_logger.level
    names = random.Random(schedule.seed)
    small: list[tuple[Any, str, object]] = [
        (outbox_module, "BATCH_SIZE", 3),
        (outbox_module, "REQUESTS_PER_BATCH", 2),
        # Threads would be no part of the schedule.
        (Heartbeat, "start", lambda *_: None),
        (pump_module, "BATCH_SIZE", 3),
        (frontier_module, "REAP_LIMIT", 2),
        (frontier_module, "_IDS_PER_RECOVER", 2),
        (session_module, "uptime_s", lambda: asyncio.get_running_loop().time()),
        (session_module, "token_hex", lambda _: f"{names.getrandbits(32):08x}"),
        *patches,
    ]
    random.seed(schedule.seed)
    package_logger.addHandler(handler)
    package_logger.propagate = False
    package_logger.setLevel(logging.ERROR)
    with ExitStack() as stack:
        for target, name, value in small:
            stack.enter_context(patch.object(target, name, value))
        try:
            yield
        finally:
            random.setstate(old_state)
            package_logger.removeHandler(handler)
            package_logger.propagate = old_propagate
            package_logger.setLevel(old_level)


def run_schedule(
    seed: int, real: RealServer, options: Options | None = None, kind: type[Schedule] = Schedule
) -> Schedule:
    """Run the schedule of a seed in the calling thread, which must not run a loop; return it with its trace.

    Raises:
        Violation: something was not as it must be; the exception's `schedule` is what `run_schedule` would return.
    """
    options = options or Options()
    schedule = kind(seed, real, options)
    loop = ProcessLoop()
    try:
        with _prepared(schedule, options.patches):
            loop.run_until_complete(schedule.run())
    except Violation as violation:
        violation.schedule = schedule
        raise
    finally:
        _stop_all(loop, schedule)
    return schedule


def _stop_all(loop: ProcessLoop, schedule: Schedule) -> None:
    async def kill_all() -> None:
        for worker in schedule.workers:
            worker.process.kill()
        await asyncio.sleep(0)

    loop.run_until_complete(kill_all())
    loop.close()
