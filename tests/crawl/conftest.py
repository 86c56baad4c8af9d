"""Fixtures of the crawl tests: a site, and crawls of it in Redis, in memory or both."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.crawl.spiders import Follower
from tests.support.crawls import Crawls
from tests.support.forks import StartFork
from tests.support.servers import RedisServer
from tests.support.site import Site, site_on_loopback


@pytest.fixture
def site() -> Iterator[Site]:
    """An empty site on three hosts."""
    with site_on_loopback() as site:
        yield site


@pytest.fixture
def closed_port() -> Iterator[int]:
    """A port of this machine where nobody listens, and nobody can begin to."""
    with socket.socket() as keeper:
        keeper.bind(("127.0.0.1", 0))
        yield keeper.getsockname()[1]


@pytest.fixture
def plain_crawls(site: Site, start_fork: StartFork, tmp_path: Path, frontier_name: str) -> Crawls:
    """Crawls with our scheduler, and no word of where the frontier is."""
    settings = {"SCHEDULER": "scrapy_prioqueue.Scheduler", "PRIOQUEUE_NAME": frontier_name}
    return Crawls(site, start_fork, tmp_path, Follower, settings)


@pytest.fixture
def on_redis(plain_crawls: Crawls, redis_server: RedisServer) -> Crawls:
    """Crawls that share a frontier in Redis."""
    return plain_crawls.having(PRIOQUEUE_REDIS_URL=redis_server.url, PRIOQUEUE_FALLBACK="error")


@pytest.fixture
def in_memory(plain_crawls: Crawls, closed_port: int) -> Crawls:
    """Crawls that find no server and go on in process."""
    return plain_crawls.having(PRIOQUEUE_REDIS_URL=f"redis://127.0.0.1:{closed_port}/0")


@pytest.fixture(params=["on_redis", pytest.param("in_memory", marks=pytest.mark.in_process)])
def crawls(request: pytest.FixtureRequest) -> Crawls:
    """Crawls on each of the two frontiers."""
    found: Crawls = request.getfixturevalue(request.param)
    return found
