"""The Lua scripts as the server gets them: loaded from the package, joined with the library, called by their hash."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from hashlib import sha1
from importlib.resources import files

Argument = str | bytes | int

NAMES = ("clear", "commit", "join", "lease", "leave", "note", "recover", "renew")

VISITOR_NAMES = (
    *("adopt", "budget", "drop", "evict", "forget", "limit", "move", "open", "order", "purge", "push", "remove"),
    *("reopen", "replay", "reset", "restore", "settle"),
)
"""Those of programs that are no workers."""

LIBRARY = (
    *("_lib", "_policies", "_limits", "_budgets", "_lanes", "_trials", "_moves", "_times", "_records", "_seen"),
    *("_bloom", "_pushes", "_orders", "_visits", "_floods", "_candidates", "_shares", "_grants", "_crawls", "_policy"),
)
"""What scripts share, in the order of loading; a script gets those of them that it uses."""

_FLAGS = re.compile(r"^-- flags:(.*)$", re.MULTILINE)
_COMMENT = re.compile(r"--.*")
_DEFINED = re.compile(r"^(?:local (?:function )?|function lib\.)([\w, ]+)", re.MULTILINE)
_WORD = re.compile(r"[A-Za-z_]\w*")

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


def joined_pieces() -> dict[str, list[tuple[str, str]]]:
    """Return what each script is made of: (name of the file, its text) of the parts that it uses, then its own."""
    return {name: _pieces(name) for name in (*NAMES, *VISITOR_NAMES)}


def joined_sources() -> dict[str, str]:
    """Return what is loaded: the text of each script."""
    return {name: "".join(text for _, text in pieces) for name, pieces in joined_pieces().items()}


def _pieces(name: str) -> list[tuple[str, str]]:
    # What isn't loaded needn't be built with each call; that is most of the time of a short one.
    pieces = [(name, _read(name))]
    used = _words(pieces[0][1]) - _defined(pieces[0][1])
    for part in reversed(LIBRARY):
        text = _read(part)
        if used & _defined(text):
            pieces.insert(0, (part, text + "\n"))
            used |= _words(text)
    return pieces


def _words(text: str) -> set[str]:
    return set(_WORD.findall(_COMMENT.sub("", text)))


def _defined(text: str) -> set[str]:
    return {name for names in _DEFINED.findall(text) for name in _WORD.findall(names)}


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
