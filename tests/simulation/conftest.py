"""Fixtures of the simulation."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.simulation.server import RealServer
from tests.simulation.servers import real_server


@pytest.fixture(scope="session")
def real() -> Iterator[RealServer]:
    """A server for all schedules, emptied by each; the scripts of the tests' other servers are not in it."""
    with real_server() as server:
        yield server
