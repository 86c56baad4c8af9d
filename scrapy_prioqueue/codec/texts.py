"""Texts of URLs in six bits a letter, if they have only the letters of most URLs.

The 64 *signs* are those of `SIGNS`. Four of them are packed into three bytes by Python's Base64 functions, which are
written in C. Texts with other letters are written as UTF-8, one per line.
"""

from __future__ import annotations

from binascii import a2b_base64, b2a_base64
from collections.abc import Sequence

_FILL, _BREAK, _END = "\x00\n\x01"
_BEGINNINGS = {"\x02": "https://www.", "\x03": "https://", "\x04": "http://"}
_LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789ABCDEF-/._?=&%+~:,;()#"

STARTS = "".join(_BEGINNINGS)
"""Marks that stand for common beginnings of URLs."""

SIGNS = "".join((_FILL, _LETTERS, _BREAK, *_BEGINNINGS, _END))
"""Signs by their six-bit value. The first pads the last byte; the last ends the texts."""

_BASE64 = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
_TO_BASE64 = bytes(ord(_BASE64[SIGNS.index(chr(code))]) if chr(code) in SIGNS else ord("=") for code in range(256))
_FROM_BASE64 = bytes(ord(SIGNS[_BASE64.index(chr(code))]) if chr(code) in _BASE64 else 0 for code in range(256))
_ENDS = [(_END + _FILL * (-(length + 1) % 4)).encode() for length in range(4)]
_FILLS = frozenset(_FILL * length for length in range(4))


def fits(text: str) -> bool:
    """Return whether `pack` can write a text: whether all of its letters are printable."""
    return text.isprintable()


def pack(texts: Sequence[str]) -> tuple[bytes, bool]:
    """Return texts that fit, at least one, as bytes, and whether the bytes have six bits a letter."""
    signs = _BREAK.join(texts).encode()
    packed = (signs + _ENDS[len(signs) & 3]).translate(_TO_BASE64)
    if b"=" in packed:
        return signs + b"\n", False
    return a2b_base64(packed).rstrip(b"\0"), True


def packed_start(text: str) -> bytes | None:
    """Return the beginning of the bytes that `pack` returns for a text followed by others, in six bits a letter.

    None if the text has other letters.
    """
    whole = len(text) // 4 * 4
    packed = text.encode().translate(_TO_BASE64)
    return None if b"=" in packed else a2b_base64(packed[:whole])


def unpack(packed: bytes, *, has_six_bits: bool) -> list[str]:
    """Return the packed texts.

    Raises:
        ValueError: the bytes are not packed texts.
    """
    if has_six_bits:
        filled = packed + b"\0\0"[: -len(packed) % 3]
        signs, end, fill = b2a_base64(filled, newline=False).translate(_FROM_BASE64).decode("ascii").partition(_END)
        if _FILL in signs or fill not in _FILLS:
            end = ""
    else:
        signs, end, fill = packed.decode().rpartition(_BREAK)
    if not end or (fill and not has_six_bits):
        raise ValueError("the texts don't end where they should")
    return signs.split(_BREAK)


def shortened(url: str) -> str:
    """Return a URL with a mark in place of a common beginning; `lengthened` reverses it."""
    if url.startswith("http"):
        for mark, start in _BEGINNINGS.items():
            if url.startswith(start):
                return mark + url[len(start) :]
    return url


def lengthened(text: str) -> str:
    """Return the URL that `shortened` was given."""
    start = _BEGINNINGS.get(text[:1])
    return text if start is None else start + text[1:]
