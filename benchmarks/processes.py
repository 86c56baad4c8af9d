"""Programs of this folder that a benchmark starts: some serve a port, some work beside it and print what they measure.

A program that serves a port ends when its input ends, so that it never outlives the one that started it.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

HOST = "127.0.0.1"
HERE = Path(__file__).resolve().parent

LINE_WITHIN_S = 120.0
"""Longest time until a program prints its next line, in seconds."""


class BenchmarkFailed(Exception):
    """A measurement can't be made, or is worth nothing."""


def wait_until(condition: Callable[[], object], *, what: str, within_s: float) -> None:
    """Wait until the condition is true; it may raise.

    Raises:
        BenchmarkFailed: it was still false after that many seconds.
    """
    pause, deadline = threading.Event(), time.monotonic() + within_s
    while not condition():
        if time.monotonic() > deadline:
            raise BenchmarkFailed(f"not within {within_s:g} s: {what}")
        pause.wait(0.05)


@contextmanager
def beside(script: str, *arguments: object, logs: bool = True) -> Iterator[subprocess.Popen[str]]:
    """Start a program; it is killed if it still runs at the end of the ``with`` block.

    Args:
        logs: whether to show what it writes on standard error.
    """
    process = subprocess.Popen(
        [sys.executable, HERE / script, *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=None if logs else subprocess.DEVNULL,
        text=True,
        start_new_session=True,  # Ctrl-C is for the benchmark, which then kills this
    )
    assert process.stdin is not None and process.stdout is not None
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()


def line_of(process: subprocess.Popen[str]) -> str:
    """Return the next line that a program prints.

    Raises:
        BenchmarkFailed: none has come in time.
    """
    assert process.stdout is not None
    watchdog = threading.Timer(LINE_WITHIN_S, process.kill)
    watchdog.start()
    try:
        line = process.stdout.readline()
    finally:
        watchdog.cancel()
    if not line:
        raise BenchmarkFailed(f"{process.args!r} ended before its time")
    return line


@contextmanager
def served(script: str, *arguments: object) -> Iterator[int]:
    """Run a program that serves a port for the length of the ``with`` block and yield the port.

    Raises:
        BenchmarkFailed: it didn't start.
    """
    with beside(script, *arguments) as process:
        yield int(line_of(process))


async def serve_until_input_ends(server: asyncio.Server) -> None:
    """Print the port of a server, and stop it when the input ends."""
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_reader(sys.stdin.fileno(), ended.set)
    print(server.sockets[0].getsockname()[1], flush=True)
    await ended.wait()
    loop.remove_reader(sys.stdin.fileno())
    server.close()
