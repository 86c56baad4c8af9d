"""What the site writes down for those outside: the list of its pages and its access log, both as JSON lines."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from w3lib.url import canonicalize_url

from shop_site.catalogue import Page

HUNG_UP = 499
"""Status of a request whose client was gone before the answer."""


@dataclass(frozen=True, slots=True)
class Visit:
    """One request, as the site saw it.

    Args:
        time_s: seconds since the epoch when it was answered.
        host: the Host header.
        path: path and query as asked for.
        status: the answer's, or `HUNG_UP`.
        worker: the X-Worker header, else the User-Agent.
        tier: the X-Tier header.
    """

    time_s: float
    host: str
    path: str
    status: int
    worker: str
    tier: str

    @property
    def url(self) -> str:
        """The address asked for, in canonical form."""
        return str(canonicalize_url(f"http://{self.host}{self.path}"))

    @property
    def is_final(self) -> bool:
        """The page was answered, and not with a failure that asks for another try."""
        return self.status != HUNG_UP and self.status < 500


class AccessLog:
    """Appends visits to a file, each with one write.

    Args:
        path: the file; it is created or continued.
    """

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def write(self, visit: Visit) -> None:
        """Append one visit."""
        os.write(self._file, json.dumps(asdict(visit)).encode() + b"\n")


def read_visits(path: Path) -> Sequence[Visit]:
    """Return the visits logged so far, oldest first; none if there is no log yet."""
    if not path.exists():
        return []
    return [Visit(**json.loads(line)) for line in path.read_bytes().splitlines()]


def write_pages(path: Path, pages: Iterable[Page]) -> None:
    """Write the list of pages; the file appears when it is complete."""
    draft = path.with_suffix(".draft")
    draft.write_text("".join(f"{json.dumps(asdict(page))}\n" for page in pages))
    draft.replace(path)


def read_pages(path: Path) -> Sequence[Page]:
    """Return the list of pages."""
    return [Page(**json.loads(line)) for line in path.read_bytes().splitlines()]
