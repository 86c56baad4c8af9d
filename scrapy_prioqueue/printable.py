"""Text for people: durations, counts, and foreign text without terminal commands or changes of writing direction."""

from __future__ import annotations

import json
import re

_UNPRINTABLE = re.compile(r"[^\x20-\x7e\n]")


def text_of(value: bytes) -> str:
    """Return bytes as text, with escapes for those that aren't UTF-8."""
    return value.decode("utf-8", "backslashreplace")


def clean(text: str) -> str:
    """Return a text with control, format and bidirectional characters escaped; line breaks are kept."""
    if text.isprintable():
        return text
    return _UNPRINTABLE.sub(lambda found: _escaped(found[0]), text)


def in_a_line(text: object) -> str:
    """Return any object's text on one line: as `clean`, but with line breaks escaped."""
    return clean(str(text)).replace("\n", "\\n")


def clean_json(document: str) -> str:
    """Return a JSON document with these characters, which occur only in its strings, as JSON escapes."""
    return _UNPRINTABLE.sub(lambda found: found[0] if found[0].isprintable() else json.dumps(found[0])[1:-1], document)


def counted(count: int, noun: str, plural: str = "") -> str:
    """Return 1 page, or 1,200 pages."""
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"


def how_often(count: int) -> str:
    """Return once, or 2 times."""
    return "once" if count == 1 else counted(count, "time")


def _escaped(letter: str) -> str:
    return letter if letter.isprintable() else letter.encode("unicode_escape").decode()


def duration(seconds: float | None) -> str:
    """Return a duration in its two largest units: 3 h 5 min."""
    if seconds is None:
        return "-"
    if seconds < 0:
        return "-" + duration(-seconds)
    if seconds < 10:
        return f"{seconds:.1f} s"
    parts = []
    rest = round(seconds)
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1)):
        count, rest = divmod(rest, length)
        parts.append((count, unit))
    first = next(index for index, (count, _) in enumerate(parts) if count)
    return " ".join(f"{count} {unit}" for count, unit in parts[first : first + 2] if count)
