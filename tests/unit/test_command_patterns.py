"""Patterns that verbs take."""

from __future__ import annotations

import pytest

from scrapy_prioqueue.commands.patterns import compiled
from scrapy_prioqueue.commands.verb import WRONG_USE, Stop


def test_what_is_no_regular_expression_is_wrong_use() -> None:
    with pytest.raises(Stop) as stopped:
        compiled("(")

    assert stopped.value.code == WRONG_USE
