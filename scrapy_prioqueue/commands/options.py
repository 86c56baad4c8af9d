"""Options that several verbs have, and the types of their values."""

from __future__ import annotations

import re
from argparse import ArgumentParser, ArgumentTypeError

from scrapy_prioqueue.frontier.redis.operators.findings import PLACES


def add_limit(parser: ArgumentParser, default: int) -> None:
    """Let a verb show only so many."""
    parser.add_argument(
        "-n", "--limit", type=count, default=default, metavar="N", help="show at most N (default: %(default)s)"
    )


def add_places(parser: ArgumentParser) -> None:
    """Let a verb look only in some places."""
    parser.add_argument(
        "--in",
        dest="places",
        action="append",
        choices=PLACES,
        help="only requests in this state (may be repeated; default: all)",
    )


def count(text: str) -> int:
    """Return a number above zero."""
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise ArgumentTypeError(f"{text!r} is not a number above 0")
    return number


def seconds(text: str) -> float:
    """Return a number of seconds above zero."""
    try:
        number = float(text)
    except ValueError:
        number = 0
    if not 0 < number < float("inf"):
        raise ArgumentTypeError(f"{text!r} is not a number of seconds above 0")
    return number


_UNITS_S = {"": 1, "s": 1, "min": 60, "h": 3_600, "d": 86_400}
_LONGEST_S = 1e12


def duration_s(text: str) -> float:
    """Return a length of time such as 90, 15min, 2h or 1d in seconds."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?) ?(s|min|h|d|)", text)
    if found is None or float(found[1]) > _LONGEST_S:
        raise ArgumentTypeError(f"{text!r} is not a length of time such as 90, 15min, 2h or 1d")
    return float(found[1]) * _UNITS_S[found[2]]
