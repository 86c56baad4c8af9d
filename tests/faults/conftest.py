"""Fixtures of the fault tests: a shop with its own Redis server, and random moments."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Protocol

import pytest

from tests.support.forks import StartFork
from tests.support.processes import StartProcess
from tests.support.servers import StartServer
from tests.support.shop import Shop


class OpenShop(Protocol):
    """Opens a shop; the keywords are directives of the Redis server, which keeps an append-only file."""

    def __call__(self, *, products: int, latency: float = 0.1, **config: str) -> Shop: ...


@pytest.fixture
def open_shop(
    tmp_path: Path,
    start_process: StartProcess,
    start_fork: StartFork,
    redis_server_factory: StartServer,
    frontier_name: str,
) -> OpenShop:
    """Opens the shop of this test."""

    def open_it(*, products: int, latency: float = 0.1, **config: str) -> Shop:
        server = redis_server_factory(appendonly=True, **config)
        return Shop(tmp_path, start_process, start_fork, server, frontier_name, products=products, latency=latency)

    return open_it


@pytest.fixture
def lottery() -> random.Random:
    """Draws the moments of kills; pytest-randomly makes the same seed again from its own."""
    seed = random.randrange(2**32)
    print(f"seed of the lottery: {seed}")
    return random.Random(seed)
