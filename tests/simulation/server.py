"""The Redis server of the simulation: a real one that runs the real scripts, with a set clock and injected faults."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import Context
from typing import Any

import hiredis
import redis
from redis import exceptions

from scrapy_prioqueue.frontier.redis.connection import parse_version
from scrapy_prioqueue.frontier.redis.scripts import Argument, Script, scripts_for
from tests.simulation.audit import BELL, COMMAND_COUNT, PACKED_COMMANDS, STATE, Audit, audit
from tests.simulation.ledger import Ledger, Step, Violation, Worker
from tests.simulation.wire import Wire, pack
from tests.support.halves import failing

EPOCH_MS = 1_700_000_000_000
INFO_SECTIONS = ("server", "memory", "persistence")
BELL_S = 0.001


class RealServer:
    """What all schedules share: the connections to the server process, and its data about itself.

    Args:
        path: of its unix socket.
    """

    def __init__(self, path: str) -> None:
        self.wire = Wire(path)
        self.wire.subscribe(BELL)
        self.client = redis.Redis(unix_socket_path=path, socket_timeout=20.0)
        self.infos: Mapping[str, Any] = {section: self.client.info(section) for section in INFO_SECTIONS}
        self.version = parse_version(self.infos["server"]["redis_version"])
        self.scripts: Mapping[str, Script] = scripts_for(self.version)
        self._loaded: set[str] = set()

    def begin(self, scripts: Mapping[str, Script] | None = None) -> Mapping[str, Script]:
        """Empty the server and load these scripts, None for the real ones; return them."""
        chosen = scripts or self.scripts
        new = [script for script in chosen.values() if script.digest not in self._loaded]
        self.wire.ask(("CONFIG", "SET", "maxmemory", "0"), ("FLUSHALL",), *(("SCRIPT", "LOAD", s.source) for s in new))
        self._loaded.update(script.digest for script in new)
        return chosen

    def close(self) -> None:
        """Hang up."""
        self.wire.close()
        self.client.close()


class SimServer:
    """The server as one schedule sees it. Every call is a step: it is carried out at once, logged and checked.

    Args:
        real: emptied by this.
        scripts: None for the real ones.
    """

    def __init__(self, real: RealServer, scripts: Mapping[str, Script] | None = None) -> None:
        self.real = real
        self.scripts = real.begin(scripts)
        self.nothing = audit(real.wire)
        self.ledger: Ledger
        self.on_step: Callable[[Worker], None] = lambda _: None
        self.on_violation: Callable[[str], None] = lambda _: None
        self.trace: list[tuple[Any, ...]] = []
        self.bells: dict[object, Callable[[], None]] = {}
        self.clock_offset_ms = 0
        self.jumps = 0
        self.starts = 1
        self.incarnation = 1
        self.steps = 0
        self._away_until_s = 0.0
        self._is_late = False
        self._log: list[Sequence[Argument]] = []
        self.failing_steps: Mapping[int, int] = {}
        """Steps at which a script raises an error, and at which of its effects."""

    def now_ms(self) -> int:
        """Return the time by the server's clock."""
        return EPOCH_MS + self.clock_offset_ms + self.real_ms()

    def real_ms(self) -> int:
        """Return the time of a clock that is never set."""
        return round(asyncio.get_running_loop().time() * 1000)

    def set_clock(self, offset_ms: int) -> None:
        """Set the server's clock forward, or back."""
        self.clock_offset_ms += offset_ms
        self.jumps += offset_ms > 0

    # Faults

    @property
    def is_away(self) -> bool:
        """It refuses connections."""
        return asyncio.get_running_loop().time() < self._away_until_s

    def go_away(self, seconds: float) -> None:
        """Refuse connections for a while; those that are open are lost."""
        self._away_until_s = asyncio.get_running_loop().time() + seconds
        self._cut_lines()

    def set_full(self, *, is_full: bool) -> None:
        """Reach `maxmemory`, or get room again."""
        self.real.wire.ask(("CONFIG", "SET", "maxmemory", "1" if is_full else "0"))

    def restart_without(self, writes: int, *, is_same: bool = False) -> None:
        """Come back as if the last calls had not been made.

        Args:
            is_same: under the same run id, as a primary that was demoted and promoted again.
        """
        kept = max(0, len(self._log) - writes)
        self.incarnation += not is_same
        del self._log[kept:]
        self.real.wire.ask(("CONFIG", "SET", "maxmemory", "0"), ("FLUSHALL",), *self._log)
        self.real.wire.messages = 0
        self._cut_lines()
        self._guard(lambda: self.ledger.roll_back(audit(self.real.wire), kept))

    # Calls

    def run_script(self, worker: Worker, name: str, arguments: Sequence[Argument]) -> Any:
        """Run a script; an error is returned in the place of its reply."""
        now_ms = self.now_ms()
        # Behind the time stands what the worker has measured.
        stamped = (str(now_ms) + str(arguments[0]), *arguments[1:])
        command = self.scripts[name].call(STATE, stamped)
        fails_at = self.failing_steps.get(self.steps + 1)
        if fails_at is not None:
            command = ("EVAL", failing(self.scripts[name].source, fails_at), 1, STATE, *stamped)
        call = pack([command])
        reply, *replies = self.real.wire.ask_packed(call + PACKED_COMMANDS, 1 + COMMAND_COUNT)
        if isinstance(reply, hiredis.ReplyError):
            reply = _error(str(reply))
        self.steps += 1
        self.note(worker.name, name, stamped, reply)
        if not isinstance(reply, Exception) or fails_at is not None:
            # Of a script that was cut, what it had completed stays.
            self._log.append(command)
        step = Step(
            *(worker, name, stamped, reply, now_ms, self.real_ms(), self.jumps),
            is_late=self._is_late,
            is_cut=fails_at is not None,
        )
        self._guard(lambda: self.ledger.check(step, Audit(replies)))
        self._ring()
        self.on_step(worker)
        return reply

    @contextmanager
    def delivering_late(self) -> Iterator[None]:
        """Carry out calls that their workers have given up."""
        self._is_late = True
        try:
            yield
        finally:
            self._is_late = False

    def note(self, *event: object) -> None:
        """Write something into the trace."""
        self.trace.append((asyncio.get_running_loop().time(), *event))

    def _ring(self) -> None:
        if self.real.wire.messages:
            self.real.wire.messages = 0
            self._tell_listeners()

    def _cut_lines(self) -> None:
        self.starts += 1
        self._tell_listeners()

    def _tell_listeners(self) -> None:
        loop = asyncio.get_running_loop()
        for ring in self.bells.values():
            loop.call_later(BELL_S, ring, context=Context())

    def _guard(self, check: Callable[[], None]) -> None:
        try:
            check()
        except Violation as violation:
            self.on_violation(str(violation))


def _error(text: str) -> exceptions.ResponseError:
    if "OOM" in text:
        return exceptions.OutOfMemoryError(text)
    return exceptions.ResponseError(text)
