"""A frontier, and a client of it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from scrapy_prioqueue import FrontierClient
from tests.contract.backends import is_balanced
from tests.support.servers import RedisServer


@pytest.fixture
def client(redis_server: RedisServer, frontier_name: str) -> Iterator[FrontierClient]:
    """A client of this test's frontier, which must balance in the end."""
    with FrontierClient(redis_server.url, frontier_name) as client:
        yield client
        assert is_balanced(client.depth()), client.depth()
