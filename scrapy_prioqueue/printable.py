"""Foreign text as it is printed: nothing in it is a command to a terminal or changes the direction of writing."""

from __future__ import annotations

import json
import re

_UNPRINTABLE = re.compile(r"[^\x20-\x7e\n]")


def clean(text: str) -> str:
    """Return a text with control, format and bidirectional characters as escapes; line breaks stay."""
    if text.isprintable():
        return text
    return _UNPRINTABLE.sub(lambda found: _escaped(found[0]), text)


def in_a_line(text: object) -> str:
    """Return the same of any object's text, with its line breaks as escapes, too."""
    return clean(str(text)).replace("\n", "\\n")


def clean_json(document: str) -> str:
    """Return a JSON document with these characters, which are in its strings only, as escapes of JSON."""
    return _UNPRINTABLE.sub(lambda found: found[0] if found[0].isprintable() else json.dumps(found[0])[1:-1], document)


def _escaped(letter: str) -> str:
    return letter if letter.isprintable() else letter.encode("unicode_escape").decode()
