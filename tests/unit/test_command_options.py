"""Options of verbs."""

from __future__ import annotations

from argparse import ArgumentTypeError

import pytest

from scrapy_prioqueue.commands.options import pattern


def test_what_is_no_regular_expression_is_refused() -> None:
    with pytest.raises(ArgumentTypeError, match=r"'\(' is not a regular expression"):
        pattern("(")
