"""Report of a worker for operators and later workers: the requests that stay in it, and its state."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

MOST_PAGES = 100
"""Maximum number of pages that a report names."""


@dataclass(frozen=True, slots=True)
class Kept:
    """Requests that stay in one worker, and whether more may come.

    Args:
        requests: number of requests that wait or run.
        pages: number of lingering pages: done and still leased, since such requests were found on them.
        by_lease: number of requests for which a page waits, by lease id; for the first `MOST_PAGES`.
        has_more_starts: this worker has not exhausted `start()`.
        is_paused: its engine is paused, so it starts nothing.
        unstorable: number of requests since its start that could not be stored, with those that are done.
        has_handlers: handlers of this package's signals have been running for some time; they may add requests.
    """

    requests: int = 0
    pages: int = 0
    by_lease: Mapping[int, int] = field(default_factory=dict)
    has_more_starts: bool = False
    is_paused: bool = False
    unstorable: int = 0
    has_handlers: bool = False

    def as_json(self) -> str:
        """Return the stored form, empty if there is nothing to report."""
        names = ("has_more_starts", "is_paused", "unstorable", "has_handlers")
        states = {name: value for name in names if (value := getattr(self, name))}
        if not (self.requests or states):
            return ""
        return json.dumps({"requests": self.requests, "pages": self.pages, "by_lease": dict(self.by_lease), **states})


def read_kept(stored: bytes | None) -> Kept:
    """Return a stored report; an empty one if it can't be read."""
    try:
        found: Any = json.loads(stored or b"{}")
        by_lease = {int(lease_id): int(count) for lease_id, count in found.get("by_lease", {}).items()}
        return Kept(
            *(int(found.get("requests", 0)), int(found.get("pages", 0)), by_lease),
            *(bool(found.get("has_more_starts")), bool(found.get("is_paused")), int(found.get("unstorable", 0))),
            has_handlers=bool(found.get("has_handlers")),
        )
    except (AttributeError, TypeError, ValueError):
        return Kept()
