"""Programs that serve a port on loopback for as long as another program needs them: both sides of that agreement.

The served program prints its port and ends when its input ends, so that it never outlives the one that started it.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

HOST = "127.0.0.1"
HERE = Path(__file__).resolve().parent
END_S = 5.0


class BenchmarkFailed(Exception):
    """A measurement can't be made, or is worth nothing."""


async def serve_until_input_ends(server: asyncio.Server) -> None:
    """Print the port of a server, and stop it when nobody is interested any more."""
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_reader(sys.stdin.fileno(), ended.set)
    print(server.sockets[0].getsockname()[1], flush=True)
    await ended.wait()
    loop.remove_reader(sys.stdin.fileno())
    server.close()


@contextmanager
def served(script: str, *arguments: object) -> Iterator[int]:
    """Run a program of this folder for the length of the ``with`` block and yield its port.

    Raises:
        BenchmarkFailed: it didn't start.
    """
    process = subprocess.Popen(
        [sys.executable, HERE / script, *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,  # Ctrl-C is for the benchmark, which then closes the input
    )
    assert process.stdin is not None and process.stdout is not None
    try:
        port = process.stdout.readline()
        if not port:
            raise BenchmarkFailed(f"{script} did not start")
        yield int(port)
    finally:
        process.stdin.close()
        process.stdout.close()
        try:
            process.wait(END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
