"""What of a pattern the server can look for: something that every match holds, or nothing."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scrapy_prioqueue.commands.patterns import compiled, plain_part
from scrapy_prioqueue.commands.verb import WRONG_USE, Stop


@pytest.mark.parametrize(
    ("pattern", "part"),
    [
        ("product/12", b"product/12"),
        ("^https://shop.example/p$", b"https://shop"),
        ("a.bc", b"bc"),
        ("product/?x", b""),
        ("a|b", b""),
        ("", b""),
        ("größe", b""),
    ],
)
def test_plain_part_is_the_longest_run(pattern: str, part: bytes) -> None:
    assert plain_part(pattern) == part


@given(st.text("ab.^$/", max_size=6), st.text("ab/", max_size=12))
def test_every_match_holds_the_plain_part(pattern: str, text: str) -> None:
    if re.search(pattern, text):
        assert plain_part(pattern) in text.encode()


def test_what_is_no_regular_expression_is_wrong_use() -> None:
    with pytest.raises(Stop) as stopped:
        compiled("(")

    assert stopped.value.code == WRONG_USE
