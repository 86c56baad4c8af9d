"""Sharing by weight: stride scheduling, which is exact and knows no chance."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


class Passes:
    """How far each tier has come: the one least far is served, and a step is as long as its weight is small.

    One that had nothing to serve doesn't catch up on what it has missed: it goes on from where the others are.
    """

    def __init__(self) -> None:
        self._passes: dict[int, float] = {}
        self._at = 0.0

    def next_of(self, tiers: Iterable[int]) -> int:
        """Return which of these tiers is to be served."""
        return min(tiers, key=lambda tier: (max(self._passes.get(tier, 0.0), self._at), tier))

    def step(self, tier: int, weights: Sequence[int]) -> None:
        """Count that a tier has been served."""
        self._at = max(self._passes.get(tier, 0.0), self._at)
        self._passes[tier] = self._at + 1 / weights[tier]
