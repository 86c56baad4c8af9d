"""What tests of single parts share."""

from __future__ import annotations

import pytest

from tests.support.clocks import Clock


@pytest.fixture
def clock() -> Clock:
    return Clock()
