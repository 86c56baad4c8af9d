"""The keys of `meta` that only the scheduler sets, and that nobody outside a crawl may bring along."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from scrapy_prioqueue.queues.endings import REQUEUES_META
from scrapy_prioqueue.queues.layers import CLIMB_META, LAYER_KEPT_META
from scrapy_prioqueue.tiers import INHERITED_META

INTERNAL_METAS = (INHERITED_META, REQUEUES_META, CLIMB_META, LAYER_KEPT_META)
"""What other programs must not set: its values are taken for the scheduler's own."""


def refusal_of_meta(meta: Mapping[Any, Any]) -> str | None:
    """Return why a request from outside may not have this `meta`, None if it may."""
    found = [key for key in INTERNAL_METAS if key in meta]
    return f"meta[{found[0]!r}] is set by the scheduler only; leave it out" if found else None
