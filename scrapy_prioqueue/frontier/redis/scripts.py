"""The Lua scripts as the server gets them: loaded from the package, joined with the library, called by their hash."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from hashlib import sha1
from importlib.resources import files

Argument = str | bytes | int

NAMES = ("clear", "commit", "join", "lease", "leave", "note", "reap", "recover", "renew")

VISITOR_NAMES = (
    *("adopt", "drop", "evict", "forget", "move", "open", "order", "purge", "push", "remove", "replay", "reset"),
    *("restore", "settle"),
)
"""Those of programs that are no workers."""

LIBRARY = (
    *("_lib", "_policies", "_trials", "_limits", "_lanes", "_budgets", "_moves", "_delays", "_pushes", "_orders"),
    "_visits",
)
"""What every script can use, in the order of loading."""

PARTS = {
    "join": ("_crawls", "_policy"),
    "lease": ("_floods", "_candidates", "_shares", "_grants"),
    "open": ("_crawls",),
}
"""What a script is made of beside these: what would make its own file too long, or is shared with few others."""

_FLAGS = re.compile(r"^-- flags:(.*)$", re.MULTILINE)

FIRST_VERSION_WITH_FLAGS = (7, 0)
"""Older servers take the `#!lua` line for a syntax error."""


@dataclass(frozen=True, slots=True)
class Script:
    """A script ready for the server.

    Args:
        name: the verb.
        source: shebang where the server knows it, the library, the script.
        digest: SHA1 of the source, as `EVALSHA` takes it.
    """

    name: str
    source: str
    digest: str

    def call(self, state_key: str, arguments: Iterable[Argument]) -> tuple[Argument, ...]:
        """Return the command that runs the script."""
        return ("EVALSHA", self.digest, 1, state_key, *arguments)


def library_source() -> str:
    """Return the text that stands in front of every script."""
    return _joined(LIBRARY)


def _joined(parts: Iterable[str]) -> str:
    return "".join(_read(part) + "\n" for part in parts)


def joined_sources() -> dict[str, str]:
    """Return what is checked and loaded: for each script its text with the library in front."""
    library = library_source()
    return {name: library + _joined(PARTS.get(name, ())) + _read(name) for name in (*NAMES, *VISITOR_NAMES)}


def _read(name: str) -> str:
    return (files(__package__) / "lua" / f"{name}.lua").read_text("utf-8")


@cache
def scripts_for(version: tuple[int, ...], names: tuple[str, ...] = NAMES) -> dict[str, Script]:
    """Return scripts by name, in the form that a server of this version takes."""
    sources = joined_sources()
    return {name: _script(name, sources[name], version) for name in names}


def _script(name: str, source: str, version: tuple[int, ...]) -> Script:
    found = _FLAGS.search(source)
    flags = found.group(1).strip() if found else ""
    if flags and version >= FIRST_VERSION_WITH_FLAGS:
        source = f"#!lua flags={flags}\n{source}"
    return Script(name, source, sha1(source.encode(), usedforsecurity=False).hexdigest())
