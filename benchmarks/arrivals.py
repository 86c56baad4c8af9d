"""What a site sees of a limit: when requests arrived, and what that says of it. Plain numbers."""

from __future__ import annotations

import statistics
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from results import Cell, Measured, Table

WINDOW_S = 10.0


@dataclass(frozen=True, slots=True)
class Seen:
    """Arrivals at one domain.

    Args:
        rate: requests per second that are allowed.
        times_s: of the arrivals, at least two.
    """

    rate: float
    times_s: Sequence[float]

    @property
    def throughput(self) -> float:
        """Share of the limit that was used between the first and the last arrival."""
        ordered = sorted(self.times_s)
        return (len(ordered) - 1) / (ordered[-1] - ordered[0]) / self.rate

    @property
    def fullest_window(self) -> int:
        """The most arrivals in less than `WINDOW_S`, wherever that begins."""
        ordered = sorted(self.times_s)
        return max(bisect_left(ordered, first + WINDOW_S) - index for index, first in enumerate(ordered))

    @property
    def allowed_in_window(self) -> float:
        """The most that may be there: the rate, and one request more."""
        return self.rate * WINDOW_S + 1

    @property
    def gaps_s(self) -> Sequence[float]:
        """Seconds between arrivals, the shortest first."""
        ordered = sorted(self.times_s)
        return sorted(later - earlier for earlier, later in zip(ordered, ordered[1:], strict=False))


def seen_table(cases: Mapping[str, Mapping[str, Seen]], note: str = "") -> Table:
    """Return a row per case, with the worst of its domains."""
    columns = ["", "domains", "arrivals each", "of the limit, %", f"most in {WINDOW_S:g} s", "allowed"]
    rows = [[name, *_row(list(domains.values()))] for name, domains in cases.items()]
    return Table("Rates", [*columns, "shortest gap, ms", "median gap, ms", "delay, ms"], rows, note)


def _row(domains: Sequence[Seen]) -> Sequence[Cell]:
    gaps = [gap for seen in domains for gap in seen.gaps_s]
    return [
        len(domains),
        "/".join(sorted({str(len(seen.times_s)) for seen in domains})),
        Measured([seen.throughput * 100 for seen in domains], 1),
        max(seen.fullest_window for seen in domains),
        f"{domains[0].allowed_in_window:g}",
        f"{min(gaps) * 1000:.1f}",
        f"{statistics.median(gaps) * 1000:.1f}",
        f"{1000 / domains[0].rate:g}",
    ]
