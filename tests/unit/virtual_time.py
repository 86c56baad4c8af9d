"""An asyncio loop in virtual time: it jumps to the next timer, so hours pass at once."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from functools import wraps
from typing import Any, TypeVar

T = TypeVar("T")

REAL_DEADLINE_S = 30.0
PAUSE_S = 0.001


class _JumpingSelector(selectors.SelectSelector):
    """Waits for nothing: time passes instead."""

    def __init__(self) -> None:
        super().__init__()
        self.passed_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        events = super().select(0)
        if not events:
            if timeout is None:
                raise AssertionError("everything waits, and nothing will ever happen")
            self.passed_s += max(timeout, 0)
        return events


class VirtualLoop(asyncio.SelectorEventLoop):
    """The loop; its time begins at 0."""

    def __init__(self) -> None:
        self._virtual = _JumpingSelector()
        super().__init__(self._virtual)

    def time(self) -> float:
        return self._virtual.passed_s


def run_in_virtual_time(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end in a loop of its own, in another thread, since this one runs the reactor's loop."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(_run, coroutine).result(REAL_DEADLINE_S)


def in_virtual_time(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Make a test of a coroutine, which is run in virtual time."""

    @wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        run_in_virtual_time(test(*args, **kwargs))

    return run


def _run(coroutine: Coroutine[Any, Any, T]) -> T:
    loop = VirtualLoop()
    try:
        return loop.run_until_complete(coroutine)
    finally:
        _cancel_what_is_left(loop)
        loop.close()


def _cancel_what_is_left(loop: asyncio.AbstractEventLoop) -> None:
    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.cancel()
    if tasks:
        loop.run_until_complete(asyncio.wait(tasks))


async def until(condition: Callable[[], object], *, what: str, within: float = 60.0, every: float = PAUSE_S) -> None:
    """Let time pass until the condition is true.

    Args:
        every: virtual seconds between two looks; each look costs real time.

    Raises:
        AssertionError: it was still false after that many virtual seconds.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + within
    while not condition():
        assert loop.time() <= deadline, f"not within {within} s: {what}"
        await asyncio.sleep(every)


async def pass_time(seconds: float) -> None:
    """Let virtual time pass."""
    await asyncio.sleep(seconds)
