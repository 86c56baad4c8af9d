"""A frontier for operators' tests; after each test its counters must balance and agree with its data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from math import inf

import pytest

from scrapy_prioqueue.frontier.base import Depth
from scrapy_prioqueue.frontier.redis.link import Link
from scrapy_prioqueue.frontier.redis.operators.inspector import Inspector
from scrapy_prioqueue.frontier.redis.operators.operator import Operator
from tests.contract.backends import is_balanced
from tests.support.servers import RedisServer


def assert_in_order(operator: Operator) -> None:
    """Compare the counters with each other, and with what there is."""
    depth, found = operator.depth(), Counter(stored.state for stored in operator.requests.each())
    assert is_balanced(depth), depth
    assert (depth.pending, depth.delayed, depth.leased) == (found["pending"], found["delayed"], found["leased"])


def assert_is_bloom(inspector: Inspector, urls: Sequence[bytes], lost: int) -> None:
    """Look at a Bloom filter, made for half as many at 1 %, which has taken so many of these for duplicates."""
    state = inspector.state()
    assert state is not None
    assert (state.seen_mode, state.seen) == ("bloom", len(urls) - lost)
    assert 2 < state.seen_lost < 20
    assert all(inspector.seen_until(url) == inf for url in urls[::50])
    assert sum(inspector.seen_until(b"%030d" % number) is not None for number in range(40)) < 8


@pytest.fixture
def operator(redis_server: RedisServer, frontier_name: str) -> Iterator[Operator]:
    """Works on this test's frontier."""
    link = Link(redis_server.url)
    operator = Operator(link, frontier_name, lease_ttl_s=10)
    yield operator
    if operator.depth() != Depth():
        assert_in_order(operator)
    link.close()
