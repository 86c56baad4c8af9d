"""The Lua scripts: read from the package, joined with the parts of the library that they use, and called by hash."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass
from functools import cache
from hashlib import sha1
from importlib.resources import files

Argument = str | bytes | int

Call = tuple[str, Sequence[Argument]]
"""Name of a script, arguments after the state key."""

_At = tuple[str, int]

_FOLDER = files(__package__) / "lua"


def _names_in(folder: str) -> tuple[str, ...]:
    names = (path.name for path in (_FOLDER / folder).iterdir())
    return tuple(sorted(name.removesuffix(".lua") for name in names if name.endswith(".lua")))


NAMES = _names_in("worker")
"""Scripts that workers call."""

OPERATOR_NAMES = _names_in("operators")
"""Scripts that only programs other than workers call."""

_PARTS = (
    *("core", "undo", "policies", "limits", "budgets", "counts", "lanes", "positions", "slots"),
    *("trials", "moves", "letters", "refusals"),
    *("times", "shapes", "seen", "bits", "filters", "bloom", "timed"),
    *("pushes", "orders", "floods", "candidates", "queues", "passes", "grants"),
    *("crawls", "policy", "history"),
)
LIBRARY = tuple(f"lib/{part}" for part in _PARTS)
"""Files of the library in loading order; a script is joined with only the functions and locals that it uses."""

_FLAGS = re.compile(r"^-- flags:(.*)$", re.MULTILINE)
_COMMENT = re.compile(r"--.*")
_DEFINED = re.compile(r"^(?:local (?:function )?|function (?=lib\.))((?:lib\.)?[\w, ]+)", re.MULTILINE)
_WORD = re.compile(r"(?:\blib\.)?[A-Za-z_]\w*")
_LATE = re.compile(r"^function lib\.\w+\(.*\) -- (?:seldom|policies)$", re.MULTILINE)
_SELDOM = re.compile(r"^function lib\.\w+\(.*\) -- seldom$", re.MULTILINE)
_STATEMENT = re.compile(r"^(?=local |function )", re.MULTILINE)

# Creating closures costs time in each call. So functions for limits, budgets and weights are built when the first
# missing function is called, and seldom used ones when one is missing from those, too.
_BUILD_LATE = "lib.__index = function(_, {missing})\nsetmetatable(lib, nil)\n"
_LATE_IS_BUILT = "return lib[{missing}]\nend\nsetmetatable(lib, lib)\n"
_MISSING = ("missing", "still_missing")
"""Parameter names of the functions that build the first and the second late part."""

FIRST_VERSION_WITH_FLAGS = (7, 0)
"""Older servers report the `#!lua` line as a syntax error."""

FIRST_VERSION_WITH_SHARD_CHANNELS = (7, 0)
"""In a cluster of older servers each message goes to all nodes."""

# While the hash slot of a frontier moves to another node of a cluster, a script fails at the first key that isn't here,
# perhaps after it has written others. So each begins with a key that never exists, since it is not UTF-8.
_GUARD = (
    'do local here = redis.pcall("EXISTS", KEYS[#KEYS] .. ":\\255") if type(here) == "table" then return here end end '
)


@dataclass(frozen=True, slots=True)
class Script:
    """A script ready for the server.

    Args:
        source: shebang if the server knows it, the library, the script.
        digest: SHA1 of the source, for `EVALSHA`.
    """

    source: str
    digest: str

    def call(self, state_key: str, arguments: Iterable[Argument]) -> tuple[Argument, ...]:
        """Return the command that runs the script."""
        return ("EVALSHA", self.digest, 1, state_key, *arguments)


def joined_pieces() -> dict[str, list[tuple[str, str]]]:
    """Return the pieces of each script, as (file, text): the parts of the library that it uses, then its own."""
    return {name: _pieces(name) for name in (*NAMES, *OPERATOR_NAMES)}


def joined_sources() -> dict[str, str]:
    """Return the text of each script as it is loaded."""
    return {name: _joined(name) for name in (*NAMES, *OPERATOR_NAMES)}


@cache
def _joined(name: str) -> str:
    return "".join(text for _, text in _pieces(name))


def _pieces(name: str) -> list[tuple[str, str]]:
    # A short call spends much of its time on building functions. So unused ones are left out, and seldom used ones are
    # built on demand.
    own = text_of(_file_of(name))
    texts = dict(_statements())

    def used_by(needed: Iterable[_At]) -> Set[str]:
        return set().union(*(_words(texts[at]) for at in needed))

    found = _needed(_words(own) - _defined(own), frozenset(), until=_LATE)
    often = {at for at in found if not _LATE.search(texts[at])}
    policies = {at for at in found - often if not _SELDOM.search(texts[at])}
    policies |= _needed(used_by(policies), often, until=_SELDOM)
    policies = {at for at in policies if not _SELDOM.search(texts[at])}
    seldom = _needed(used_by(policies | found), often | policies)
    pieces = _parts(often)
    late = [parts for parts in (_parts(policies), _parts(seldom)) if parts]
    for parts, missing in zip(late, _MISSING, strict=False):
        pieces[-1] = (pieces[-1][0], pieces[-1][1] + _BUILD_LATE.format(missing=missing))
        pieces += parts
    for missing in reversed(_MISSING[: len(late)]):
        pieces[-1] = (pieces[-1][0], pieces[-1][1] + _LATE_IS_BUILT.format(missing=missing))
    return [*pieces, (_file_of(name), own)]


def _needed(used: Set[str], known: Set[_At], *, until: re.Pattern[str] | None = None) -> set[_At]:
    """Return the statements of the library that define these words, and the statements that these need in turn.

    Args:
        known: statements that are included already.
        until: functions that match are included, but not what they use.
    """
    left = {at: text for at, text in _statements() if at not in known}
    needed: set[_At] = set()
    while found := {at: text for at, text in left.items() if used & _defined(text)}:
        needed |= found.keys()
        left = {at: text for at, text in left.items() if at not in found}
        for text in found.values():
            if until is None or not until.search(text):
                used = used | _words(text)
    return needed


def _parts(needed: Set[_At]) -> list[tuple[str, str]]:
    return [(part, _only(needed, part)) for part in LIBRARY if any(part == other for other, _ in needed)]


@cache
def _statements() -> list[tuple[_At, str]]:
    """Return all functions and locals of the library, as ((part, index), text)."""
    return [((part, at), text) for part in LIBRARY for at, text in enumerate(_STATEMENT.split(text_of(part))) if at > 0]


def _only(needed: Set[_At], part: str) -> str:
    """Return a part of the library with empty lines for what is left out, so that line numbers are kept."""
    texts = enumerate(_STATEMENT.split(text_of(part)))
    return "".join(text if (part, at) in needed or at == 0 else "\n" * text.count("\n") for at, text in texts) + "\n"


@cache
def _words(text: str) -> Set[str]:
    found = set(_WORD.findall(_COMMENT.sub("", text)))
    return {*found, "lib"} if any(word.startswith("lib.") for word in found) else found


@cache
def _defined(text: str) -> Set[str]:
    return {name for names in _DEFINED.findall(text) for name in _WORD.findall(names)}


def _file_of(name: str) -> str:
    return f"worker/{name}" if name in NAMES else f"operators/{name}"


@cache
def text_of(file: str) -> str:
    """Return the text of a script or a part of the library, such as ``worker/lease`` or ``lib/core``."""
    return (_FOLDER / f"{file}.lua").read_text("utf-8")


@cache
def scripts_for(
    version: tuple[int, ...], names: tuple[str, ...] = NAMES, *, in_cluster: bool = False
) -> dict[str, Script]:
    """Return scripts by name, in the form for a server of this version."""
    return {name: _script(_joined(name), version, in_cluster=in_cluster) for name in names}


def has_shard_channels(version: tuple[int, ...], *, in_cluster: bool) -> bool:
    """Return whether a message can be published to the node that has a hash slot, and not to all of a cluster."""
    return in_cluster and version >= FIRST_VERSION_WITH_SHARD_CHANNELS


def guarded(source: str) -> str:
    """Return a script for a node of a cluster: it does nothing while the hash slot of its keys moves to another node.

    It then returns the error with which the node refuses a key that isn't there. Line numbers stay as they are.
    """
    return _GUARD + source


def _script(source: str, version: tuple[int, ...], *, in_cluster: bool) -> Script:
    found = _FLAGS.search(source)
    if in_cluster:
        source = guarded(source)
        if has_shard_channels(version, in_cluster=True):
            source = source.replace('"PUBLISH"', '"SPUBLISH"')
    flags = found.group(1).strip() if found else ""
    if flags and version >= FIRST_VERSION_WITH_FLAGS:
        source = f"#!lua flags={flags}\n{source}"
    return Script(source, sha1(source.encode(), usedforsecurity=False).hexdigest())
