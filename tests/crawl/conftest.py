"""Fixtures of the crawl tests: crawls in Redis, in memory or both."""

from __future__ import annotations

import pytest

from tests.support.crawls import Crawls


@pytest.fixture
def in_memory(plain_crawls: Crawls, closed_port: int) -> Crawls:
    """Crawls in process, since no server can be reached."""
    return plain_crawls.having(PRIOQUEUE_REDIS_URL=f"redis://127.0.0.1:{closed_port}/0")


@pytest.fixture(params=["on_redis", pytest.param("in_memory", marks=pytest.mark.in_process)])
def crawls(request: pytest.FixtureRequest) -> Crawls:
    """Crawls on each of the two frontiers."""
    found: Crawls = request.getfixturevalue(request.param)
    return found
