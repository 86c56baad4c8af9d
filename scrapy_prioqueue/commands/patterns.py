"""What PATTERN means to the verbs that take one: a regular expression searched for in a request's URL."""

from __future__ import annotations

import re
from argparse import ArgumentParser

from scrapy_prioqueue.commands.verb import WRONG_USE, Stop

HELP = "regular expression that is searched for in the URL, as in PRIOQUEUE_TIER_RULES"

_SIMPLE = re.compile(r"[\w/:%&=~,;@#.^$-]*", re.ASCII)
"""Patterns that say nothing else than which texts follow each other, with any letter or none between them."""


def add_pattern(parser: ArgumentParser) -> None:
    """Let a verb take a pattern."""
    parser.add_argument("pattern", metavar="PATTERN", help=HELP)


def compiled(pattern: str) -> re.Pattern[str]:
    """Return the pattern ready for use.

    Raises:
        Stop: it is no regular expression.
    """
    try:
        return re.compile(pattern)
    except re.error as error:
        raise Stop(f"{pattern!r} is not a regular expression: {error}", WRONG_USE) from None


def plain_part(pattern: str) -> bytes:
    """Return the longest run of bytes that every match certainly holds, for the server to leave out what doesn't match;
    empty where that can't be told."""
    if not _SIMPLE.fullmatch(pattern):
        return b""
    return max(re.split(r"[.^$]", pattern), key=len).encode()
