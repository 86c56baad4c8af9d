"""Both frontiers find the same limit for a slot, for any entries of settings and operators."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import closing
from itertools import count

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scrapy_prioqueue.frontier.policy import Policy, SlotLimit, merged_by_name
from scrapy_prioqueue.frontier.redis.link import Link
from scrapy_prioqueue.frontier.redis.operators.operator import Operator
from tests.contract.backends import Backend, MemoryBackend, RedisBackend, Worker, push
from tests.property.test_frontiers import LIMITS
from tests.support.servers import RedisServer

SLOTS = ("a.shop.test", "b.shop.test", "shop.test", "test", "other")
ENTRIES = st.dictionaries(st.sampled_from([*SLOTS, "*.shop.test", "*.test", "*"]), LIMITS, max_size=4)

EXAMPLES = 60


def served(worker: Worker) -> list[tuple[str, int, int | None]]:
    """Return which requests of each slot a worker gets, and when they may start."""
    worker.commit(*(push(f"{slot}{number}", 0, slot) for slot in SLOTS for number in range(5)))
    leases = worker.lease(100, later_limit=100, horizon_ms=100_000)
    return sorted((lease.slot, lease.start_in_ms, lease.late_ms or 0) for lease in leases)


@pytest.fixture
def operated(redis_server: RedisServer, frontier_name: str) -> Callable[[], tuple[Backend, Operator]]:
    """Makes frontiers, each with an operator."""
    numbers, link = count(1), Link(redis_server.url)

    def new() -> tuple[Backend, Operator]:
        name = f"{frontier_name}-{next(numbers)}"
        return RedisBackend(name, redis_server.url), Operator(link, name)

    return new


@given(by_settings=ENTRIES, by_operator=ENTRIES)
@settings(suppress_health_check=list(HealthCheck), max_examples=EXAMPLES)
def test_limits_are_resolved_by_one_rule(
    operated: Callable[[], tuple[Backend, Operator]],
    by_settings: Mapping[str, SlotLimit],
    by_operator: Mapping[str, SlotLimit],
) -> None:
    both = Policy(slots=merged_by_name(by_operator, by_settings))
    backend, operator = operated()
    with closing(MemoryBackend("memory")) as memory, closing(backend):
        worker = backend.join(policy=Policy(slots=by_settings))
        for name, limit in by_operator.items():
            operator.limit(name, limit)

        assert served(worker) == served(memory.join(policy=both))
