"""Server addresses as they may be shown: without user, password and query. Pure functions."""

from __future__ import annotations

from urllib.parse import urlsplit


def address_of(url: str) -> str:
    """Return a URL fit for a log line or an error message.

    Raises:
        ValueError: it is no URL at all.
    """
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    return f"{parts.scheme}://{host}{parts.path}"
