"""In which tier a request was served; the one place of the project that knows where the scheduler notes it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shop import settings


def tier_in(meta: Mapping[str, Any]) -> str:
    """Return the tier of a request that is being fetched, or of its response.

    Args:
        meta: the request's; it names the tier that the spider asked for, else the scheduler adds the one it chose.
    """
    chosen, _ = meta.get("prioqueue_inherited_tier", (settings.PRIOQUEUE_DEFAULT_TIER, None))
    return str(meta.get("prioqueue_tier", chosen))
