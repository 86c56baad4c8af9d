"""Commands and names that log lines, errors and reports recommend."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterable, Sequence
from difflib import SequenceMatcher

_ALIKE = 0.5
"""Least similarity of a name to one that was probably meant."""

_LONGEST = 100
"""Longest name that is shown as a whole and compared; names may come from other programs."""

_MOST = 5
"""Number of names that are shown."""


def frontier_command(verb: str, name: str) -> str:
    """Return a shell command with the frontier's name, since a project may have several spiders.

    Args:
        verb: with its arguments.
        name: of the frontier.
    """
    return f"scrapy frontier {verb} --name {shlex.quote(name)}"


def evict_command(worker: str, name: str) -> str:
    """Return the command that takes all leases from a worker and removes it from the frontier."""
    return frontier_command(f"workers --evict {shlex.quote(worker)}", name)


def did_you_mean(name: object, known: Iterable[str], *, prefix: str = "") -> str:
    """Return a question with the known name that is most like an unknown one, empty if none is like it.

    Args:
        prefix: of all names, which makes none of them more alike.
    """
    wanted = str(name).removeprefix(prefix)
    likeness, best = max(((_likeness(wanted, each.removeprefix(prefix)), each) for each in known), default=(0.0, ""))
    return f"did you mean {best}?" if likeness >= _ALIKE else ""


def unknown_names(unknown: Sequence[object], known: Collection[str]) -> str:
    """Return a text with unknown names, what was probably meant, and all known names, of which there should be few."""
    questions = ((name, did_you_mean(name, known)) for name in unknown[:_MOST])
    texts = [f"{_shown(name)} ({question})" if question else _shown(name) for name, question in questions]
    more = f" and {len(unknown) - _MOST:,} more" if len(unknown) > _MOST else ""
    return f"unknown {', '.join(texts)}{more}; known: {', '.join(known)}"


def nearest(name: str, known: Iterable[str]) -> str:
    """Return a text with some of the known names, those most like a name first, and the number of the others."""
    names = alike_first(name, known)
    more = f" and {len(names) - _MOST:,} more" if len(names) > _MOST else ""
    return ", ".join(names[:_MOST]) + more


def alike_first(name: str, known: Iterable[str]) -> list[str]:
    """Return the known names, those most like a name first."""
    return sorted(known, key=lambda each: (-_likeness(name, each), each))


def _likeness(one: str, other: str) -> float:
    if max(len(one), len(other)) > _LONGEST:
        return 0.0
    return SequenceMatcher(None, one.casefold(), other.casefold(), autojunk=False).ratio()


def _shown(name: object) -> str:
    text = repr(name)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
