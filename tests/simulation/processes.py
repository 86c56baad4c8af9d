"""Operating-system processes in a simulated world: many share one loop, each can be frozen and killed at any moment."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextvars import Context, ContextVar, copy_context
from dataclasses import dataclass
from typing import Any

from tests.unit.virtual_time import VirtualLoop

_CURRENT: ContextVar[Process | None] = ContextVar("current process", default=None)


@dataclass(eq=False)
class _Call:
    """A call that was scheduled on a loop; `handle` knows whether it was cancelled."""

    callback: Callable[..., object]
    arguments: tuple[Any, ...]
    context: Context
    handle: asyncio.Handle | None = None


class Process:
    """What belongs together, and so stops together. Whatever its code starts belongs to it, too.

    Args:
        name: for the trace.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_dead = False
        self.is_frozen = False
        self._waiting: list[_Call] = []
        self._tasks: list[asyncio.Task[Any]] = []

    def run(self, function: Callable[[], object]) -> None:
        """Call a function as a part of this process."""
        context = copy_context()
        context.run(_CURRENT.set, self)
        context.run(function)

    def freeze(self) -> None:
        """Stop as SIGSTOP does: nothing of this process runs until it is thawed."""
        self.is_frozen = True

    def thaw(self) -> None:
        """Continue: all calls that have become due meanwhile run now, in order."""
        self.is_frozen = False
        waiting, self._waiting = self._waiting, []
        loop = asyncio.get_running_loop()
        for call in waiting:
            loop.call_soon(self.carry_out, call, context=Context())

    def kill(self) -> None:
        """Stop as SIGKILL does. The caller may be a part of this process: it has to await `never` then."""
        self.is_dead = True
        asyncio.get_running_loop().call_soon(self._bury_tasks, context=Context())

    def add(self, task: asyncio.Task[Any]) -> None:
        """Note a task that this process has started."""
        self._tasks.append(task)

    def carry_out(self, call: _Call) -> None:
        """Run something that has become due, unless this process doesn't run."""
        if self.is_dead or (call.handle is not None and call.handle.cancelled()):
            return
        if self.is_frozen:
            self._waiting.append(call)
        else:
            call.context.run(call.callback, *call.arguments)

    def _bury_tasks(self) -> None:
        self._waiting.clear()
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            if not task.done():
                # Cancelling would let it run once more. It is never told that it has come to its end.
                task._log_destroy_pending = False  # type: ignore[attr-defined]  # noqa: SLF001
                coroutine = task.get_coro()
                assert coroutine is not None
                coroutine.close()


ROUND_S = 1e-6
"""Time that a round of the loop takes, as on a real machine: a timer that comes a trifle early is not early forever."""


class ProcessLoop(VirtualLoop):
    """A loop in virtual time that runs nothing of processes that are frozen or dead."""

    def _run_once(self) -> None:
        self._virtual.passed_s += ROUND_S
        super()._run_once()  # type: ignore[misc]

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        owner = _owner(context)
        if owner is None:
            return super().call_soon(callback, *args, context=context)
        call = _Call(callback, args, copy_context() if context is None else context)
        call.handle = super().call_soon(owner.carry_out, call, context=Context())
        return call.handle

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        owner = _owner(context)
        if owner is None:
            return super().call_at(when, callback, *args, context=context)
        call = _Call(callback, args, copy_context() if context is None else context)
        handle = super().call_at(when, owner.carry_out, call, context=Context())
        call.handle = handle
        return handle

    def create_task(self, coro: Coroutine[Any, Any, Any], **options: Any) -> asyncio.Task[Any]:  # type: ignore[override]
        task: asyncio.Task[Any] = super().create_task(coro, **options)
        owner = _CURRENT.get()
        if owner is not None:
            owner.add(task)
        return task


def _owner(context: Context | None) -> Process | None:
    return _CURRENT.get() if context is None else context.get(_CURRENT)


async def never() -> None:
    """Wait for something that doesn't come, as a dead process does."""
    await asyncio.get_running_loop().create_future()
