"""Parses the header of a Lua script, and defines its format."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from scrapy_prioqueue.frontier.redis import scripts

ARGUMENT = re.compile(r"ARGV\[(?P<number>\d+)(?P<rest>\.\.)?\] (?P<meaning>\S.*)")
FIELDS = ("guarantee", "KEYS[1]", "ARGV", "reply", "cost", "flags")


@dataclass(frozen=True)
class Argument:
    """One documented argument.

    Args:
        number: its index, counted from 1.
        is_rest: it stands for itself and all that follow.
    """

    number: int
    is_rest: bool
    meaning: str


@dataclass(frozen=True)
class Header:
    """What a script says of itself; `fields` are in the order in which they stand."""

    name: str
    sentence: str
    fields: Sequence[tuple[str, str]]
    arguments: Sequence[Argument]
    body: str

    def field(self, name: str) -> str:
        """Return the text of a field, its continuation lines joined."""
        (found,) = [text for field, text in self.fields if field == name]
        return found

    @property
    def fixed(self) -> int:
        """How many arguments every call has."""
        return sum(not argument.is_rest for argument in self.arguments)

    @property
    def takes_more(self) -> bool:
        """Whether a call may have more than these."""
        return any(argument.is_rest for argument in self.arguments)


def own_text(name: str) -> str:
    """Return the text of a script without the library."""
    return scripts.text_of(f"worker/{name}" if name in scripts.NAMES else f"operators/{name}")


def parse(name: str) -> Header:
    """Parse the header of a script.

    Raises:
        ValueError: a line of it is none of the known kinds.
    """
    lines = own_text(name).splitlines()
    length = next(number for number, line in enumerate(lines) if not line.startswith("--"))
    first, *others = [line.removeprefix("--").removeprefix(" ") for line in lines[:length]]
    fields: list[tuple[str, str]] = []
    arguments: list[Argument] = []
    for line in others:
        if line.startswith("  "):
            field, text = fields[-1]
            fields[-1] = (field, f"{text} {line.strip()}".strip())
        elif found := ARGUMENT.fullmatch(line):
            arguments.append(Argument(int(found["number"]), found["rest"] is not None, found["meaning"]))
            fields.append(("ARGV", line))
        else:
            fields.append(_field(name, line))
    return Header(name, first, fields, arguments, "\n".join(lines[length:]))


def _field(name: str, line: str) -> tuple[str, str]:
    if line.startswith("KEYS[1] "):
        return "KEYS[1]", line.removeprefix("KEYS[1] ")
    field, colon, text = line.partition(":")
    if not colon or field not in FIELDS:
        raise ValueError(f"{name}.lua: not a line of a header: {line!r}")
    return field, text.strip()
