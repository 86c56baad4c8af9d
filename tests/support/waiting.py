"""Waits for a condition with a name and a deadline; no other module of the tests sleeps."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")

PAUSE_S = 0.01


def wait_until(condition: Callable[[], T], *, what: str, within: float) -> T:
    """Ask again and again until the answer is true, then return it; for threads and processes.

    Args:
        condition: asked about 100 times a second.
        what: the claim, for the failure's message: "both workers have joined".
        within: seconds until the wait fails.

    Raises:
        AssertionError: the condition was still false at the deadline.
    """
    deadline = time.monotonic() + within
    pause = threading.Event()
    while not (answer := condition()):
        _check_deadline(deadline, what, within)
        pause.wait(PAUSE_S)
    return answer


async def wait_until_async(condition: Callable[[], Awaitable[T]], *, what: str, within: float) -> T:
    """Do the same in an asyncio task without blocking its loop; see `wait_until`."""
    deadline = time.monotonic() + within
    while not (answer := await condition()):
        _check_deadline(deadline, what, within)
        await asyncio.sleep(PAUSE_S)
    return answer


def _check_deadline(deadline: float, what: str, within: float) -> None:
    if time.monotonic() > deadline:
        raise AssertionError(f"not within {within} s: {what}")
