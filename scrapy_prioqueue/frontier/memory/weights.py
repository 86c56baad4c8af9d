"""Shares of tiers by weight: stride scheduling, which is exact and deterministic."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType


class Passes:
    """The virtual times of tiers: the tier with the lowest pass is served, and its pass grows by 1/weight.

    A tier that had nothing to serve doesn't catch up: it continues at the pass of the others.

    Args:
        passes: by tier.
        at: pass of the tier that was served last.
    """

    def __init__(self, passes: Mapping[int, float] = MappingProxyType({}), at: float = 0.0) -> None:
        self._passes, self._at = dict(passes), at

    def next_of(self, tiers: Iterable[int]) -> int:
        """Return the tier that is served next."""
        return min(tiers, key=lambda tier: (max(self._passes.get(tier, 0.0), self._at), tier))

    def step(self, tier: int, weights: Sequence[int]) -> None:
        """Advance a tier that was served."""
        self._at = max(self._passes.get(tier, 0.0), self._at)
        self._passes[tier] = self._at + 1 / weights[tier]
