"""The Lua scripts as the server gets them: loaded from the package, joined with the library, called by their hash."""

from __future__ import annotations

import re
from collections.abc import Iterable, Set
from dataclasses import dataclass
from functools import cache
from hashlib import sha1
from importlib.resources import files

Argument = str | bytes | int
_At = tuple[str, int]

_FOLDER = files(__package__) / "lua"


def _names_in(folder: str) -> tuple[str, ...]:
    names = (path.name for path in (_FOLDER / folder).iterdir())
    return tuple(sorted(name.removesuffix(".lua") for name in names if name.endswith(".lua")))


NAMES = _names_in("worker")
"""Scripts that workers call."""

OPERATOR_NAMES = _names_in("operators")
"""Scripts that only programs call that are no workers."""

_PARTS = (
    *("core", "undo", "policies", "limits", "switches", "budgets", "counts", "lanes", "places", "slots"),
    *("trials", "moves", "letters", "foreign", "granted", "refusals"),
    *("times", "records", "shapes", "seen", "settling", "bits", "filters", "bloom", "sweeping", "timed"),
    *("pushes", "orders", "visits", "floods", "candidates", "queues", "shares", "grants", "unfit"),
    *("crawls", "returns", "policy"),
)
LIBRARY = tuple(f"lib/{part}" for part in _PARTS)
"""What scripts share, in the order of loading; a script gets the functions and locals of them that it uses."""

_FLAGS = re.compile(r"^-- flags:(.*)$", re.MULTILINE)
_COMMENT = re.compile(r"--.*")
_DEFINED = re.compile(r"^(?:local (?:function )?|function (?=lib\.))((?:lib\.)?[\w, ]+)", re.MULTILINE)
_WORD = re.compile(r"(?:\blib\.)?[A-Za-z_]\w*")
_LATE = re.compile(r"^function lib\.\w+\(.*\) -- (?:seldom|policies)$", re.MULTILINE)
_SELDOM = re.compile(r"^function lib\.\w+\(.*\) -- seldom$", re.MULTILINE)
_STATEMENT = re.compile(r"^(?=local |function )", re.MULTILINE)

# Whatever is first missing in the library builds what frontiers with limits, budgets or weights need, and what is not
# there either all that is seldom needed; that a closure is made takes a call time.
_BUILD_LATE = "lib.__index = function(_, {missing})\nsetmetatable(lib, nil)\n"
_LATE_IS_BUILT = "return lib[{missing}]\nend\nsetmetatable(lib, lib)\n"
_MISSING = ("missing", "still_missing")
"""What the library lacks, when the first and the second part are built."""

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
    return {name: _pieces(name) for name in (*NAMES, *OPERATOR_NAMES)}


def joined_sources() -> dict[str, str]:
    """Return what is loaded: the text of each script."""
    return {name: _joined(name) for name in (*NAMES, *OPERATOR_NAMES)}


@cache
def _joined(name: str) -> str:
    return "".join(text for _, text in _pieces(name))


def _pieces(name: str) -> list[tuple[str, str]]:
    # What isn't loaded needn't be built with each call, which is much of the time of a short one; and what is seldom
    # needed is built when it is.
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
    """Return where in the library is what defines these words, and what that uses.

    Args:
        known: what is needed beside.
        until: what such functions use is left out.
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
    """Return what the library is made of: (part, position in it) and text of each function and local."""
    return [((part, at), text) for part in LIBRARY for at, text in enumerate(_STATEMENT.split(text_of(part))) if at > 0]


def _only(needed: Set[_At], part: str) -> str:
    """Return a part of the library with empty lines for what is left out, as the lines of the rest are."""
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
def scripts_for(version: tuple[int, ...], names: tuple[str, ...] = NAMES) -> dict[str, Script]:
    """Return scripts by name, in the form that a server of this version takes."""
    return {name: _script(name, _joined(name), version) for name in names}


def _script(name: str, source: str, version: tuple[int, ...]) -> Script:
    found = _FLAGS.search(source)
    flags = found.group(1).strip() if found else ""
    if flags and version >= FIRST_VERSION_WITH_FLAGS:
        source = f"#!lua flags={flags}\n{source}"
    return Script(name, source, sha1(source.encode(), usedforsecurity=False).hexdigest())
