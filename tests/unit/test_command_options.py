"""Options of verbs."""

from __future__ import annotations

from argparse import ArgumentTypeError

import pytest

from scrapy_prioqueue.commands.options import pattern


def test_an_invalid_regular_expression_is_rejected() -> None:
    with pytest.raises(ArgumentTypeError, match=r"'\(' is not a regular expression"):
        pattern("(")
