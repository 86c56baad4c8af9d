"""Every contract test runs on every kind of storage; add a new storage here."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.contract.backends import Backend, MemoryBackend, RedisBackend, is_balanced


@pytest.fixture(params=[pytest.param("memory", marks=pytest.mark.in_process), "redis"])
def backend(request: pytest.FixtureRequest, frontier_name: str) -> Iterator[Backend]:
    """A frontier of its own for this test, not joined by anyone."""
    if request.param == "memory":
        backend: Backend = MemoryBackend(frontier_name)
    else:
        backend = RedisBackend(frontier_name, request.getfixturevalue("redis_server").url)
    yield backend
    backend.close()


@pytest.fixture(autouse=True)
def books_balance_after_the_test(backend: Backend) -> Iterator[None]:
    """Invariant 9, as the last session of each worker sees it."""
    yield
    sessions = {worker.worker_id: worker for worker in backend.workers if worker.is_in}
    for worker in sessions.values():
        depth = worker.depth()
        assert is_balanced(depth), depth
