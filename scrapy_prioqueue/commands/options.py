"""Options shared by several verbs, the types of their values, and opening the user's files."""

from __future__ import annotations

import re
import sys
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Literal

from scrapy_prioqueue.commands.verb import WRONG_USE, Stop
from scrapy_prioqueue.errors import SettingError
from scrapy_prioqueue.frontier.redis.operators.findings import STATES
from scrapy_prioqueue.settings.readers import LAST_PORT, ip_address


def add_limit(parser: ArgumentParser, default: int) -> None:
    """Add `--limit`."""
    parser.add_argument(
        "-n", "--limit", type=count, default=default, metavar="N", help="show at most N (default: %(default)s)"
    )


def add_listening(parser: ArgumentParser, port_number: int) -> None:
    """Add `--host` and `--port`, where a verb listens."""
    parser.add_argument("--host", type=address, default="127.0.0.1", metavar="ADDRESS",
                        help="IP address to listen on; 0.0.0.0 for all (default: %(default)s)")  # fmt: skip
    parser.add_argument("--port", type=port, default=port_number, metavar="N",
                        help="port to listen on; 0 for any free port (default: %(default)s)")  # fmt: skip


def add_pattern(parser: ArgumentParser) -> None:
    """Add the argument PATTERN, and `--callback` and `--slot`, which restrict what it finds."""
    help_text = "regular expression that is searched for in the URL, as in PRIOQUEUE_TIER_RULES"
    parser.add_argument("pattern", type=pattern, metavar="PATTERN", help=help_text)
    parser.add_argument("--callback", metavar="METHOD", help="only those with this callback; without one it is parse")
    parser.add_argument("--slot", help="only those of this slot, usually a host; much faster")


def add_states(parser: ArgumentParser) -> None:
    """Add `--in`, which restricts a verb to some states of requests."""
    parser.add_argument(
        "--in",
        dest="states",
        action="append",
        choices=STATES,
        help="only requests in this state (may be repeated; default: all)",
    )


def in_options(text: str, options: Namespace) -> str:
    """Return a text with the names of options in place of settings, as far as they were given."""
    return text.replace("PRIOQUEUE_REDIS_URL", "--url") if options.url else text


def pattern(text: str) -> re.Pattern[str]:
    """Compile a regular expression; for `type=` of an argument, as are the functions below."""
    try:
        return re.compile(text)
    except re.error as error:
        raise ArgumentTypeError(f"{text!r} is not a regular expression: {error}") from None


def count(text: str) -> int:
    """Read an integer above zero."""
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise ArgumentTypeError(f"{text!r} is not a number above 0")
    return number


def seconds(text: str) -> float:
    """Read a number of seconds above zero."""
    try:
        number = float(text)
    except ValueError:
        number = 0
    if not 0 < number < float("inf"):
        raise ArgumentTypeError(f"{text!r} is not a number of seconds above 0")
    return number


def port(text: str) -> int:
    """Read a port on which to listen, 0 for any."""
    if not text.isascii() or not text.isdigit() or int(text) > LAST_PORT:
        raise ArgumentTypeError(f"{text!r} is not a port from 0 to {LAST_PORT}")
    return int(text)


def address(text: str) -> str:
    """Read an IP address on which to listen."""
    try:
        return ip_address("--host", text)
    except SettingError as error:
        raise ArgumentTypeError(f"{text!r} {error.why}") from None


@contextmanager
def opened(path: str, mode: Literal["rb", "wb"]) -> Iterator[BinaryIO]:
    """Open the user's file to read it or to overwrite it; - is standard input or output.

    Raises:
        Stop: it can't be opened.
    """
    if path == "-":
        yield sys.stdin.buffer if mode == "rb" else sys.stdout.buffer
        return
    try:
        file = Path(path).open(mode)  # noqa: SIM115 - closed below
    except OSError as error:
        raise Stop(f"{path} can't be {'read' if mode == 'rb' else 'written'}: {error.strerror}", WRONG_USE) from error
    with file:
        yield file


_UNITS_S = {"": 1, "s": 1, "min": 60, "h": 3_600, "d": 86_400}
_LONGEST_S = 1e12


def duration_s(text: str) -> float:
    """Read a duration such as 90, 15min, 2h or 1d, and return it in seconds."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?) ?(s|min|h|d|)", text)
    if found is None or float(found[1]) > _LONGEST_S:
        raise ArgumentTypeError(f"{text!r} is not a length of time such as 90, 15min, 2h or 1d")
    return float(found[1]) * _UNITS_S[found[2]]
