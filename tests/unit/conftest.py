"""Fixtures of the unit tests."""

from __future__ import annotations

import pytest

from tests.support.clocks import Clock


@pytest.fixture
def clock() -> Clock:
    return Clock()
