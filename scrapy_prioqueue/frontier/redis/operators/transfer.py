"""The format of exported frontiers: a stream of plain records, JSON Lines in a file."""

from __future__ import annotations

from typing import Any

VERSION = 1
FORMAT = "scrapy-prioqueue frontier"

PLACING = ("has_limits", "has_delays", "throttle", "has_budgets", "lanes", "seen_shape", "revisit_s")
"""Fields of the state that determine where requests and fingerprints are stored."""

EXPORTED = (
    *("crawl_id", "created_ms", "ended_ms", "tiers", "order", "on_finish", "suspect_attempts", "sequence", "turn"),
    *("seen_sets", "seen_moved", "identity"),
    *("dead_on", "dead_limit", "paused", "drained", "clock_ahead_ms"),
    *PLACING,
    *("weights", "has_marks", "high_water", "low_water", "pending_limit", "discovery", "is_flooded"),
)
"""All fields of the state that are exported."""

CLOCKS = {"paced": "P", "closed": "W"}
"""Nouns with one record per slot, and the letters of their items in `restore`."""

Record = dict[str, Any]
