"""Coroutines in tests that are plain functions, such as the rules of a state machine.

pytest-twisted runs every test in the reactor, that is in a running asyncio loop, where `asyncio.run` can't be used.
So these coroutines run in the loop of one other thread, which lives as long as the session: clients can be kept.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, Protocol, TypeVar

T = TypeVar("T")


class Closable(Protocol):
    """A frontier or a connection."""

    async def close(self) -> None: ...


ClosableT = TypeVar("ClosableT", bound=Closable)


def run(coroutine: Coroutine[Any, Any, T], *, within: float = 30.0) -> T:
    """Run a coroutine to its end and return its result.

    Args:
        coroutine: of asyncio; what it opens belongs to the loop that all calls share.
        within: seconds until the wait fails.
    """
    return asyncio.run_coroutine_threadsafe(coroutine, _shared_loop()).result(within)


@contextmanager
def closed(opened: ClosableT) -> Iterator[ClosableT]:
    """Close it in any case: what a failed test leaves open makes a later one fail when it is collected."""
    try:
        yield opened
    finally:
        run(opened.close())


@cache
def _shared_loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="coroutines of tests", daemon=True).start()
    return loop
