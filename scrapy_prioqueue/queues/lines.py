"""Text from requests, and from what has become of them, as it is shown in a line of the log."""

from __future__ import annotations


def in_a_line(text: object) -> str:
    """Return a text with what would break the line, or means something to a terminal, written as an escape."""
    plain = str(text)
    if plain.isprintable():
        return plain
    return "".join(letter if letter.isprintable() else letter.encode("unicode_escape").decode() for letter in plain)
