"""How the benchmarks begin and end: a directory and a Redis server of their own, exit codes, Ctrl-C."""

from __future__ import annotations

import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from redis_server import RedisServer, RedisServerError
from served import BenchmarkFailed


@contextmanager
def workplace(**config: Any) -> Iterator[tuple[Path, RedisServer]]:
    """Yield a directory and a running server, which are gone after the ``with`` block.

    Args:
        config: directives for the server, see `RedisServer`.

    Raises:
        RedisServerError: there is no server on this machine, or it doesn't start.
    """
    with tempfile.TemporaryDirectory(prefix="prioqueue-bench-") as directory:
        server = RedisServer(Path(directory) / "redis", **config)
        try:
            server.start()
            yield Path(directory), server
        finally:
            server.stop()


def run_as_program(benchmark: Callable[[], None]) -> int:
    """Run a benchmark and return its exit code; however it ends, what it started is stopped first."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        benchmark()
    except (BenchmarkFailed, RedisServerError) as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0
