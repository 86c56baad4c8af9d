"""Dead letters of seeds that can't be read: the payload is the seed, and the detail names its key."""

from __future__ import annotations

import re

from scrapy_prioqueue.frontier.base import DEAD_BY_DECODE

SLOT = "seeds"
"""Slot of these dead letters; no host has that name."""


def detail_of(key: str, why: str) -> str:
    """Return the detail of the dead letter of a seed."""
    return f"seed of {key}: {why}"


def key_of(reason: str, slot: str, detail: str) -> str | None:
    """Return the key that a seed came from, None if the dead letter is not that of a seed."""
    found = re.match(r"seed of (.+?): ", detail)
    return found[1] if found and (reason, slot) == (DEAD_BY_DECODE, SLOT) else None
