"""Names of slots in limits: which are invalid, and what was probably meant."""

from __future__ import annotations

import re

ALL_BELOW = "*."
"""Prefix of a pattern for all slots below a domain."""

MOST_HOST_BYTES = 253
"""Limit of DNS for the name of a host."""

MOST_SLOT_BYTES = 1024
"""Limit for a slot that the spider names: it is a part of keys, and its suffixes are looked up in limits."""

ALWAYS_SHORT = MOST_HOST_BYTES // 4
"""A text of up to this many characters is never too long, whatever they are."""

_PORT = re.compile(r"(?P<host>\[[^\]]*\]|[^:\[\]]*):[0-9]*")
_HOST_LETTER = re.compile(r"[^\W_]|[.-]")


def why_too_long(slot: str, *, is_named: bool) -> str | None:
    """Return why a slot's name is too long to be stored, None if it isn't.

    Args:
        is_named: the spider has named the slot; otherwise it is a host.
    """
    size, most = len(slot.encode("utf-8", "surrogatepass")), MOST_SLOT_BYTES if is_named else MOST_HOST_BYTES
    if size <= most:
        return None
    what = "meta['download_slot']" if is_named else "its host"
    return f"{what} {slot[:20]!r}… has {size} bytes, and {most} are allowed"


def why_no_slot(pattern: str) -> str | None:
    """Return why no slot can match this name or pattern, and what to write instead; None if one can.

    Slots are hosts as Scrapy writes them, in lower case and without a port, or names that the spider sets.
    """
    fault = _fault(pattern)
    if fault is None:
        return None
    meant = _meant(pattern)
    is_better = meant.removeprefix(ALL_BELOW) and "*" not in meant.removeprefix(ALL_BELOW) and _fault(meant) is None
    return f"{pattern!r} can't be a slot: {fault}; write {repr(meant) if is_better else 'a host, such as example.com'}"


def _fault(pattern: str) -> str | None:
    if any(letter.isspace() or not letter.isprintable() for letter in pattern):
        return "a slot has no blanks or control characters"
    if "/" in pattern:
        return "a slot is a host, not a URL"
    if _host_before_port(pattern) is not None:
        return "a slot is a host without its port"
    if pattern != pattern.lower() and "." in pattern.removeprefix("*") and _is_host(pattern.removeprefix(ALL_BELOW)):
        return "hosts are in lower case"
    return None


def _is_host(name: str) -> bool:
    return all(map(_HOST_LETTER.fullmatch, name))


def _host_before_port(name: str) -> str | None:
    """Return the host of `host:port` or `[address]:port`, None for any other name, such as an address or `group:1`."""
    if name.startswith("[") and name.endswith("]"):
        return name[1:-1]
    found = _PORT.fullmatch(name)
    if found is None:
        return None
    host = found["host"]
    if host.startswith("["):
        return host[1:-1]
    return host if "." in host or host.lower() == "localhost" else None


def _meant(pattern: str) -> str:
    visible = "".join(letter for letter in pattern if letter.isspace() or letter.isprintable()).strip()
    below = ALL_BELOW if visible.startswith(ALL_BELOW) else ""
    rest = visible.removeprefix(ALL_BELOW)
    if "//" in rest:
        rest = rest.partition("//")[2]
    host = rest.partition("/")[0].rpartition("@")[2]
    without_port = _host_before_port(host)
    return below + (host if without_port is None else without_port).lower()
