"""The drawings of the pages: what is drawn from which table, and how; only drawing needs matplotlib."""

from __future__ import annotations

import importlib.util
import re
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from page import Library, NotMeasured
from results import Cell, Measured, Table

STYLE: Any = {
    "svg.fonttype": "none",  # text stays text: small files, and readers can search it
    "svg.hashsalt": "scrapy-prioqueue",  # the same numbers give the same file
    "font.family": "sans-serif",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "figure.figsize": (6.4, 3.4),
    "figure.constrained_layout.use": True,
}
ERROR_BAR = {"linewidth": 0.8}
COLOURS = ("#2563a8", "#d9822b", "#4f9d5b", "#a03a5e", "#6b6b6b", "#8b6fc0")


@dataclass(frozen=True, slots=True)
class Line:
    """Points of one kind.

    Args:
        name: as it is in the legend.
        points: x, and the samples of y.
    """

    name: str
    points: Sequence[tuple[float, Sequence[float]]]


@dataclass(frozen=True, slots=True)
class Plot:
    """One drawing.

    Args:
        name: of its file, without ``.svg``.
        benchmark: whose results it shows.
        table: title of the table.
        y: columns that are shown, each a colour, if they aren't told apart by `by`.
        x: column of numbers for lines; empty for bars, a group per row.
        by: column whose values are each a line, or a colour of bars; rows that agree in it and in their labels are
            one bar.
        labels: columns that tell groups of bars apart, the first one if none are given.
        x_label: below.
        y_label: beside.
        is_log: whether x grows by factors.
        is_log_y: whether y does.
        goals: lines to compare with, as (value, text).
    """

    name: str
    benchmark: str
    table: str
    y: Sequence[str]
    x: str = ""
    by: str | None = None
    labels: Sequence[str] = ()
    x_label: str = ""
    y_label: str = ""
    is_log: bool = False
    is_log_y: bool = False
    goals: Sequence[tuple[float, str]] = ()

    def source(self, library: Library) -> Table:
        """Return the table that is drawn.

        Raises:
            NotMeasured: it is not there.
        """
        return library.table(self.benchmark, self.table)


def lines_of(plot: Plot, table: Table) -> Sequence[Line]:
    """Return what a drawing of lines shows."""
    found: dict[str, list[tuple[float, Sequence[float]]]] = {}
    names = table.column(plot.by) if plot.by is not None else None
    for column in plot.y:
        for number, (x, y) in enumerate(zip(table.column(plot.x), table.column(column), strict=True)):
            place, samples = samples_of(x), samples_of(y)
            if place and samples:
                name = str(names[number]) if names is not None else column
                found.setdefault(name, []).append((statistics.median(place), samples))
    return [Line(name, sorted(points)) for name, points in found.items()]


def groups_of(plot: Plot, table: Table) -> tuple[Sequence[str], Sequence[Line]]:
    """Return the labels of groups of bars, and the bars of each colour, whose x is the number of their group."""
    columns = [table.column(name) for name in plot.labels or table.columns[:1]]
    labels = [" · ".join(map(str, cells)) for cells in zip(*columns, strict=True)]
    places = (
        {label: float(number) for number, label in enumerate(dict.fromkeys(labels))} if plot.by is not None else None
    )
    names = table.column(plot.by) if plot.by is not None else None
    found: dict[str, dict[float, list[float]]] = {}
    for column in plot.y:
        for number, cell in enumerate(table.column(column)):
            place = places[labels[number]] if places is not None else float(number)
            name = str(names[number]) if names is not None else column
            if samples := samples_of(cell):
                found.setdefault(name, {}).setdefault(place, []).extend(samples)
    return list(places or labels), [Line(name, list(points.items())) for name, points in found.items()]


def samples_of(cell: Cell) -> Sequence[float]:
    """Return the numbers of a cell, of text those that it is all of, such as 12,000."""
    if isinstance(cell, Measured):
        return cell.values
    if isinstance(cell, str):
        cell = float(cell.replace(",", "")) if re.fullmatch(r"[\d,]*\.?\d+", cell) else None
    return [] if cell is None else [float(cell)]


def can_draw() -> bool:
    """Return whether matplotlib is installed, as the extra `bench` does."""
    return importlib.util.find_spec("matplotlib") is not None


def draw_all(plots: Sequence[Plot], library: Library, folder: Path) -> Iterator[Path]:
    """Draw what there are results for; yield the files."""
    for plot in plots:
        try:
            table = plot.source(library)
        except NotMeasured:
            continue
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{plot.name}.svg"
        path.write_text(draw(plot, table))
        yield path


def draw(plot: Plot, table: Table) -> str:
    """Return a drawing as SVG."""
    import io

    import matplotlib
    from matplotlib.figure import Figure

    out = io.StringIO()
    with matplotlib.rc_context(STYLE):
        figure = Figure()
        axes = figure.add_subplot()
        if plot.x:
            _draw_lines(axes, plot, table)
        else:
            _draw_bars(axes, plot, table)
        for value, text in plot.goals:
            axes.axhline(value, color="#999999", linewidth=0.8, linestyle="--")
            axes.annotate(text, (0.995, value), xycoords=("axes fraction", "data"), ha="right", va="bottom", fontsize=8)
        axes.set_xlabel(plot.x_label)
        axes.set_ylabel(plot.y_label)
        if not plot.is_log_y:
            axes.set_ylim(bottom=0)
        if len(axes.get_legend_handles_labels()[1]) > 1:
            axes.legend(frameon=False, fontsize=8, loc="lower left", bbox_to_anchor=(0, 1), ncols=4)
        figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None})
    return _small(out.getvalue())


def _draw_lines(axes: Any, plot: Plot, table: Table) -> None:
    for colour, line in zip(COLOURS, lines_of(plot, table), strict=False):
        places = [x for x, _ in line.points]
        middle, error = _spread([samples for _, samples in line.points])
        axes.errorbar(places, middle, error, color=colour, label=line.name, marker="o", markersize=3, linewidth=1.2)
    if plot.is_log:
        axes.set_xscale("log")
    if plot.is_log_y:
        axes.set_yscale("log")


def _draw_bars(axes: Any, plot: Plot, table: Table) -> None:
    labels, lines = groups_of(plot, table)
    width = 0.8 / max(1, len(lines))
    for number, (colour, line) in enumerate(zip(COLOURS, lines, strict=False)):
        places = [x - 0.4 + width * (number + 0.5) for x, _ in line.points]
        middle, error = _spread([samples for _, samples in line.points])
        bars = axes.bar(places, middle, width * 0.92, yerr=error, color=colour, label=line.name, error_kw=ERROR_BAR)
        axes.bar_label(bars, [f"{value:.3g}" for value in middle], fontsize=7, padding=1)
    axes.set_xticks(range(len(labels)), [re.sub(", | · ", "\n", label) for label in labels], fontsize=8)


def _spread(samples: Sequence[Sequence[float]]) -> tuple[Sequence[float], Sequence[Sequence[float]]]:
    """Return medians, and how far the lowest and the highest are from them."""
    middle = [statistics.median(one) for one in samples]
    below = [median - min(one) for median, one in zip(middle, samples, strict=True)]
    above = [max(one) - median for median, one in zip(middle, samples, strict=True)]
    return middle, [below, above]


def _small(svg: str) -> str:
    """Return it without what only editors need, and without blanks at the end of lines."""
    svg = re.sub(r"\s*<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    return "\n".join(line.rstrip() for line in svg.splitlines()) + "\n"
