"""What a worker reports for operators and for those who come after it: what it keeps to itself, and how it is."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

MOST_PAGES = 100
"""Pages that a worker names."""


@dataclass(frozen=True, slots=True)
class Kept:
    """Requests that only one worker has, and whether it may yet bring more.

    Args:
        requests: how many wait or run.
        pages: how many pages are done but for such requests, and leased until these are done, too.
        by_lease: for how many requests a page waits, by the id of its lease; of the first `MOST_PAGES`.
        has_more_starts: `start()` isn't at its end here.
        is_paused: its engine is paused, so it starts nothing.
    """

    requests: int = 0
    pages: int = 0
    by_lease: Mapping[int, int] = field(default_factory=dict)
    has_more_starts: bool = False
    is_paused: bool = False

    def as_json(self) -> str:
        """Return it as it is stored, empty for nothing."""
        if not (self.requests or self.has_more_starts or self.is_paused):
            return ""
        states = {name: True for name in ("has_more_starts", "is_paused") if getattr(self, name)}
        return json.dumps({"requests": self.requests, "pages": self.pages, "by_lease": dict(self.by_lease), **states})


def read_kept(stored: bytes | None) -> Kept:
    """Return what is stored; nothing where that can't be read."""
    try:
        found: Any = json.loads(stored or b"{}")
        by_lease = {int(lease_id): int(count) for lease_id, count in found.get("by_lease", {}).items()}
        return Kept(
            *(int(found.get("requests", 0)), int(found.get("pages", 0)), by_lease),
            *(bool(found.get("has_more_starts")), bool(found.get("is_paused"))),
        )
    except (AttributeError, TypeError, ValueError):
        return Kept()
