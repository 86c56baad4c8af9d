"""Tier and priority as one number, the rank; pure functions.

``rank = tier * 2**45 - priority``, lower is served first.
It is exact as a sorted set's score, a double with 53 bits, for up to 128 tiers and ``|priority| < 2**44``.
"""

from __future__ import annotations

TIER_WIDTH = 2**45
MAX_TIERS = 128
PRIORITY_LIMIT = 2**44


def rank_of(tier: int, priority: int) -> int:
    """Return the rank of a request.

    Args:
        tier: index of the tier, 0 is the best, below `MAX_TIERS`.
        priority: Scrapy's `Request.priority`, strictly between ``-2**44`` and ``2**44``.

    Raises:
        ValueError: the tier or the priority is not an integer or outside its range.
    """
    if not isinstance(priority, int) or not -PRIORITY_LIMIT < priority < PRIORITY_LIMIT:
        raise ValueError(f"priority must be an integer strictly between -2**44 and 2**44, not {priority!r}")
    if not 0 <= tier < MAX_TIERS:
        raise ValueError(f"tier index must be from 0 to {MAX_TIERS - 1}, not {tier!r}")
    return tier * TIER_WIDTH - int(priority)


def whole_priority(priority: object) -> int:
    """Return the integer nearest to a priority of any size; other numbers are rounded, NaN counts as 0.

    Raises:
        ValueError: it is not a number.
    """
    if isinstance(priority, int):
        return int(priority)
    try:
        number: int = round(priority)  # type: ignore[call-overload]
    except OverflowError:
        return PRIORITY_LIMIT if priority > 0 else -PRIORITY_LIMIT  # type: ignore[operator]
    except ValueError:
        return 0
    except TypeError:
        raise ValueError(f"priority must be a number, not {priority!r}") from None
    return int(number)


def nearest_priority(priority: object) -> int:
    """Return the valid priority nearest to one that `rank_of` refuses.

    Raises:
        ValueError: it is not a number.
    """
    return max(1 - PRIORITY_LIMIT, min(PRIORITY_LIMIT - 1, whole_priority(priority)))


def tier_of(rank: int) -> int:
    """Return the index of the tier that a rank belongs to."""
    return (rank + PRIORITY_LIMIT) // TIER_WIDTH


def priority_of(rank: int) -> int:
    """Return the priority that a rank contains."""
    return tier_of(rank) * TIER_WIDTH - rank
