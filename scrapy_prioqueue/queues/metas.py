"""What the `meta` of requests from outside a crawl may not have."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from scrapy_prioqueue.codec.reasons import brief
from scrapy_prioqueue.queues.endings import REQUEUES_META
from scrapy_prioqueue.queues.layers import CLIMB_META, LAYER_KEPT_META
from scrapy_prioqueue.tiers import INHERITED_META

INTERNAL_METAS = (INHERITED_META, REQUEUES_META, CLIMB_META, LAYER_KEPT_META)
"""What other programs must not set: its values are taken for the scheduler's own."""


def refusal_of_meta(meta: Mapping[Any, Any]) -> str | None:
    """Return why a request from outside may not have this `meta`, None if it may."""
    found = [key for key in INTERNAL_METAS if key in meta]
    if found:
        return f"meta[{found[0]!r}] is set by the scheduler only; leave it out"
    slot = meta.get("download_slot")
    return f"meta['download_slot'] must be a text, not {brief(slot)}" if isinstance(slot, (list, dict)) else None
