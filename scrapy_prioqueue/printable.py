"""Safe output of foreign text: without terminal commands and without changes of writing direction."""

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


def _escaped(letter: str) -> str:
    return letter if letter.isprintable() else letter.encode("unicode_escape").decode()
