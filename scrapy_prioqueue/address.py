"""Server addresses for log lines and errors: without user, password and query."""

from __future__ import annotations

from urllib.parse import urlsplit


def address_of(url: str) -> str:
    """Return a URL without user, password and query.

    Raises:
        ValueError: it is not a URL.
    """
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    return f"{parts.scheme}://{host}{parts.path}"
