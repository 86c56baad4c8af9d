"""The server process of a simulation."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from redis_server import RedisServer

from tests.simulation.server import RealServer

SOCKET = "redis.sock"


@contextmanager
def real_server() -> Iterator[RealServer]:
    """Yield a server of its own, in a folder whose name is short enough for a unix socket."""
    with (
        tempfile.TemporaryDirectory(prefix="simulation-") as folder,
        RedisServer(folder, unixsocket=SOCKET) as process,
        closing(RealServer(str(Path(process.directory) / SOCKET))) as server,
    ):
        yield server
