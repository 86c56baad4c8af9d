"""The settings of de-duplication are checked, in settings and in programs."""

from __future__ import annotations

from typing import Any

import pytest

from scrapy_prioqueue.frontier.seen import MOST_EXPECTED, NEVER_S, SeenPolicy


@pytest.mark.parametrize(
    "fields, named",
    [
        ({"mode": "foo"}, "mode"),
        ({"expected": 0}, "expected"),
        ({"expected": MOST_EXPECTED + 1}, "expected"),
        ({"error_rate": 0.0}, "error_rate"),
        ({"error_rate": 2.0}, "error_rate"),
        ({"error_rate": float("nan")}, "error_rate"),
        ({"revisit_s": -1}, "revisit_s"),
        ({"mode": "bloom", "revisit_s": 5}, "revisit_s"),
    ],
)
def test_invalid_policies_are_rejected(fields: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        SeenPolicy(**fields)


def test_valid_policies_are_accepted() -> None:
    assert SeenPolicy("compact", MOST_EXPECTED, 0.1, NEVER_S).revisit_s == NEVER_S
    assert SeenPolicy("bloom", 1, 1e-9).expected == 1
