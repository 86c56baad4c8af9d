"""Programs of this folder that work beside a benchmark until it ends: start them, and read what they print."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from served import HERE, BenchmarkFailed

LINE_WITHIN_S = 120.0
"""Longest time until a program prints its next line, in seconds."""


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
        raise BenchmarkFailed("a program beside the benchmark ended before its time")
    return line
