"""What PATTERN means to the verbs that take one: a regular expression searched for in a request's URL."""

from __future__ import annotations

import re
from argparse import ArgumentParser

from scrapy_prioqueue.commands.verb import WRONG_USE, Stop

HELP = "regular expression that is searched for in the URL, as in PRIOQUEUE_TIER_RULES"


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
