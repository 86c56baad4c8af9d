"""What the server has noted as slow, by what was done meanwhile and by script or command."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache

from redis import Redis
from redis_server import RedisServer

from scrapy_prioqueue.frontier.redis.connection import parse_version
from scrapy_prioqueue.frontier.redis.scripts import NAMES, OPERATOR_NAMES, scripts_for

SLOW_MS = 5.0
"""No call should take longer: all others wait meanwhile."""


@dataclass(slots=True)
class SlowCalls:
    """The longest calls, in milliseconds.

    Args:
        longest: by ``<what was done>: <script or command>``.
    """

    longest: dict[str, float] = field(default_factory=dict)

    @staticmethod
    @cache
    def client(server: RedisServer) -> Redis:
        """Return a client that stays open."""
        return Redis.from_url(server.url, socket_timeout=120)

    def forget(self, server: RedisServer) -> None:
        """Don't count what was slow so far."""
        self.client(server).slowlog_reset()

    @contextmanager
    def during(self, what: str, server: RedisServer) -> Iterator[None]:
        """Note what is slow in the ``with`` block under that name."""
        self.forget(server)
        yield
        self.note(what, server)

    def note(self, what: str, server: RedisServer) -> None:
        """Take over what was slow since."""
        client = self.client(server)
        version = parse_version(str(client.info("server")["redis_version"]))
        scripts = {script.digest: name for name, script in scripts_for(version, (*NAMES, *OPERATOR_NAMES)).items()}
        for entry in client.slowlog_get(-1):
            words = entry["command"].decode("utf-8", "replace").split(" ", 2)
            command = scripts.get(words[1], words[1]) if words[0].upper() == "EVALSHA" else words[0].upper()
            name = f"{what}: {command}"
            self.longest[name] = max(self.longest.get(name, 0.0), round(entry["duration"] / 1000, 1))
        client.slowlog_reset()
